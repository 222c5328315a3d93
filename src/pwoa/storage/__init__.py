"""Files: written as a whole or not at all, and read with limits when they come from a stranger."""
