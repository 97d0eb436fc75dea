"""The ServerApp that Flower starts at the coordinator."""

from __future__ import annotations

import os
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from crossward.config.reading import read_config
from crossward.errors import ConfigError
from crossward.hospitals.build import check_allowed_nets
from crossward.hospitals.flower.coordinator import coordinate_run
from crossward.hospitals.flower.node_registry import registered_nodes
from crossward.hospitals.flower.run_register import is_registered
from crossward.hospitals.kit import read_kit
from crossward.hospitals.kit_files import FEDERATION_FILE

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    coordinate_own_run(Path(str(context.run_config["folder"])), grid)


def coordinate_own_run(folder: Path, grid: Grid) -> None:
    """Run the coordinator's part of a run that its operator started. Other folders are refused, and networks that the
    operator did not allow."""
    home = Path(os.environ["FLWR_HOME"])
    runs = home.parent / "runs"
    if folder.resolve().parent != runs.resolve() or not is_registered(home, folder):
        raise ConfigError(f"{folder} is not a run of this coordinator: those are in {runs}, and were started by it")
    allowed = list(read_kit(home.parent).federation.net)
    check_allowed_nets(read_config(folder / "config.toml").canonical(), allowed, FEDERATION_FILE)
    nodes = registered_nodes(home)
    if nodes is not None and not nodes:
        raise ConfigError("no site has a registered key: there is nobody to run with")
    coordinate_run(folder, grid, nodes=nodes, kit=home.parent)
