"""The ServerApp that Flower starts at the coordinator."""

from __future__ import annotations

import os
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from crossward.errors import ConfigError
from crossward.hospitals.flower.coordinator import coordinate_run
from crossward.hospitals.flower.node_registry import registered_nodes

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    coordinate_own_run(Path(str(context.run_config["folder"])), grid)


def coordinate_own_run(folder: Path, grid: Grid) -> None:
    """Run the coordinator's part of one of its own runs. Other folders are refused: whoever reaches the coordinator's
    port can name any folder."""
    home = Path(os.environ["FLWR_HOME"])
    runs = home.parent / "runs"
    if folder.resolve().parent != runs.resolve():
        raise ConfigError(f"{folder} is not a run of this coordinator: those are in {runs}")
    coordinate_run(folder, grid, nodes=registered_nodes(home))
