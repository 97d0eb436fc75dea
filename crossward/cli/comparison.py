"""Commands that compare finished runs: compare, reach."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from crossward.cli.options import Json
from crossward.cli.output import print_json, print_notes
from crossward.cli.tables import cost_to_target_table
from crossward.cli.text_tables import Full, TableFormat, print_text_tables
from crossward.errors import ConfigError

app = typer.Typer()


@app.command()
def compare(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN…", help="Run directories, of several seeds if any.")],
    column: Annotated[
        list[str] | None,
        typer.Option(help="rounds.view.metric, as best.global.f1 or last.worst.dice; may be repeated."),
    ] = None,
    against: Annotated[
        str | None, typer.Option(help="Compare every method with this one; default: each with each other.")
    ] = None,
    sites: Annotated[str | None, typer.Option(help="A column site by site: best.site.f1.")] = None,
    last: Annotated[int, typer.Option(min=1, help="Evaluated rounds that 'last' averages.")] = 10,
    specificity: Annotated[float | None, typer.Option(help="Also sensitivity at this specificity: 0.95.")] = None,
    attribute: Annotated[
        list[str] | None, typer.Option(help="A column of the table of images: subgroups by its values.")
    ] = None,
    level: Annotated[float, typer.Option(help="Of the intervals.")] = 0.95,
    resamples: Annotated[int, typer.Option(help="Bootstrap resamples of the images.")] = 1000,
    form: Annotated[TableFormat, typer.Option("--format", help="How to print it.")] = TableFormat.TERMINAL,
    full: Full = False,
    as_json: Json = False,
) -> None:
    """Compare methods over their seeds: figures with intervals, differences with verdicts, classes, calibration."""
    from crossward.comparison.named_runs import default_column, name_runs, pairs_of
    from crossward.comparison.protections import privacy_rows, privacy_text
    from crossward.comparison.study_tables import TableSpec, compare_runs, document
    from crossward.comparison.study_text import study_text

    runs = name_runs(folders)
    labels = list(dict.fromkeys(run.label for run in runs))
    spec = TableSpec(
        columns=tuple(column) if column else (default_column(folders[0]),),
        pairs=pairs_of(labels, against),
        last=last,
        level=level,
        resamples=resamples,
        sites=sites,
        specificity=specificity,
        attributes=tuple(attribute or ()),
    )
    tables = compare_runs(runs, spec)
    if as_json:
        print_json({**document(tables), "privacy": privacy_rows(runs)})
        return
    if not tables.methods:
        raise ConfigError("none of these runs can be compared", details=tables.notes)
    figures, *others = study_text(tables)
    print_text_tables([figures, *privacy_text(runs), *others], form, full=full)


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
