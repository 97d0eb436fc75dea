"""Flower's engine: the same methods across real hospitals. Nothing else in the package imports flwr."""
