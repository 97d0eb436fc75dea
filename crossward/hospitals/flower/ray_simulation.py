"""Flower's own simulation on Ray, for simulations on a cluster. The sites run in Ray's workers."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from crossward.errors import ConfigError
from crossward.hospitals.flower.client_app import create_client_app
from crossward.hospitals.messages import SiteMessage

try:
    import ray  # type: ignore[import-not-found, unused-ignore]  # noqa: F401
except ImportError:
    HAS_RAY = False
else:
    HAS_RAY = True

Answer = Callable[[int, SiteMessage], SiteMessage]  # of the site with this number


def simulate(coordinate_run: Callable[[Grid], None], answer: Answer, sites: int, cpus: int) -> None:
    """Run a federation in Flower's simulation. `answer` is sent to Ray's workers, so it must be a function of a module,
    or a partial of one."""
    if not HAS_RAY:
        raise ConfigError("Flower's simulation needs Ray", hint='Run: pip install "crossward[simulate]"')
    from flwr.simulation import run_simulation

    server = ServerApp()
    errors: list[BaseException] = []

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        try:
            coordinate_run(grid)
        except BaseException as error:  # Flower would only print it
            errors.append(error)

    client = create_client_app(lambda request, context: answer(int(context.node_config["partition-id"]), request))
    init_args = {} if "RAY_ADDRESS" in os.environ else {"num_cpus": cpus}  # a cluster knows its own number of cores
    backend: dict[str, Any] = {"client_resources": {"num_cpus": 1}, "init_args": init_args}
    run_simulation(server, client, sites, backend_config=backend)
    if errors:
        raise errors[0]
