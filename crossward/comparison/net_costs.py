"""Net costs: parameters and FLOPs of every net at its default options, side by side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import nn

from crossward.errors import ConfigError
from crossward.methods.mh_pflgb.bypass import classification_bypass, segmentation_bypass
from crossward.nets import NETS, build
from crossward.nets.cost import cost

TASKS = {"classification": 8, "segmentation": 2}  # with the classes that images have by default
BYPASS = "bypass (mh-pflgb)"  # what the sites of MH-pFLGB share in place of their nets
BYPASSES: dict[str, Callable[..., nn.Module]] = {
    "classification": classification_bypass,
    "segmentation": segmentation_bypass,
}


@dataclass(frozen=True)
class NetCost:
    name: str
    task: str
    channels: int
    classes: int
    size: int
    parameters: int | None = None
    buffers: int | None = None
    flops: int | None = None
    refused: str | None = None  # why the net cannot be built for such images; it has no numbers then


def net_costs(task: str, *, channels: int, classes: int | None, size: int) -> list[NetCost]:
    """The cost of every net of a task, and last of the bypass that MH-pFLGB shares."""
    builders: dict[str, Callable[..., nn.Module]] = {
        name: partial(build, name) for name, entry in NETS.items() if entry.task == task
    }
    builders[BYPASS] = BYPASSES[task]
    classes = classes or TASKS[task]
    return [
        _net_cost(name, task, builder, channels=channels, classes=classes, size=size)
        for name, builder in builders.items()
    ]


def _net_cost(
    name: str, task: str, builder: Callable[..., nn.Module], *, channels: int, classes: int, size: int
) -> NetCost:
    try:
        net = builder(channels=channels, classes=classes, size=size)
    except ConfigError as error:
        return NetCost(name, task, channels, classes, size, refused=error.what)
    counted = cost(net, channels, size)
    return NetCost(name, task, channels, classes, size, counted.parameters, counted.buffers, counted.flops)
