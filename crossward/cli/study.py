"""Commands about studies, grids of runs from one file: study run, study race, study status, study table,
study prune."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crossward.cli.amounts import in_words, size_in_words
from crossward.cli.options import Json, Quiet
from crossward.cli.output import print_json, print_line
from crossward.cli.race import (
    INTERRUPTED,
    OUT,
    Engine,
    RayOptions,
    SlurmOptions,
    Workers,
    command_again,
    race_command,
)
from crossward.cli.text_tables import Full, TableFormat, print_text_tables
from crossward.errors import RunError

MOST_NAMED = 4  # cells that failed by one reason

if TYPE_CHECKING:
    from crossward.studies.estimate import MethodEstimate, StudyEstimate
    from crossward.studies.status import StudyStatus
    from crossward.studies.study import Study, StudyOutcome

NOTHING = "–"
MOST_REASONS = 20

app = typer.Typer(help="Run a grid of methods, settings and seeds from one file, and compare them.")

StudyPath = Annotated[Path, typer.Argument(metavar="FILE", help="A study in TOML: a configuration with [study].")]
Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="The study's runs are in a folder of its name here.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
app.command("race")(race_command)


@app.command("run")
def run_command(
    file: StudyPath,
    out: Out = OUT,
    workers: Workers = None,
    engine: Engine = "local",
    slurm: SlurmOptions = None,
    ray: RayOptions = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Try cells that failed again.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the cells, and what they will take, and run none.")
    ] = False,
    estimate: Annotated[
        bool, typer.Option("--estimate/--no-estimate", help="With --dry-run: measure a part of a round of each method.")
    ] = True,
    prune: Annotated[bool, typer.Option("--prune", help="Remove the checkpoints of cells as they finish.")] = False,
    yes: Yes = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run every cell of a study that has not finished, then print its tables. Stop it at any time and run it again."""
    from crossward.cli.study_progress import show_study
    from crossward.studies.study import Study
    from crossward.studies.study_engines import study_engine

    study = Study(file, out)
    yes = yes or _agreed(study)
    if dry_run:
        _print_plan(study, workers, estimate=estimate, as_json=as_json)
        return
    if study.file.settings.race_settings() is not None:
        race_command(file, out, workers, engine, slurm, ray, quiet, as_json)
        return
    try:
        with (
            study_engine(engine, study.file.settings, study.folder, slurm or (), ray or ()) as execute,
            show_study(quiet=quiet, as_json=as_json) as view,
        ):
            outcome = study.run(
                workers=workers, retry_failed=retry_failed, prune=prune, yes=yes, view=view, execute=execute
            )
    except KeyboardInterrupt:
        typer.echo(f"Interrupted. Go on by: {command_again('run', file, out)}", err=True)
        raise SystemExit(INTERRUPTED) from None
    if not quiet and not as_json:
        _print_tables(study, outcome)
    if as_json:
        print_json({"event": "end", "folder": str(study.folder), "states": _states(outcome)})
    else:
        print_line(str(study.folder))
    _report_failures(outcome, command_again("run", file, out, "--retry-failed"))


def _agreed(study: Study) -> bool:
    """Whether a person wants a study of more than ten thousand cells; without one to ask, `Study.run` refuses it."""
    from crossward.studies.grid import MANY_CELLS

    if study.size <= MANY_CELLS or not sys.stdin.isatty():
        return False
    typer.confirm(f"{study.file.file} asks for {study.size:,} runs. Go on?", abort=True, err=True)
    return True


def _states(outcome: StudyOutcome) -> dict[str, int]:
    states: dict[str, int] = {}
    for planned in outcome.cells:
        states[planned.state] = states.get(planned.state, 0) + 1
    return states


def _print_tables(study: Study, outcome: StudyOutcome) -> None:
    from crossward.studies.states import HAS_FIGURES

    if outcome.in_state(*HAS_FIGURES):
        _print_text(study, TableFormat.TERMINAL)


def _report_failures(outcome: StudyOutcome, again: str) -> None:
    """`again` is the command that tries failed cells again."""
    from crossward.studies.states import BLOCKED, FAILED

    failed = outcome.in_state(FAILED, BLOCKED)
    if failed:
        raise RunError(
            f"{len(failed)} of {len(outcome.cells)} cells have no result",
            details=_by_reason([(each.cell.folder.name, each.reason) for each in failed]),
            hint=f"Mend the cause, then: {again}",
        )


def _by_reason(failed: Iterable[tuple[str, str]]) -> list[str]:
    """A line for each reason, with the cells that failed by it: one mistake in a study file fails all of them."""
    names: dict[str, list[str]] = {}
    for name, reason in failed:
        names.setdefault(reason, []).append(name)
    lines = []
    for reason, cells in names.items():
        more = f" and {len(cells) - MOST_NAMED} more" if len(cells) > MOST_NAMED else ""
        lines.append(f"{', '.join(cells[:MOST_NAMED])}{more}: {reason}")
    return lines


# the dry run ----------------------------------------------------------------------------------------------------------
def _print_plan(study: Study, workers: int | None, *, estimate: bool, as_json: bool) -> None:
    plan = study.plan()
    cells = [{"cell": each.cell.folder.name, "state": each.state, "reason": each.reason} for each in plan]
    known = study.estimate(workers=workers) if estimate else None
    if as_json:
        methods = [asdict(method) for method in known.methods] if known else None
        searches = [asdict(search) for search in known.searches] if known else None
        plan_of_study = {"cells": cells, "folder": str(study.folder), "methods": methods, "searches": searches}
        print_json(plan_of_study | {"cautions": _shortages(study, known)})
        return
    for cell in cells:
        print_line(f"{cell['state']:<9} {cell['cell']}" + (f"  {cell['reason']}" if cell["reason"] else ""))
    print_line(f"{len(cells)} cells in {study.folder}")
    if known:
        print_line("\n".join([*_estimate_lines(known), *(f"caution: {line}" for line in _shortages(study, known))]))
    if study.file.settings.race_settings() is not None:
        print_line(
            "It is a race: the weaker half of the methods stops at each stage, and methods that cannot serve the data "
            "take no part. This is the most that it can take."
        )


def _shortages(study: Study, known: StudyEstimate | None) -> list[str]:
    from crossward.runs.estimate import shortages

    return shortages(known.peak_bytes, known.disk_bytes, study.folder) if known else []


def _estimate_lines(estimate: StudyEstimate) -> Iterator[str]:
    if not estimate.methods:
        yield "nothing is left to do"
        return
    heads = ["method", "cells", "time of one", "memory", "disk of one", "from"]
    yield from _columns([heads, *(_estimate_row(method) for method in estimate.methods)])
    for method in estimate.methods:
        if method.failure:
            yield f"{method.label} fails: {method.failure}"
    for search in estimate.searches:
        yield (
            f"search: {search.label}, {search.runs} trial(s) of {search.rounds} rounds in all, about "
            f"{in_words(search.seconds)} of one worker, at most {size_in_words(search.disk_bytes)} of disk"
        )
    if estimate.searches:
        yield "The cells above have the values of the file; the study runs with those that the search will choose."
    yield (
        f"In all about {in_words(estimate.seconds)} with {estimate.workers} worker(s), "
        f"{size_in_words(estimate.peak_bytes)} of memory and {size_in_words(estimate.disk_bytes)} of disk "
        "(checkpoints included; --prune leaves them out)."
    )


def _estimate_row(method: MethodEstimate) -> list[str]:
    known = bool(method.source and method.seconds)
    return [
        method.label,
        str(method.cells),
        in_words(method.seconds) if known else NOTHING,
        size_in_words(method.peak_bytes) if known else NOTHING,
        size_in_words(method.disk_bytes) if known else NOTHING,
        method.source or "it fails",
    ]


# status ---------------------------------------------------------------------------------------------------------------
@app.command()
def status(
    file: StudyPath,
    out: Out = OUT,
    every: Annotated[bool, typer.Option("--all", help="Also list every cell.")] = False,
    as_json: Json = False,
) -> None:
    """Show what has become of the cells of a study."""
    from crossward.studies.choices import current_results, with_choices
    from crossward.studies.status import study_status
    from crossward.studies.study_file import read_study

    written = read_study(file)
    searched = current_results(written, out / written.name)
    study = with_choices(written, searched)
    found = study_status(study, out / study.name)
    if as_json:
        chosen = [asdict(result) for result in searched]
        print_json({**asdict(found), "states": found.counts(), "search": chosen})
        return
    print_line("\n".join(_status_lines(found, every=every)))
    if written.settings.search is not None:
        lines = [f"chosen on validation: {result.sentence()}" for result in searched]
        print_line("\n".join(lines) or "the search has not chosen yet: cells are shown with the values of the file")


def _status_lines(found: StudyStatus, *, every: bool) -> Iterator[str]:
    from crossward.studies.states import BLOCKED, FAILED, ORDER

    counts = found.counts()
    states = [state for state in ORDER if counts.get(state)]
    labels = list(dict.fromkeys(cell.label for cell in found.cells))
    by_label = {label: [cell.state for cell in found.cells if cell.label == label] for label in labels}
    rows = [[label, *(str(mine.count(state) or NOTHING) for state in states)] for label, mine in by_label.items()]
    yield from _columns([["method", *states], *rows])
    if every:
        yield ""
        cells = [
            [cell.state, cell.label, cell.setting or NOTHING, str(cell.seed), _rounds(cell.rounds, cell.planned),
             cell.folder or NOTHING]
            for cell in found.cells
        ]  # fmt: skip
        yield from _columns([["state", "method", "setting", "seed", "rounds", "folder"], *cells])
    total = ", ".join(f"{counts[state]} {state}" for state in states)
    at_work = "a process works on it now" if found.running else "no process works on it now"
    yield f"{len(found.cells)} cells in {found.folder}: {total}; {at_work}"
    troubled = [cell for cell in found.cells if cell.state in (FAILED, BLOCKED)]
    for cell in troubled[:MOST_REASONS]:
        setting = f", {cell.setting}" if cell.setting else ""
        yield f"{cell.state}: {cell.label}{setting}, seed {cell.seed}: {cell.reason}"
    if len(troubled) > MOST_REASONS:
        yield f"… and {len(troubled) - MOST_REASONS} more"
    if found.runs_of_others:
        yield f"{len(found.runs_of_others)} run(s) in the folder are no cells of the study as the file is now"
    if found.strangers:
        yield f"not of the study, left alone: {', '.join(found.strangers[:MOST_REASONS])}"
    yield from (f"note: {note}" for note in found.notes)


def _rounds(done: int | None, planned: int | None) -> str:
    return NOTHING if done is None else f"{done}/{planned}"


# tables ---------------------------------------------------------------------------------------------------------------
@app.command()
def table(
    file: StudyPath,
    out: Out = OUT,
    form: Annotated[TableFormat, typer.Option("--format", help="How to print them.")] = TableFormat.TERMINAL,
    full: Full = False,
    as_json: Json = False,
) -> None:
    """Print the tables of a study: figures with intervals, differences with verdicts, sites, costs."""
    from crossward.studies.study import Study

    study = Study(file, out)
    if as_json:
        from crossward.comparison.study_tables import document

        print_json({**document(study.tables()), "joined": [asdict(row) for row in study.joined()]})
        return
    _print_text(study, form, full=full)


def _print_text(study: Study, form: TableFormat, *, full: bool = False) -> None:
    from crossward.comparison.study_text import study_text
    from crossward.studies.study_comparison import join_text

    rows = study.joined()
    joined = [join_text(study.file.settings.join or "", rows)] if rows else []
    print_text_tables([*study_text(study.tables()), *joined], form, full=full)


# pruning --------------------------------------------------------------------------------------------------------------
@app.command()
def prune(file: StudyPath, out: Out = OUT, yes: Yes = False, as_json: Json = False) -> None:
    """Remove what finished cells, and trials of a search, no longer need: checkpoints, and, after a question,
    predictions of rounds between the best and the last."""
    from crossward.studies.choices import current_results, with_choices
    from crossward.studies.prune import ended_trials, prunable, remove
    from crossward.studies.status import study_status
    from crossward.studies.study_file import read_study
    from crossward.studies.study_folder import StudyFolder

    written = read_study(file)
    folder = out / written.name
    study = with_choices(written, current_results(written, folder))
    freed = {"checkpoints": 0, "predictions": 0}
    kept = 0  # predictions that could be removed
    trials: list[Path] = []
    if folder.is_dir():
        with StudyFolder.open(folder).locked():
            trials = ended_trials(written, folder)
            found = prunable(study_status(study, folder), trials)
            remove(found.checkpoints)
            freed["checkpoints"] = found.checkpoint_bytes
            question = (
                f"Remove {len(found.predictions)} predictions of older rounds, {size_in_words(found.prediction_bytes)}?"
            )
            if found.predictions and (yes or _is_confirmed(question)):
                remove(found.predictions)
                freed["predictions"] = found.prediction_bytes
            else:
                kept = len(found.predictions)
    if as_json:
        print_json(freed)
        return
    parts = [f"{size_in_words(count)} of {what}" for what, count in freed.items()]
    whose = "finished cells and trials" if trials else "finished cells"
    print_line(f"removed {' and '.join(parts)} from {whose} in {folder}")
    if kept:
        print_line(f"{kept} predictions of older rounds are kept: --yes removes them")


def _is_confirmed(question: str) -> bool:
    """Whether a person says yes; a script, which says nothing, does not."""
    try:
        return typer.confirm(question, err=True)
    except typer.Abort:
        typer.echo(err=True)
        return False


# text -----------------------------------------------------------------------------------------------------------------
def _columns(rows: list[list[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
