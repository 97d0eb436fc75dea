"""The tables of the five papers: what they print, the studies that would fill them, and what our runs have for them."""
