"""The dry run of `crossward run`: what the run will take, in words or as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from crossward.cli.amounts import in_words, size_in_words
from crossward.cli.output import print_json, print_line, print_notes

if TYPE_CHECKING:
    from crossward.config.schema import Config
    from crossward.runs.estimate import RunEstimate

WORTH_NAMING = 0.01  # share of the whole; smaller parts are not named


def print_dry_run(config: Config, *, as_json: bool) -> None:
    """Measure a part of a round and print what the run will take."""
    from crossward.runs.estimate import cautions, estimate_run

    estimate = estimate_run(config)
    warned = cautions(estimate, config.run.out)
    if as_json:
        print_json(document(estimate, warned))
        return
    print_line("\n".join(_lines(config.method.name, estimate, config.run.out)))
    print_notes(estimate.notes)
    for line in warned:
        print_line(f"caution: {line}")


def document(estimate: RunEstimate, warned: list[str]) -> dict[str, object]:
    from crossward.runs.estimate import dominant_part

    totals = {"seconds": estimate.total_seconds, "memory": estimate.total_memory, "disk": estimate.total_disk}
    parts = {"seconds": estimate.seconds, "memory": estimate.memory, "disk": estimate.disk}
    dominant = {what: dominant_part(amounts) for what, amounts in parts.items()}
    return {**asdict(estimate), "total": totals, "dominant": dominant, "cautions": warned}


def _lines(label: str, estimate: RunEstimate, out: Path) -> Iterator[str]:
    from crossward.core.machine_memory import available_bytes
    from crossward.runs.estimate import free_disk

    yield f"{label}: {estimate.sites} sites, {estimate.cohort} of them asked in a round, {estimate.rounds} rounds"
    yield f"time    about {in_words(estimate.total_seconds)}: {_parts(estimate.seconds, in_words)}"
    available = available_bytes()
    here = "" if available is None else f"; {size_in_words(available)} are available"
    yield f"memory  about {size_in_words(estimate.total_memory)}: {_parts(estimate.memory, size_in_words)}{here}"
    free = f"; {size_in_words(free_disk(out))} are free in {out}"
    yield f"disk    up to {size_in_words(estimate.total_disk)}: {_parts(estimate.disk, size_in_words)}{free}"
    yield f"A checkpoint writes {size_in_words(estimate.checkpoint_bytes)}. Measured: {estimate.measured}."


def _parts(amounts: Mapping[str, float], words: Callable[[float], str]) -> str:
    """Largest first."""
    total = sum(amounts.values())
    named = [name for name in sorted(amounts, key=lambda name: -amounts[name]) if amounts[name] >= WORTH_NAMING * total]
    return ", ".join(f"{name} {words(amounts[name])}" for name in named)
