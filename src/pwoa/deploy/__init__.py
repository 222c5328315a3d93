"""Smaller and faster where they run: what is exported from a model, and how to run it."""
