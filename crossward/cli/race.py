"""The command study race: which of many methods suits a federation. Also the options of studies on a cluster."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crossward.cli.options import Json, Quiet
from crossward.cli.output import print_json, print_line

if TYPE_CHECKING:
    from crossward.comparison.intervals import Estimate
    from crossward.studies.race import RaceReport

INTERRUPTED = 130  # the exit code of shells: 128 + SIGINT
OUT = Path("runs/studies")
SHOWN = 40  # methods of a stage

Workers = Annotated[
    int | None, typer.Option(min=1, help="Cells at a time; fewer if cores or memory are short. Default: cores.")
]
Engine = Annotated[str, typer.Option(help="Where cells run: local, slurm or ray.")]
SlurmOptions = Annotated[
    list[str] | None, typer.Option("--slurm", metavar="KEY=VALUE", help="An option of study.slurm, say cpus=4.")
]
RayOptions = Annotated[
    list[str] | None, typer.Option("--ray", metavar="KEY=VALUE", help="An option of study.ray, say gpus=0.5.")
]


def command_again(word: str, file: Path, out: Path, *more: str) -> str:
    """The command that goes on with a study, as people type it."""
    elsewhere = () if out == OUT else ("--out", str(out))
    return shlex.join(["crossward", "study", word, str(file), *elsewhere, *more])


def race_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A study or a configuration in TOML.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Runs are in a folder of its name here.")] = OUT,
    workers: Workers = None,
    engine: Engine = "local",
    slurm: SlurmOptions = None,
    ray: RayOptions = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Find out which method suits a federation: all start small, the weaker half stops at each stage. Without methods
    in the file, all that can serve its data take part. Stop it at any time and run it again."""
    from crossward.cli.study_progress import show_study
    from crossward.studies.study import Study
    from crossward.studies.study_engines import study_engine

    study = Study(file, out, race=True)
    try:
        with (
            study_engine(engine, study.file.settings, study.folder, slurm or (), ray or ()) as execute,
            show_study(quiet=quiet, as_json=as_json) as view,
        ):
            report = study.race(workers=workers, view=view, execute=execute)
    except KeyboardInterrupt:
        typer.echo(f"Interrupted. Go on by: {command_again('race', file, out)}", err=True)
        raise SystemExit(INTERRUPTED) from None
    if as_json:
        print_json({"event": "end", "folder": str(study.folder), "answer": report.answer(), **asdict(report)})
        return
    print_line("\n".join(report_lines(report)))
    print_line(str(study.folder))


def report_lines(report: RaceReport) -> Iterator[str]:
    """A race in words."""
    for stage in report.stages[:-1]:
        yield f"Round {stage.rounds}, seed {stage.seeds[0]}: {report.metric} on validation, {report.view} view"
        for label, value in list(stage.values.items())[:SHOWN]:
            yield f"  {'stops  ' if label in stage.stopped else 'goes on'}  {value:.4f}  {label}"
    final = report.stages[-1]
    yield f"Finalists, round {final.rounds}, {len(final.seeds)} seed(s):"
    for finalist in report.finalists:
        yield f"  {finalist.label}: {_in_words(finalist.validation)}"
    yield from (f"  {pair.sentence()}" for pair in report.comparisons)
    yield "Test figures of the finalists, which chose nothing:"
    for finalist in report.finalists:
        yield from (f"  {finalist.label}: {_in_words(estimate)}" for estimate in finalist.test)
    for word, methods in (("takes no part", report.left_out), ("failed", report.failed)):
        yield from (f"{label} {word}: {reason}" for label, reason in methods.items())
    yield f"{report.rounds} rounds in place of the {report.rounds_of_all} of every method with every seed."
    yield ""
    yield report.answer()
    yield from report.cautions()


def _in_words(estimate: Estimate) -> str:
    name = estimate.name.partition(":")[0]
    if estimate.low is None or estimate.high is None:
        return f"{name} {estimate.value:.4f} ({estimate.how})"
    interval = f"{estimate.level:.0%} interval {estimate.low:.4f} to {estimate.high:.4f}"
    return f"{name} {estimate.value:.4f}, {interval}; {estimate.seeds} seed(s), {estimate.images} images"
