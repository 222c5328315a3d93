"""Data sets: the catalogue, official files and where they come from, a user's own data, and images on the device."""
