"""The command `dashboard`: the runs of a folder live in the browser."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from crossward.cli.output import print_line

INSTALL = "pip install 'crossward[dashboard]'"
SCREENS = ("DISPLAY", "WAYLAND_DISPLAY")

app = typer.Typer()


@app.command()
def dashboard(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder of runs and studies.")] = Path("runs"),
    port: Annotated[
        int | None, typer.Option(help="The port on this machine; without it, 8650 or the next free one.")
    ] = None,
    open_page: Annotated[
        bool | None, typer.Option("--open/--no-open", help="Open the browser; without it, where there is a screen.")
    ] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A name under which a proxy asks; may be repeated.")
    ] = None,
) -> None:
    """Show runs and studies live in the browser, on this machine only, until Ctrl-C. Nothing in DIR is changed."""
    from crossward.errors import ConfigError

    try:
        from crossward.report.dashboard.server import serve
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("crossward"):
            raise
        raise ConfigError(
            f"the dashboard needs packages that are not installed: {error.name}", hint=f"{INSTALL} brings them."
        ) from None

    def started(address: str) -> None:
        print_line(f"The dashboard of {folder} is at\n  {address}\nThe address is yours alone. Ctrl-C ends it.")
        if _has_screen() if open_page is None else open_page:
            _open(address)

    serve(folder, port=port, hosts=allow_host or [], started=started)
    print_line("The dashboard has ended; runs go on.")


def _has_screen() -> bool:
    return sys.platform in ("darwin", "win32") or any(os.environ.get(name) for name in SCREENS)


def _open(address: str) -> None:
    import webbrowser

    if not webbrowser.open(address):
        print_line("No browser could be opened here.")
