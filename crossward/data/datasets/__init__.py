"""Public datasets by name: their cards, and whether one is complete."""
