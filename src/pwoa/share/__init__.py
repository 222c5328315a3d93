"""Models for others: cards, and the Hugging Face hub."""
