"""Models: one door to load them (`load`), their border, hidden activations, architectures and checkpoints."""
