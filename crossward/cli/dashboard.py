"""The command `dashboard`: the runs of a folder live in the browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from crossward.cli.browser import has_screen, open_in_browser
from crossward.cli.output import print_line

INSTALL = "pip install 'crossward[dashboard]'"

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
        if has_screen() if open_page is None else open_page:
            open_in_browser(address)

    serve(folder, port=port, hosts=allow_host or [], started=started)
    print_line("The dashboard has ended; runs go on.")
