"""Commands that compare finished runs: reach."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from crossward.cli.options import Json
from crossward.cli.output import print_json, print_notes
from crossward.cli.tables import cost_to_target_table

app = typer.Typer()


@app.command()
def reach(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN…", help="Run directories, of several seeds if any.")],
    reference: Annotated[str, typer.Option(help="The method that the others are compared with.")],
    target: Annotated[
        str | None, typer.Option(help="0.66, or the method whose end is the target; default: the reference's end.")
    ] = None,
    metric: Annotated[str | None, typer.Option(help="Default: the task's main metric.")] = None,
    view: Annotated[str, typer.Option(help="'global', one set for all, or 'local', the sites' own.")] = "global",
    split: Annotated[str, typer.Option(help="'test' or 'val'.")] = "test",
    window: Annotated[int, typer.Option(min=1, help="Take means over so many evaluated rounds.")] = 1,
    last: Annotated[int | None, typer.Option(min=1, help="Rounds that are a method's end; default: --window.")] = None,
    as_json: Json = False,
) -> None:
    """Compare the rounds and the parameters that methods need to reach a target."""
    from crossward.comparison.reach import cost_to_target

    result = cost_to_target(
        folders,
        reference=reference,
        target=None if target is None else _number_or_name(target),
        metric=metric,
        view=view,
        split=split,
        window=window,
        last=last,
    )
    if as_json:
        print_json(result.document())
        return
    print_notes(result.warnings)
    Console().print(cost_to_target_table(result))


def _number_or_name(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
