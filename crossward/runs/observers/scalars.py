"""What a run tells other programs: numbers of a round, settings, and names that every program takes.

Numbers are those of metrics.jsonl. Nothing is of a patient: no image, no file name, no prediction.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from crossward.config.schema import Config
from crossward.foreign import printable

LONGEST_NAME = 80  # characters of a site's name
LONGEST_VALUE = 250  # characters of a setting
Scalars = dict[str, float]


def safe_names(names: Iterable[str]) -> dict[str, str]:
    """Each name as letters, digits, "-", "_" and "."; names that become the same are numbered."""
    safe: dict[str, str] = {}
    for name in dict.fromkeys(names):
        stem = re.sub(r"[^A-Za-z0-9_.-]", "_", name)[:LONGEST_NAME] or "_"
        candidate = stem
        number = 2
        while candidate in safe.values():
            candidate = f"{stem}-{number}"
            number += 1
        safe[name] = candidate
    return safe


def round_scalars(line: Mapping[str, Any], sites: Mapping[str, str]) -> Scalars:
    """The numbers of a line of metrics.jsonl, by names such as "test/global/f1"; `sites` has the safe name of each."""
    losses = {sites.get(name, "unknown"): value for name, value in line["loss"].items()}
    mean = {"mean": sum(losses.values()) / len(losses)} if losses else {}
    named = _with_safe_sites(line["metrics"] or {}, sites)
    return {
        **dict(_numbers("loss", mean)),
        **dict(_numbers("loss/sites", losses)),
        **{name: value for split in named for name, value in _numbers(split, named[split])},
        "traffic/bytes_down": float(line["bytes"]["down"]),
        "traffic/bytes_up": float(line["bytes"]["up"]),
        "round/seconds": float(line["seconds"]),
        "round/clients": float(len(line["clients"])),
        "round/failures": float(len(line["failures"])),
    }


def summary_scalars(best: Mapping[str, Any] | None, sites: Mapping[str, str]) -> Scalars:
    """The best round on validation, and its metrics over all sites."""
    if best is None:
        return {}
    scalars = round_scalars(best, sites)
    metrics = {name: value for name, value in scalars.items() if name.startswith(("val/", "test/"))}
    overall = {name: value for name, value in metrics.items() if "/sites/" not in name}
    return {"best/round": float(best["round"]), **{f"best/{name}": value for name, value in overall.items()}}


def hyperparameters(config: Config) -> dict[str, str | bool | int | float]:
    """Every setting but places on this machine, by names such as "train.lr"."""
    return dict(_settings("", config.model_dump(exclude={"observe": True, "run": {"name"}})))


def _with_safe_sites(metrics: Mapping[str, Any], sites: Mapping[str, str]) -> dict[str, Any]:
    renamed: dict[str, Any] = {}
    for split, views in metrics.items():
        local = views.get("local")
        by_site = {sites.get(name, "unknown"): scores for name, scores in local["sites"].items()} if local else {}
        renamed[split] = {**views, **({"local": {**local, "sites": by_site}} if local else {})}
    return renamed


def _numbers(name: str, value: Any) -> Iterator[tuple[str, float]]:
    """Floats below `name`; counts, lists by class and what is undefined are left out."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _numbers(f"{name}/{key}", inner)
    elif isinstance(value, float):
        yield name, value


def _settings(name: str, value: Any) -> Iterator[tuple[str, str | bool | int | float]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _settings(f"{name}.{printable(key, LONGEST_NAME)}".lstrip("."), inner)
    elif isinstance(value, list | tuple) and any(isinstance(inner, Mapping) for inner in value):
        yield from _settings(name, {str(place): inner for place, inner in enumerate(value)})
    elif isinstance(value, bool | int | float):
        yield name, value
    elif value is not None and not _names_a_place(value):
        yield name, printable(value, LONGEST_VALUE)


def _names_a_place(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_names_a_place, value))
    return isinstance(value, Path) or (isinstance(value, str) and Path(value).is_absolute())
