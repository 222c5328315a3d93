"""Checkpoints of every known form: opened without running anything, inspected, and put into a network strictly."""
