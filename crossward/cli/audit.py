"""The command `audit`: attacks on a finished run, and what each of them found."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from crossward.cli.options import Json, Quiet
from crossward.cli.output import print_json, print_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from crossward.audits.finding import Finding

SECONDS = 60.0
CHOICES = {"which": ("best", "last"), "canary-kind": ("auto", "gradients", "mislabelled", "spots")}

Run = Annotated[Path | None, typer.Argument(metavar="RUN", help="The directory of a finished run.")]
Names = Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only this attack; may be repeated.")]
Listed = Annotated[bool, typer.Option("--list", help="Show the attacks, and stop.")]
Which = Annotated[str, typer.Option(help="The network: 'best' on validation, or 'last'.")]
ReferenceRun = Annotated[
    Path | None, typer.Option(metavar="RUN2", help="A run of the same images with another seed, for RMIA.")
]
TrainReference = Annotated[
    bool, typer.Option("--train-reference", help="Train a reference network: half of the run's time.")
]
Canaries = Annotated[int, typer.Option(metavar="N", min=0, help="Repeat the run with so many canaries; 0: do not.")]
Kind = Annotated[str, typer.Option(help="'gradients' (private runs), 'mislabelled' images, 'spots', or 'auto'.")]
Images = Annotated[
    bool, typer.Option("--images", help="Write pictures of patients and what attacks made of them into RUN/audit.")
]
Seconds = Annotated[float, typer.Option(min=1, help="For attacks that could go on without end.")]
Seed = Annotated[int, typer.Option(min=0, help="Of what attacks draw by chance.")]

app = typer.Typer()


@app.command()
def audit(
    folder: Run = None,
    attack: Names = None,
    list_attacks: Listed = False,
    which: Which = "best",
    reference: ReferenceRun = None,
    train_reference: TrainReference = False,
    canaries: Canaries = 0,
    canary_kind: Kind = "auto",
    images: Images = False,
    seconds: Seconds = SECONDS,
    seed: Seed = 0,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Attack a finished run as an outsider or a hostile coordinator would, and write down what that finds (audit.json).

    Every attack is told in a line: what it found, with its interval, or why it cannot be carried out on this run.
    """
    if list_attacks:
        _print_attacks(as_json)
        return
    from crossward.audits.audit import audit as audit_run
    from crossward.audits.audited_run import AuditOptions

    run = _checked(folder, {"which": which, "canary-kind": canary_kind})
    options = AuditOptions(which, reference, train_reference, canaries, canary_kind, images, seconds, seed)  # type: ignore[arg-type]
    console = Console(stderr=True, quiet=quiet or as_json)
    if canaries or train_reference:
        _print_expense(console, run, canaries > 0, train_reference)
    findings = audit_run(run, attack or (), options, lambda title: console.print(f"{title} …", style="dim"))
    if as_json:
        print_json([finding.document() for finding in findings])
        return
    if not quiet:
        print_findings(findings)
    print_line(str(run / "audit.json"))


def _checked(folder: Path | None, chosen: Mapping[str, str]) -> Path:
    from crossward.errors import ConfigError

    if folder is None:
        raise ConfigError("no run was named", hint="`crossward audit RUN`, or `crossward audit --list`.")
    for name, value in chosen.items():
        if value not in CHOICES[name]:
            raise ConfigError(f"--{name} {value!r}", hint=f"Known: {', '.join(CHOICES[name])}.")
    return folder


def print_findings(findings: Sequence[Finding]) -> None:
    """A line for each attack, in words."""
    console = Console()
    for finding in findings:
        status = "" if finding.status == "measured" else f"[yellow]{finding.status}:[/] "
        console.print(f"[bold]{escape(finding.title)}[/]  {status}{escape(finding.found)}", highlight=False)
        for note in finding.notes if finding.status == "measured" else ():
            console.print(f"  [dim]{escape(note)}[/]", highlight=False)


def _print_attacks(as_json: bool) -> None:
    from crossward.audits.catalogue import ATTACKS

    if as_json:
        print_json([{"attack": name} | vars(entry) for name, entry in ATTACKS.items()])
        return
    console = Console()
    for name, entry in ATTACKS.items():
        console.print(f"[bold]{name}[/]  {escape(entry.title)}", highlight=False)
        console.print(f"  {escape(entry.what)}", highlight=False)
        console.print(f"  [dim]costs: {escape(entry.cost)}[/]", highlight=False)


def _print_expense(console: Console, folder: Path, canaries: bool, reference: bool) -> None:
    from crossward.runs.result import load

    seconds = float(load(folder).summary["seconds"])
    parts = [("a reference network", seconds / 2)] * reference + [("the run with canaries", seconds)] * canaries
    words = " and ".join(f"{what} (about {cost:.0f} s)" for what, cost in parts)
    console.print(f"This trains {words}, judged by the {seconds:.0f} s that the run took.", style="dim")
