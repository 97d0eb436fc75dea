"""The commands that need more than a list: each does its work through the Python API and shows it."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, TextIO

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from crossward.cli import progress
from crossward.comparison.reach import UNBOUNDED, Reach, reach, spread
from crossward.comparison.rows import compared, gain, signed, table
from crossward.config.reading import read
from crossward.core.run import Observer
from crossward.data.decode import is_image
from crossward.data.federation import Federation, save
from crossward.data.sources.collect import collect
from crossward.errors import ConfigError, DataError, Interrupted
from crossward.runs import lifecycle as api
from crossward.runs.build import partitioned, prepare
from crossward.runs.deployed import Deployed

PARTS = ("train", "val", "test")
SHOWN = 10  # of what was left out
INTERRUPTED = 130  # as shells say it


def run_file(file: Path, sets: Sequence[str], *, quiet: bool, as_json: bool, engine: str | None = None) -> None:
    flower = engine == "flower-sim"
    config = read(file, [*sets, *([] if engine is None or flower else [f"engine.name={engine}"])])

    def start(told: list[Observer]) -> api.Result:
        if not flower:
            return api.run(config, observers=told)
        from crossward.hospitals.flower.simulated_run import simulate

        return simulate(config)

    _show(start, config.method.name, quiet=quiet, as_json=as_json)


def resume_folder(folder: Path, sets: Sequence[str], *, quiet: bool, as_json: bool) -> None:
    label = api.load(folder).about["method"]["name"]
    _show(lambda told: api.resume(folder, sets, told), label, quiet=quiet, as_json=as_json)


def _show(start: Callable[[list[Observer]], api.Result], label: str, *, quiet: bool, as_json: bool) -> None:
    console = Console()
    with watched(console, label, quiet=quiet, as_json=as_json) as told:
        result = start(told)
    if as_json:
        console.out(json.dumps({"result": compared([result])[0], "summary": result.summary}), highlight=False)
        return
    if not quiet:
        for warning in result.about["warnings"]:
            console.print(f"[yellow]note:[/] {escape(warning)}")
        if result.summary["best"]:
            console.print(table([result], label))
    console.out(str(result.folder), highlight=False)


def join_run(folder: Path, site: str, sets: Sequence[str], *, quiet: bool, as_json: bool) -> None:
    from crossward.runs.join import join

    console = Console()
    again = f"Join again by: crossward join {folder} --site {site}"
    done = join(folder, site, sets, lambda label: watched(console, label, quiet=quiet, as_json=as_json, again=again))
    alone, joined = compared([done.alone, done.joined])
    if as_json:
        told = {"site": done.site, "alone": alone, "joined": joined, "gain": gain(alone, joined)}
        console.out(json.dumps(told | {"folder": str(done.joined.folder.parent)}), highlight=False)
        return
    if not quiet:
        for warning in done.joined.about["warnings"]:
            console.print(f"[yellow]note:[/] {escape(warning)}")
        console.print(table([done.alone, done.joined], f"{done.site}: alone, and having joined"))
        changes = [signed(by, name) for name, by in gain(alone, joined).items() if by is not None]
        console.print(f"By joining, on its own test set: {', '.join(changes)}", highlight=False, soft_wrap=True)
    console.out(str(done.joined.folder.parent), highlight=False)


@contextmanager
def watched(console: Console, label: str, *, quiet: bool, as_json: bool, again: str = "") -> Iterator[list[Observer]]:
    """Observers for a run; the terminal is given back however the run ends. `again`: what to do if it is interrupted,
    where it cannot be resumed."""
    told = progress.observer(console, label, quiet=quiet, as_json=as_json)
    try:
        yield told
    except Interrupted as stop:
        progress.stop(told)
        advice = again or f"Go on by: crossward resume {stop.folder}"
        Console(stderr=True).print(f"Interrupted. {advice}", markup=False, soft_wrap=True)
        raise SystemExit(INTERRUPTED) from None
    finally:
        progress.stop(told)


def inspect(file: Path, sets: Sequence[str], *, as_json: bool) -> None:
    prepared = prepare(read(file, sets))
    federation, console = prepared.federation, Console()
    counts = {site.name: _counts(federation, site.train) for site in federation.sites}
    if as_json:
        sizes = {
            s.name: {part: len(getattr(s, part)) for part in PARTS} for s in (*federation.sites, federation.server)
        }
        told = {"classes": federation.classes, "sites": sizes, "train": counts, "warnings": prepared.warnings}
        console.out(json.dumps(told | {"quarantined": prepared.quarantined}), highlight=False)
        return
    size = federation.collection.size
    unit = "images" if federation.task == "classification" else "pixels"
    collection = federation.collection
    title = f"{collection.name}: {len(collection)} images of {size[0]}x{size[1]}, training {unit} by class"
    made = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=0)
    made.add_column("site", style="bold", no_wrap=True)
    for name in (*PARTS, *federation.classes):  # a narrow screen cuts off on the right
        made.add_column(name, justify="right", overflow="fold", min_width=5)
    for site in (*federation.sites, *((federation.server,) if len(federation.server.test) else ())):
        row = [str(n or "·") for n in counts.get(site.name, [""] * len(federation.classes))]
        made.add_row(site.name, *(str(len(getattr(site, part)) or "·") for part in PARTS), *row)
    console.print(made)
    if len(federation.public):
        console.print(f"public pool: {len(federation.public)} images")
    aside = [f"left out: {q}" for q in prepared.quarantined[:SHOWN]]
    if len(prepared.quarantined) > SHOWN:
        aside.append(f"left out: {len(prepared.quarantined)} in all; --json lists them")
    for text in (*prepared.warnings, *aside):
        console.print(f"[yellow]note:[/] {escape(text)}", highlight=False)


def _counts(federation: Federation, rows: torch.Tensor) -> list[int]:
    targets = federation.collection.targets[rows].flatten().long()
    counts: list[int] = torch.bincount(targets, minlength=federation.num_classes).tolist()
    return counts


def split(file: Path, out: Path, sets: Sequence[str]) -> None:
    config = read(file, sets)
    collection, _ = collect(config)
    save(partitioned(config, collection), out)
    Console().out(f'{out}\nUse it with: partition.file = "{out}"', highlight=False)


def compare_reach(folders: Sequence[Path], asked: Mapping[str, Any], *, as_json: bool) -> None:
    console, target = Console(), asked["target"]
    with suppress(TypeError, ValueError):  # it is left out, or the name of a method
        target = float(target)
    found = reach(folders, **{**asked, "target": target})
    if as_json:
        console.out(json.dumps(found.document()), highlight=False)
        return
    for warning in found.warnings:
        console.print(f"[yellow]note:[/] {escape(warning)}", highlight=False)
    console.print(_reach_table(found))


def _reach_table(found: Reach) -> Table:
    measure, scale = found.measure, 1 if found.measure.metric in UNBOUNDED else 100
    end = f", the end of {found.target_of}" if found.target_of else ""
    aim = _spread([scale * target for target in found.targets], 2)
    title = f"Until {measure.metric} on {measure.split} ({measure.view} view) reached {aim}{end}"
    caption = (
        "Sent by the server and all clients until then; M: millions of parameters, 4 bytes each. "
        f"×: multiples of {found.reference}, by runs of the same seed. Means are over the runs that reached it."
    )
    made = Table(
        title=escape(title), title_justify="left", caption=escape(caption), caption_justify="left", box=SIMPLE_HEAD,
        padding=0,
    )  # fmt: skip
    made.add_column("method", style="bold", overflow="fold", min_width=10)
    for head in ("reached", "rounds", "×", "M up", "M down", "M sent", "MiB", "×", "best"):
        made.add_column(head, justify="right")
    for cost in found.costs:
        of = cost.numbers()
        made.add_row(
            escape(cost.method),
            f"{cost.reached}/{len(cost.runs)}",
            _spread(of["rounds"], 1 if len(of["rounds"]) > 1 else 0) if cost.reached else "not reached",
            _spread(of["times_rounds"]),
            *(_spread([n / 1e6 for n in of[name]]) for name in ("up", "down", "parameters")),
            _spread(of["mib"]),
            _spread(of["times_parameters"]),
            _spread([scale * value for value in of["best"]]),
        )
    return made


def _spread(numbers: Sequence[float], digits: int | None = None) -> str:
    """Mean and deviation; the larger, the fewer digits, unless they are given."""
    found = spread(numbers)
    if found is None:
        return "—"
    mean, deviation = found
    shown = digits if digits is not None else 2 if mean < 10 else 1 if mean < 100 else 0
    return f"{mean:.{shown}f}" + ("" if deviation is None else f" ±{deviation:.{shown}f}")


def predict_images(
    folder: Path, images: Sequence[Path], site: str | None, which: str, out: Path | None, masks: Path | None
) -> None:
    network = api.load(folder).deployed(site, checked_which(which))
    files = [file for given in images for file in _image_files(given)]
    if (network.task == "segmentation") != (masks is not None):
        told = "segments: say where the masks go with" if masks is None else "classifies, so it has no use for"
        raise ConfigError(f"this network {told} --masks")
    with open(out, "w", newline="") if out else nullcontext(sys.stdout) as stream:  # noqa: PTH123
        if masks is None:
            _write_probabilities(network, files, stream)
        else:
            _write_masks(network, files, stream, masks)


def _write_probabilities(network: Deployed, files: Sequence[Path], stream: TextIO) -> None:
    write = csv.writer(stream)
    write.writerow(["image", "predicted", *network.classes])
    for some, pixels, _ in network.read(files):
        for file, row in zip(some, network.predict(pixels), strict=True):
            write.writerow([file, network.classes[int(row.argmax())], *(f"{p:.6f}" for p in row.tolist())])


def _write_masks(network: Deployed, files: Sequence[Path], stream: TextIO, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write, taken = csv.writer(stream), set[str]()
    write.writerow(["image", "mask", *(f"share of {name}" for name in network.classes)])
    for some, pixels, sizes in network.read(files):
        for file, row, size in zip(some, network.predict(pixels), sizes, strict=True):
            place = folder / f"{_free_name(file, taken)}.png"
            network.mask(row, size).save(place)
            shares = torch.bincount(row.flatten(), minlength=len(network.classes)) / row.numel()
            write.writerow([file, place, *(f"{share:.6f}" for share in shares.tolist())])


def _free_name(file: Path, taken: set[str]) -> str:
    """The image's own name; images of one name in several folders are numbered."""
    name, number = file.stem, 2
    while name in taken:
        name, number = f"{file.stem}-{number}", number + 1
    taken.add(name)
    return name


def checked_which(which: str) -> str:
    if which not in ("best", "last"):
        raise ConfigError(f"--which {which!r}", hint="Known: best, last.")
    return which


def _image_files(given: Path) -> list[Path]:
    if given.is_dir():
        found = sorted(file for file in given.rglob("*") if is_image(file.name))
        if not found:
            raise DataError(f"there are no images in {given}")
        return found
    if not given.exists():
        raise DataError(f"there is no file {given}")
    return [given]
