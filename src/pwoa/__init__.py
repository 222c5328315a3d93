"""Prune adversarially robust networks without adversarial examples."""
