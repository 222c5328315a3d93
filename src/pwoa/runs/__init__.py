"""Runs: a straight line from a recipe to a result, and the folder that keeps it."""
