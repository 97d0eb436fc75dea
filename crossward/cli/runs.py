"""Commands that run a federation: run, resume, join."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from crossward.cli.dry_run import print_dry_run
from crossward.cli.options import ConfigFile, Json, Overrides, Quiet, RunFolder
from crossward.cli.output import print_json, print_line, print_notes
from crossward.cli.tables import results_table, signed_change
from crossward.errors import ConfigError

if TYPE_CHECKING:
    from crossward.runs.join import Joined
    from crossward.runs.result import Result

FLOWER = "flower-sim"  # an engine of this command alone; the others are values of engine.name

app = typer.Typer()


@app.command()
def run(
    file: ConfigFile,
    overrides: Overrides = None,
    engine: Annotated[str | None, typer.Option(help="local, pool, or flower-sim: Flower's simulation on Ray.")] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print the time, memory and disk that the run will take, and run nothing."),
    ] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run a configuration."""
    from crossward.cli.progress import show_progress
    from crossward.config.reading import read_config
    from crossward.runs import lifecycle

    changes = list(overrides or [])
    if engine not in (None, FLOWER):
        changes.append(f"engine.name={engine}")
    config = read_config(file, changes)
    if dry_run:
        _refuse_estimate(engine)
        print_dry_run(config, as_json=as_json)
        return
    label = config.method.name
    with show_progress(label, quiet=quiet, as_json=as_json) as observers:
        if engine == FLOWER:
            from crossward.hospitals.flower.simulated_run import simulate

            result = simulate(config)
            if not (quiet or as_json):
                print_notes(result.about["warnings"])  # Ray's simulation has no observers
        else:
            result = lifecycle.run(config, observers=observers)
    _print_result(result, label, quiet=quiet, as_json=as_json)


def _refuse_estimate(engine: str | None) -> None:
    if engine == FLOWER:
        raise ConfigError(
            f"--dry-run measures crossward's own engines, not --engine {FLOWER}",
            hint="Leave --engine out: the estimate is of the same run in this process.",
        )


@app.command()
def resume(folder: RunFolder, overrides: Overrides = None, quiet: Quiet = False, as_json: Json = False) -> None:
    """Go on with an interrupted run, to the same result as if nothing had happened."""
    from crossward.cli.progress import show_progress
    from crossward.runs import lifecycle
    from crossward.runs.result import load

    label = load(folder).about["method"]["name"]
    with show_progress(label, quiet=quiet, as_json=as_json) as observers:
        result = lifecycle.resume(folder, overrides or [], observers)
    _print_result(result, label, quiet=quiet, as_json=as_json)


@app.command()
def join(
    folder: RunFolder,
    site: Annotated[str, typer.Option(help="A site that the run left out, or the TOML file of a newcomer.")],
    overrides: Overrides = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Let a new hospital join a finished federation: what it gains over training alone."""
    from crossward.cli.progress import show_progress
    from crossward.runs.join import join as join_run

    advice = f"Join again by: crossward join {folder} --site {site}"
    joined = join_run(
        folder,
        site,
        overrides or [],
        lambda label: show_progress(label, quiet=quiet, as_json=as_json, advice=advice),
    )
    _print_joined(joined, quiet=quiet, as_json=as_json)


def _print_result(result: Result, label: str, *, quiet: bool, as_json: bool) -> None:
    from crossward.comparison.rows import result_rows

    rows = result_rows([result])
    if as_json:
        print_json({"result": rows[0], "summary": result.summary})
        return
    if not quiet and result.summary["best"]:
        Console().print(results_table(rows, label))
    print_line(str(result.folder))


def _print_joined(joined: Joined, *, quiet: bool, as_json: bool) -> None:
    from crossward.comparison.rows import gains, result_rows

    rows = result_rows([joined.alone, joined.joined])
    gain = gains(*rows)
    folder = str(joined.joined.folder.parent)
    if as_json:
        print_json({"site": joined.site, "alone": rows[0], "joined": rows[1], "gain": gain, "folder": folder})
        return
    if not quiet:
        console = Console()
        console.print(results_table(rows, f"{joined.site}: alone, and having joined"))
        changes = [signed_change(name, change) for name, change in gain.items() if change is not None]
        console.print(f"By joining, on its own test set: {', '.join(changes)}", highlight=False, soft_wrap=True)
    print_line(folder)
