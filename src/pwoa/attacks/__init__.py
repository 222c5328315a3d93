"""Attacks: pure functions (model, images, labels, threat, …) → adversarial images, and one registry of them."""
