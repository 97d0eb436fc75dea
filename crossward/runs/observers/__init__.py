"""Observers by option: a run's metrics for the programs that people already have, TensorBoard and MLflow."""
