"""The architectures that are known by name, one file a family."""
