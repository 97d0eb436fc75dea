"""Parts that several methods add to a network or measure in it."""
