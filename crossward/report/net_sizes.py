"""The size of a run's network: parameters, and operations for one image."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from crossward.core.image_size import as_size, sides
from crossward.errors import CrosswardError
from crossward.nets import NETS, build
from crossward.nets.cost import cost
from crossward.report.source import ReportRun

GIGA = 1e9


@dataclass(frozen=True)
class NetSize:
    parameters: float | None  # of several networks, their mean
    gflops: float | None
    note: str = ""


def net_size(run: ReportRun) -> NetSize:
    """Of the network that run.json names; of several, the mean. People's own networks are not built, as that would run
    their code."""
    nets = list((run.about.get("nets") or {}).values()) or [run.about.get("net") or {}]
    sizes = [_size(json.dumps(net, sort_keys=True)) for net in nets if isinstance(net, Mapping)]
    known = [size for size in sizes if size is not None]
    if not known or len(known) < len(sizes):
        return NetSize(None, None, "the network is not one of Crossward's own")
    note = "" if len(known) == 1 else f"mean over {len(known)} networks"
    parameters, flops = (sum(each) / len(known) for each in zip(*known, strict=True))
    return NetSize(parameters, flops / GIGA, note)


@cache
def _size(net: str) -> tuple[int, int] | None:
    """Parameters and FLOPs; None if the network cannot be built from what is stored."""
    plan: dict[str, Any] = json.loads(net)
    if plan.get("name") not in NETS:
        return None
    try:
        size = as_size(*sides(plan["size"]))  # of the images that the network sees, already shrunk
        built = build(
            plan["name"], channels=plan["channels"], classes=plan["classes"], size=size, **plan.get("options", {})
        )
        counted = cost(built, plan["channels"], size)
    except (CrosswardError, KeyError, TypeError, ValueError):
        return None
    return counted.parameters, counted.flops
