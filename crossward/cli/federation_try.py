"""The command `federation try`: a federation on this machine for people who see one for the first time."""

from __future__ import annotations

import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from crossward.cli.browser import has_screen, open_in_browser
from crossward.cli.output import print_line
from crossward.cli.signals import exit_on_signals

INSTALL_DASHBOARD = "pip install 'crossward[dashboard]'"


def try_federation(
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="[DIR]", help="A new folder for all of it; without it, one that is removed in the end."),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of the run.")] = 10,
    open_page: Annotated[
        bool | None, typer.Option("--open/--no-open", help="Open the browser; without it, where there is a screen.")
    ] = None,
    stay: Annotated[
        bool | None,
        typer.Option("--stay/--no-stay", help="Keep the page until Ctrl-C; without it, if started by a person."),
    ] = None,
) -> None:
    """Bring up a coordinator and three hospitals on this machine, with TLS and keys, run a small federation on drawn
    images, and show it live."""
    opened = has_screen() if open_page is None else open_page
    exit_on_signals([signal.SIGTERM], 143)
    kept = sys.stdin.isatty() and sys.stdout.isatty() if stay is None else stay
    try:
        if folder is not None:
            _show(folder, rounds, opened, kept)
            print_line(f"{folder} has the folder of the coordinator and of each hospital, and what each printed.")
        else:
            with tempfile.TemporaryDirectory(prefix="crossward-") as temporary:
                _show(Path(temporary) / "trial", rounds, opened, kept)
    except KeyboardInterrupt:
        print_line("Ended: the coordinator and the hospitals are stopped.")
        raise SystemExit(130) from None


def _show(folder: Path, rounds: int, opened: bool, kept: bool) -> None:
    from crossward.hospitals.flower.federation_runs import follow_run
    from crossward.hospitals.flower.federation_status import federation_status, status_lines
    from crossward.hospitals.flower.trial import running_trial

    with running_trial(folder, rounds, print_line) as (federation, run):
        coordinator = federation.kit.coordinator
        has_page = _start_page(coordinator / "runs", run, opened)
        follow_run(run, print_line)
        for line in status_lines(federation_status(coordinator), coordinator):
            print_line(line)
        if has_page and kept:
            print_line("The page stays until Ctrl-C.")
            with suppress(KeyboardInterrupt):
                while True:
                    time.sleep(3600)


def _start_page(runs: Path, run: Path, opened: bool) -> bool:
    """Serve the dashboard from a thread of this process, and open the federation's page; whether there is one."""
    try:
        from crossward.report.dashboard.catalogue import run_id
        from crossward.report.dashboard.server import serve
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("crossward"):
            raise
        print_line(f"Without a page, which needs {error.name}: {INSTALL_DASHBOARD} brings it.")
        return False

    def started(address: str) -> None:
        base, _, token = address.partition("?")
        page = f"{base}run/{run_id(runs, run)}/federation?{token}"
        print_line(f"Who does what, live:\n  {page}")
        if opened:
            open_in_browser(page)

    target: Callable[[], None] = lambda: serve(runs, started=started)
    threading.Thread(target=target, daemon=True).start()  # ends with the command
    return True
