"""Robustness of any model on any data: one path for every measurement, defence checks, and comparison."""
