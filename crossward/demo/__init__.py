"""The demo: each paper's method in the situation it was made for, on phantom hospitals, in one report."""
