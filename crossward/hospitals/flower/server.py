"""The ServerApp of every method: it hands Flower's grid to whoever conducts the run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

Conduct = Callable[[Path, Grid], None]  # the run's directory, and the way to the sites


def server_app(conduct: Conduct) -> ServerApp:
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        conduct(Path(str(context.run_config["folder"])), grid)

    return app
