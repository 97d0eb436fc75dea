"""Reproduce: the commands, configurations, environment and hashes that give every number of the page again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

from crossward.config.reading import to_toml
from crossward.errors import CrosswardError
from crossward.report.content import (
    Block,
    Cell,
    Code,
    CodeBlock,
    Column,
    DataTable,
    Details,
    Fact,
    Facts,
    Note,
    Prose,
    Section,
    shown,
)
from crossward.report.source import ReportRun, ReportSource
from crossward.runs.run_directory import RunDir

MOST_CONFIGURATIONS = 12
MOST_RUNS = 200
CHUNK = 1 << 20  # bytes that are hashed at a time
MOST_WEIGHTS = 1 << 30  # bytes of weights of a run that are hashed
HASH = 6  # bytes of a hash that are shown


def reproduce_section(source: ReportSource) -> Section:
    blocks: list[Block] = [*_commands(source), *_environments(source), _runs_table(source), *_configurations(source)]
    lead = "Every number on this page comes from the run directories below; hover over a number to see which."
    return Section("reproduce", "Reproduce", tuple(blocks), (lead,))


# commands -------------------------------------------------------------------------------------------------------------
def _commands(source: ReportSource) -> Iterator[Block]:
    if source.study is not None:
        yield CodeBlock(f"crossward study run {_quoted(source.study.file)}", "All runs of the study")
    first = source.runs[0]
    if first.result.across_hospitals:
        yield Note("These runs were made across hospitals: they can be repeated there only, where the images are.")
    lines = [f"crossward run {_quoted(run.result.folder / 'config.toml')}" for run in source.runs[:MOST_RUNS]]
    title = "The same run again" if len(lines) == 1 else "The same runs again, one by one"
    block = CodeBlock("\n".join(lines), title)
    yield Details(f"Commands of all {len(source.runs)} runs", (block,)) if len(lines) > 6 else block
    paths = sorted({str(run.result.folder.parent) for run in source.runs})
    yield CodeBlock("crossward report " + " ".join(map(_quoted, paths[:6])), "This page again")


def _quoted(path: Any) -> str:
    """A path for a shell, on one line."""
    text = shown(path, 400)
    return text if text.replace("/", "").replace("-", "").replace("_", "").replace(".", "").isalnum() else (
        "'" + text.replace("'", "'\\''") + "'"
    )  # fmt: skip


# environment ----------------------------------------------------------------------------------------------------------
def _environments(source: ReportSource) -> Iterator[Block]:
    seen: dict[str, tuple[dict[str, Any], list[str]]] = {}
    for run in source.runs:
        try:
            environment = RunDir(run.result.folder).read("environment.json")
        except CrosswardError:
            continue
        seen.setdefault(json.dumps(environment, sort_keys=True), (environment, []))[1].append(run.name)
    if not seen:
        yield Note("No run says in which environment it was made.")
    for environment, names in list(seen.values())[:4]:
        if len(seen) > 1:
            yield Prose((f"{len(names)} of {len(source.runs)} runs, {names[0]} first:",), muted=True)
        yield Facts(_environment_facts(environment))
    if len(seen) > 4:
        yield Note(f"{len(seen)} different environments occur; the first four are shown.")


def _environment_facts(environment: dict[str, Any]) -> tuple[Fact, ...]:
    packages = environment.get("packages", {})
    known = [
        ("Crossward", environment.get("crossward")),
        ("Python", environment.get("python")),
        ("Machine", environment.get("machine")),
        ("System", environment.get("platform")),
        ("Cores", environment.get("cores")),
        ("Threads", environment.get("threads")),
        ("Device", environment.get("device")),
        *(packages.items() if isinstance(packages, dict) else ()),
    ]
    return tuple(Fact(shown(name, 40), shown(value, 80)) for name, value in known if value is not None)


# runs -----------------------------------------------------------------------------------------------------------------
def _runs_table(source: ReportSource) -> DataTable:
    rows: list[tuple[Cell, ...]] = []
    for run in source.runs[:MOST_RUNS]:
        rows.append(
            (
                Code(shown(run.result.folder, 300)),
                run.label,
                run.setting or "–",
                run.seed,
                f"{run.rounds.last} of {run.result.config['run'].get('rounds', '?')}",
                "–" if run.rounds.best is None else run.rounds.best,
                shown(run.about["status"], 30),
                Code(config_hash(run)),
                Code(str(run.partition["collection"]["fingerprint"])[: 2 * HASH]),
                Code(str(run.partition["hash"])[: 2 * HASH]),
                Code(weights_hash(run.result.folder / "weights" / "best")),
            )
        )
    titles = ("run directory", "method", "setting", "seed", "rounds", "best round", "status")
    hashes = ("configuration", "data", "partition", "best weights")
    kinds = {"seed": "number", "best round": "number"}
    columns = tuple(Column(title, kinds.get(title, "text")) for title in (*titles, *hashes))
    if len(source.settings) == 1:
        columns = tuple(column for column in columns if column.title != "setting")
        rows = [(*row[:2], *row[3:]) for row in rows]
    foot = "Hashes are blake2b, the first 12 digits: of the whole configuration with every default, of all images with "
    foot += "their targets, of who holds which image, and of the weights of the round that validation chose."
    if len(source.runs) > MOST_RUNS:
        foot += f" The first {MOST_RUNS} of {len(source.runs)} runs are listed."
    return DataTable("runs", columns, tuple(rows), "Run directories", footnote=foot)


def config_hash(run: ReportRun) -> str:
    text = json.dumps(run.result.config, sort_keys=True, separators=(",", ":"), default=str)
    return blake2b(text.encode(), digest_size=HASH).hexdigest()


def weights_hash(folder: Path) -> str:
    """Of the names and bytes of all files; a dash if there are none."""
    files = sorted(folder.glob("*.safetensors")) if folder.is_dir() else []
    if not files:
        return "–"
    digest = blake2b(digest_size=HASH)
    try:
        if sum(file.stat().st_size for file in files) > MOST_WEIGHTS:
            return "too large"
        for file in files:
            digest.update(file.name.encode(errors="surrogateescape"))
            with file.open("rb") as stream:
                while chunk := stream.read(CHUNK):
                    digest.update(chunk)
    except OSError:
        return "cannot be read"
    return digest.hexdigest()


# configurations -------------------------------------------------------------------------------------------------------
def _configurations(source: ReportSource) -> Iterator[Block]:
    """One for each method and setting, of its first seed; those of other seeds differ in run.seed and run.out alone, or
    they would not be compared."""
    found: dict[tuple[str, str], ReportRun] = {}
    for run in source.runs:
        found.setdefault((run.label, run.setting), run)
    for (label, setting), run in list(found.items())[:MOST_CONFIGURATIONS]:
        words = f"{label}, {setting}" if setting else label
        text = to_toml(run.result.config)
        yield Details(f"Configuration of {words} (seed {run.seed})", (CodeBlock(text, shown(run.name)),))
    if len(found) > MOST_CONFIGURATIONS:
        yield Prose((f"{len(found) - MOST_CONFIGURATIONS} more are in the run directories (config.toml).",), muted=True)
