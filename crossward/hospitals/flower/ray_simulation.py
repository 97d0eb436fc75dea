"""Flower's own simulation, on Ray: for those who simulate on a cluster. The sites' halves run in Ray's workers."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from crossward.errors import ConfigError
from crossward.hospitals.flower.client_app import client_app
from crossward.hospitals.messages import Parcel

Answer = Callable[[int, Parcel], Parcel]  # of the site with this number


def simulate(conduct: Callable[[Grid], None], answer: Answer, sites: int, cpus: int) -> None:
    """`answer` goes to Ray's workers, so it must be a function of a module, or a partial of one."""
    try:
        import ray  # type: ignore[import-not-found, unused-ignore]  # noqa: F401
    except ImportError:
        raise ConfigError("Flower's simulation needs Ray", hint='Run: pip install "crossward[simulate]"') from None
    from flwr.simulation import run_simulation

    server, failed = ServerApp(), list[BaseException]()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        try:
            conduct(grid)
        except BaseException as error:  # Flower would only print it
            failed.append(error)

    client = client_app(lambda asked, context: answer(int(context.node_config["partition-id"]), asked))
    cores = {} if "RAY_ADDRESS" in os.environ else {"num_cpus": cpus}  # a cluster knows its own
    resources: dict[str, Any] = {"client_resources": {"num_cpus": 1}, "init_args": cores}
    run_simulation(server, client, sites, backend_config=resources)
    if failed:
        raise failed[0]
