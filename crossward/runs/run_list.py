"""The runs below a folder: what run.json and summary.json say of each, what two of them differ in, and removing one.

A list of thousands must come at once. So nothing here imports torch, predictions are never walked, and what was read of
a finished run is kept in the user's cache until one of its two files changes. Of a run that is under way the end of
metrics.jsonl is read as well, for the number of its last round.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from crossward.core.metric_sum import metric_value
from crossward.disk import write_atomically
from crossward.errors import CrosswardError, StorageError
from crossward.names import nearest
from crossward.runs.protection import run_protection
from crossward.user_folders import cache_folder

FORMAT = 1  # of run directories, as runs/run_directory.py writes them; that module imports torch
MAX_DEPTH = 4  # folders of studies within folders of studies
HALF_WRITTEN = frozenset({"failed.json", "federation.json", "metrics.jsonl", "checkpoint", "partition.json"})
BROKEN = "broken"  # there is something of a run, but it cannot be read
FOREIGN = "not a run"
CACHE_VERSION = 1
ROUND_LINE = re.compile(rb'^\{"round": (\d+),.*\n', re.MULTILINE)
TAIL = 1 << 16  # bytes of metrics.jsonl that are read first
LONGEST_TAIL = 1 << 23


@dataclass(frozen=True)
class RunEntry:
    """One line of the list. What is not known is None."""

    folder: str
    name: str  # of the folder, below the folder that was listed
    status: str
    reason: str = ""  # why it failed, or cannot be read
    method: str | None = None
    data: str | None = None
    seed: int | None = None
    rounds: int | None = None  # that are done
    planned: int | None = None
    metric: str | None = None  # by which validation chose the best round: "f1, local view"
    best: float | None = None  # that metric on validation
    best_round: int | None = None
    created: str | None = None
    size: int | None = None  # bytes on disk, if they were asked for


def list_runs(root: Path, *, sizes: bool = False) -> list[RunEntry]:
    """Every run below a folder, and every folder in it that should be one and cannot be read; the newest first."""
    if not root.is_dir():
        raise StorageError(
            f"there is no folder {root}", hint="Name the folder of your runs: crossward runs DIR (default: runs)."
        )
    cached = _read_cache(root)
    kept: dict[str, Any] = {}
    entries = []
    for folder, status in _find(root):
        entry = RunEntry(str(folder), _relative(folder, root), *status) if status else None
        if entry is None:
            stamp = _stamp(folder)
            entry = _from_cache(cached.get(str(folder)), stamp) or read_run_entry(folder, root)
            if stamp and entry.status != BROKEN:
                kept[str(folder)] = {"stamp": stamp, "entry": asdict(entry)}
        entries.append(replace(entry, size=folder_size(folder)) if sizes else entry)
    if kept != cached:
        _write_cache(root, kept)
    return sorted(entries, key=lambda entry: (entry.created or "", entry.name), reverse=True)


def _find(root: Path) -> Iterator[tuple[Path, tuple[str, str] | None]]:
    """Folders of runs, in a study's folder as well; with status and reason where there is no run.json to read."""
    try:
        names = {item.name: item.is_dir() for item in os.scandir(root)}
    except OSError as error:
        raise StorageError(f"cannot read {root}: {error.strerror}") from error
    if "run.json" in names:
        yield root, None
        return
    for name in sorted(name for name, is_folder in names.items() if is_folder and not name.startswith(".")):
        found = list(_find_below(root / name, 1))
        yield from found or [(root / name, (FOREIGN, "there is no run.json in it, nor below it"))]


def _find_below(folder: Path, depth: int) -> Iterator[tuple[Path, tuple[str, str] | None]]:
    try:
        with os.scandir(folder) as items:
            names = {item.name: item.is_dir() for item in items}
    except OSError as error:
        yield folder, (BROKEN, f"cannot be read: {error.strerror}")
        return
    if "run.json" in names:
        yield folder, None
    elif HALF_WRITTEN & names.keys():
        yield folder, _half_written(folder)
    elif depth < MAX_DEPTH:
        for name in sorted(name for name, is_folder in names.items() if is_folder and not name.startswith(".")):
            yield from _find_below(folder / name, depth + 1)


def _half_written(folder: Path) -> tuple[str, str]:
    """Status and reason of a folder that a run began to write."""
    with suppress(StorageError):
        return "failed", str(_read(folder / "failed.json").get("error", "failed.json does not say why"))
    return BROKEN, "no run.json: it was cut off before round 1"


def read_run_entry(folder: Path, root: Path | None = None) -> RunEntry:
    """What run.json and summary.json say; an entry that says why, if they cannot be read."""
    name = _relative(folder, root or folder.parent)
    try:
        about = _read_about(folder)
        summary = _read(folder / "summary.json") if (folder / "summary.json").exists() else None
        return _entry(folder, name, about, summary)
    except StorageError as error:
        return RunEntry(str(folder), name, BROKEN, error.what)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        return RunEntry(str(folder), name, BROKEN, f"run.json or summary.json is not as crossward writes it: {error!r}")


def _entry(folder: Path, name: str, about: Mapping[str, Any], summary: Mapping[str, Any] | None) -> RunEntry:
    config = about["config"]
    metric = config["evaluate"]["select"] or about["task"]["main"]
    view = config["evaluate"]["view"]
    best = (summary or {}).get("best") or {}
    scores = best.get("metrics", {}).get("val", {}).get(view, {})
    value = metric_value(scores.get("mean", {}) if view == "local" else scores, metric)
    return RunEntry(
        folder=str(folder),
        name=name,
        status=str(about["status"]),
        reason=str(about.get("error", "")),
        method=about["method"]["name"],
        data=_data(config["data"], about["images"]["size"]),
        seed=config["run"]["seed"],
        rounds=summary["rounds"] if summary else last_round(folder / "metrics.jsonl"),
        planned=config["run"]["rounds"],
        metric=f"{metric}, {view} view",
        best=value,
        best_round=best.get("round"),
        created=about["created"],
    )


def _data(section: Mapping[str, Any], size: list[int]) -> str:
    """pbc 28x28; of a folder or a table its name as well."""
    given = section.get("kind") or section.get("name")
    if not given and section["source"] in ("folder", "table", "npz"):
        given = Path(str(section.get("path"))).name
    source = f"{section['source']} {given}" if given else section["source"]
    return f"{source} {size[0]}x{size[1]}"


def last_round(file: Path) -> int:
    """The number of the last whole line of metrics.jsonl; 0 if there is none."""
    try:
        length = file.stat().st_size
        tail = TAIL
        while True:
            with file.open("rb") as lines:
                lines.seek(max(0, length - tail))
                numbers = ROUND_LINE.findall(lines.read())
            if numbers or tail >= min(length, LONGEST_TAIL):
                return int(numbers[-1]) if numbers else 0
            tail *= 4
    except OSError:
        return 0


def folder_size(folder: Path) -> int:
    """Bytes of all files in a folder; what cannot be read counts nothing."""
    total = 0
    try:
        with os.scandir(folder) as items:
            for item in items:
                if item.is_dir(follow_symlinks=False):
                    total += folder_size(Path(item.path))
                else:
                    total += item.stat(follow_symlinks=False).st_size
    except OSError:
        return total
    return total


def size_by_part(folder: Path) -> dict[str, int]:
    """Bytes of each folder of a run (predictions, weights …), and of the files beside them."""
    sizes = {"files": 0}
    for item in sorted(os.scandir(folder), key=lambda item: item.name):
        if item.is_dir(follow_symlinks=False):
            sizes[item.name] = folder_size(Path(item.path))
        else:
            sizes["files"] += item.stat(follow_symlinks=False).st_size
    return sizes


# one run, two runs ----------------------------------------------------------------------------------------------------
def find_run(word: str, root: Path) -> Path:
    """The folder of a run that is named by its path, or by its name below `root`."""
    for folder in (Path(word), root / word):
        if (folder / "run.json").exists():
            return folder
    for folder in (Path(word), root / word):
        if folder.is_dir():
            raise StorageError(f"{folder} is not a run directory: it has no run.json")
    known = [_relative(folder, root) for folder, status in _find(root) if not status] if root.is_dir() else []
    raise StorageError(
        f"there is no run {word!r}, neither as a path nor below {root}",
        hint=nearest(word, known[:50]) if known else "List your runs by `crossward runs DIR`.",
    )


def run_folders(root: Path) -> list[Path]:
    """Every folder at or below `root` that has a run.json."""
    if not root.is_dir():
        raise StorageError(f"there is no folder {root}", hint="Name run directories, or folders of them.")
    return [folder for folder, status in _find(root) if status is None]


def read_documents(folder: Path) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """run.json, and summary.json if the run has ended."""
    about = _read_about(folder)
    return about, _read(folder / "summary.json") if (folder / "summary.json").exists() else None


def run_details(folder: Path) -> dict[str, Any]:
    """All facts shown of one run: its entry, run.json, summary.json if there is one, and what is on the disk."""
    entry = replace(read_run_entry(folder), size=folder_size(folder))
    summary = _read(folder / "summary.json") if (folder / "summary.json").exists() else None
    about = _read_about(folder)
    ended = folder / "privacy.json"  # what was spent; before a run's end, what is planned
    privacy = _read(ended) if ended.exists() else about.get("privacy", {})
    protection = run_protection(folder).words()
    more = {"about": about, "summary": summary, "sizes": size_by_part(folder)}
    return asdict(entry) | more | {"privacy": privacy, "protection": protection}


def config_differences(one: Path, other: Path) -> list[tuple[str, Any, Any]]:
    """Every key in which two runs were configured differently, with both values; method and plugins with all options.
    A key that one of them lacks is None there."""
    flat = [_flat(_configuration(_read_about(folder))) for folder in (one, other)]
    keys = dict.fromkeys([*flat[0], *flat[1]])
    return [(key, flat[0].get(key), flat[1].get(key)) for key in keys if flat[0].get(key) != flat[1].get(key)]


def _configuration(about: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return {**about["config"], "method": about["method"], "plugin": about["plugins"]}
    except KeyError as error:
        raise StorageError(f"a run.json holds no {error.args[0]!r}: it is not as crossward writes it") from None


def _flat(value: Any, key: str = "") -> dict[str, Any]:
    """a.b.c -> value; lists are values, but a list of tables, such as [[site]], has a key for each."""
    if isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
        value = {str(number): item for number, item in enumerate(value, 1)}
    if not isinstance(value, Mapping):
        return {key: value}
    flat: dict[str, Any] = {}
    for name, inner in value.items():
        flat |= _flat(inner, f"{key}.{name}" if key else str(name))
    return flat


# removing -------------------------------------------------------------------------------------------------------------
def refuse_to_remove(folder: Path) -> None:
    """Raise if the folder is no run, or if a process is running in it."""
    from filelock import FileLock, Timeout

    names = {item.name for item in os.scandir(folder)} if folder.is_dir() else set()
    if not names & {*HALF_WRITTEN, "run.json"}:
        raise StorageError(
            f"{folder} is not a run directory, so it is left alone", hint="List runs by `crossward runs`."
        )
    lock = folder / "checkpoint" / "lock"
    if not lock.exists():
        return
    try:
        with FileLock(lock, timeout=0):
            pass
    except Timeout:
        raise StorageError(f"a process is running {folder}", hint="Stop it first.") from None
    except OSError as error:
        raise StorageError(f"cannot tell whether a process is running {folder}: {error.strerror}") from error


def remove_run(folder: Path) -> None:
    """Remove a run directory. It loses its name first: one that a crash leaves half removed is no run."""
    refuse_to_remove(folder)
    doomed = folder.with_name(f".removed-{folder.name}-{os.getpid()}")
    try:
        folder.rename(doomed)
        shutil.rmtree(doomed)
    except OSError as error:
        raise StorageError(f"cannot remove {folder}: {error.strerror}") from error


# reading --------------------------------------------------------------------------------------------------------------
def _read_about(folder: Path) -> dict[str, Any]:
    about = _read(folder / "run.json")
    if about.get("format") != FORMAT:
        raise StorageError(f"run.json is of format {about.get('format')}; this crossward reads format {FORMAT}")
    return about


def _read(file: Path) -> dict[str, Any]:
    try:
        document = from_json(file.read_bytes())  # parses a summary in 60 % of the time that json takes
    except OSError as error:
        raise StorageError(f"cannot read {file.name}: {error.strerror}") from None
    except ValueError as error:
        raise StorageError(f"{file.name} is damaged: {error}") from None
    if not isinstance(document, dict):
        raise StorageError(f"{file.name} is damaged: it holds no JSON object")
    return document


def _relative(folder: Path, root: Path) -> str:
    return folder.name if folder == root else folder.relative_to(root).as_posix()


# the cache ------------------------------------------------------------------------------------------------------------
def _stamp(folder: Path) -> list[int]:
    """Time and size of run.json and summary.json; empty if there is no summary: such a run may be under way."""
    try:
        about = (folder / "run.json").stat()
        summary = (folder / "summary.json").stat()
    except OSError:
        return []
    return [about.st_mtime_ns, about.st_size, summary.st_mtime_ns, summary.st_size]


def _from_cache(known: Any, stamp: list[int]) -> RunEntry | None:
    if not stamp or not isinstance(known, dict) or known.get("stamp") != stamp:
        return None
    try:
        return RunEntry(**known["entry"])
    except (KeyError, TypeError):  # written by another version
        return None


def _cache_file(root: Path) -> Path:
    name = blake2b(str(root.absolute()).encode(), digest_size=12).hexdigest()
    return cache_folder() / "runs" / f"{name}.json"


def _read_cache(root: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        document = json.loads(_cache_file(root).read_bytes())
        if isinstance(document, dict) and document.get("version") == CACHE_VERSION and document.get("as") == str(root):
            entries = document["entries"]
            return entries if isinstance(entries, dict) else {}
    return {}


def _write_cache(root: Path, entries: Mapping[str, Any]) -> None:
    """A cache that cannot be written costs time, nothing else."""
    file = _cache_file(root)
    document = {"version": CACHE_VERSION, "as": str(root), "entries": entries}
    with suppress(OSError, CrosswardError):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, json.dumps(document).encode(), durable=False, contended=True)
