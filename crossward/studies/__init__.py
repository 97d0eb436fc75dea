"""Studies: grids of runs from one TOML file, the processes that work through them, and what is known of their cells."""
