"""The ServerApp that Flower starts at the coordinator."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from crossward.errors import ConfigError
from crossward.hospitals.flower.coordinator import conduct
from crossward.hospitals.flower.coordinator_up import bound
from crossward.hospitals.flower.server import server_app

if TYPE_CHECKING:
    from flwr.serverapp import Grid


def conduct_own(folder: Path, grid: Grid) -> None:
    """Runs of this coordinator alone: whoever reaches its port can name any folder."""
    home = Path(os.environ["FLWR_HOME"])
    runs = home.parent / "runs"
    if folder.resolve().parent != runs.resolve():
        raise ConfigError(f"{folder} is not a run of this coordinator: those are in {runs}")
    conduct(folder, grid, nodes=bound(home))


app = server_app(conduct_own)
