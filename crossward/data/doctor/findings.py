"""Findings: what should be known of images before they are trained on, and the setting that deals with each."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from crossward.core.bit_depth import grey_levels
from crossward.data.collection import Collection
from crossward.data.copies import left_out
from crossward.data.doctor.layout import Layout, Reading
from crossward.data.near_duplicates import near_pairs
from crossward.data.near_leaks import other_pixels
from crossward.data.stored_hashes import collection_hashes
from crossward.data.table_columns import toml_value
from crossward.foreign import printable

if TYPE_CHECKING:
    from crossward.data.doctor.file_scan import FileFacts

SHOWN = 5  # names in a finding
LONGEST_SETTING = 160  # characters
SAMPLE = 2000  # images whose values are looked at
IS_SET = "is set"
DEALT_WITH = ("duplicates", "shared_groups", "splits", "bad_files")  # settings that are there for a finding
RARE = 0.1  # share below which an orientation is an outlier
COLOURS_APART = 30.0  # grey levels between the mean colour of a site and that of the others
SMALL_CLASS = 10  # images
DEEP_MODES = frozenset({"L", "1", "I", "I;16", "I;16B"})  # of Pillow: what data.depth = 16 reads, in grey
MISNAMED = "have the extension of another format"  # as decoding says it, too


@dataclass(frozen=True)
class Finding:
    """One thing that a person should know, and what deals with it."""

    what: str
    deal: str  # the setting, or the command
    examples: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        return asdict(self)


def of_layout(layout: Layout, draft: Reading) -> list[Finding]:
    """What of the layout a person should know, and what was set because of it."""
    found = [Finding(remark.what, remark.deal) for remark in layout.remarks]
    said = " ".join(remark.deal for remark in layout.remarks)
    for key in layout.reasons:
        if key in draft.settings and f"data.{key} " not in said:
            value = printable(toml_value(draft.settings[key]), LONGEST_SETTING)
            found.append(Finding(draft.reasons[key], f"data.{key} = {value} {IS_SET}"))
    if layout.misnamed:
        what = f"{len(layout.misnamed)} file(s) {MISNAMED}"
        found.append(Finding(what, "nothing to do: they are read by their content", layout.misnamed[:SHOWN]))
    return found


def joined(about_files: Sequence[Finding], about_images: Sequence[Finding], data: Mapping[str, Any]) -> list[Finding]:
    """All findings, each once; those that a setting of the configuration deals with say so."""
    once = [one for one in about_files if MISNAMED not in one.what or not any(MISNAMED in o.what for o in about_images)]
    settings = [f"data.{key} = {toml_value(data[key])}" for key in DEALT_WITH if key in data]
    found = []
    for one in (*once, *about_images):
        is_done = not one.deal.endswith(IS_SET) and any(setting in one.deal for setting in settings)
        found.append(replace(one, deal=f"{one.deal}; it is set") if is_done else one)
    return found


def of_files(files: FileFacts, data: Mapping[str, Any]) -> list[Finding]:
    """Of the files as such; `data` is the section that reads them."""
    found = []
    if files.modes and {*files.bits} - {"1 bits", "8 bits"}:
        said = f", values up to {files.largest}" if files.largest else ""
        what = f"bits of a channel: {', '.join(f'{bits} {n}' for bits, n in files.bits.items())}{said}"
        deal = 'data.prepare = ["range:percentiles"], or ["range:bits:12"], if images are dark'
        found.append(Finding(what, "data.prepare is set in the configuration" if "prepare" in data else deal))
    if files.fine and {*files.modes} <= DEEP_MODES:
        what = f"{files.fine} of {files.measured} images looked into have more than 256 grey levels: 8 bits keep 256"
        found.append(Finding(what, "data.depth = 16 keeps them, in twice the memory and disk"))
    if files.turned:
        what = f"{len(files.turned)} picture(s) were taken with a turned camera (EXIF)"
        found.append(Finding(what, "nothing to do: they are turned upright", files.turned[:SHOWN]))
    few = min(files.portrait, files.landscape)
    if few and few < RARE * (files.portrait + files.landscape):
        name = "portrait" if files.portrait < files.landscape else "landscape"
        found.append(Finding(f"{few} image(s) are {name}, unlike the others", "turn them, or take them out"))
    if files.links_out:
        what = f"{len(files.links_out)} file(s) are links that lead out of the folder: they are not read"
        found.append(
            Finding(
                what,
                "copy them into the folder, or set CROSSWARD_DATA to a folder that holds both",
                files.links_out[:SHOWN],
            )
        )
    return found


def of_collection(collection: Collection, bad: Sequence[str], data: Mapping[str, Any]) -> list[Finding]:
    """Of the images that can be used, and of those that cannot; `data` is the section that reads them."""
    found = []
    if spellings := data.get("rename"):
        names = ", ".join(f"{label} = {usual}" for label, usual in list(spellings.items())[:SHOWN])
        found.append(Finding(f"classes in two spellings: {names}", "data.rename is set in the configuration"))
    if bad:
        what = f"{len(bad)} of {len(bad) + len(collection)} files cannot be used{_by_site(bad)}"
        found.append(Finding(what, 'data.bad_files = "quarantine" leaves them out', tuple(bad[:SHOWN])))
    found += _of_copies(collection)
    found += _of_near(collection)
    if groups := groups_across(collection):
        found.append(
            Finding(
                f"{groups} patient(s) are on both sides of the split",
                'data.shared_groups = "drop", or data.splits = "ignore" to split anew by patient',
            )
        )
    if collection.groups is None:
        found.append(
            Finding(
                "nothing says which images are of one patient: the same may be trained and tested on",
                _group_setting(data),
            )
        )
    if sides := collection.attributes.get("laterality"):
        named = ", ".join(f"{side} {n}" for side, n in sorted(Counter(sides.values()).items()))
        deal = 'no "hflip" in data.augment if the side matters: images are never mirrored when they are read'
        found.append(Finding(f"files say which side of the body they show: {named}", deal))
    found += _of_classes(collection)
    found += _of_colours(collection)
    return [*found, *map(_of_note, collection.notes)]


def _group_setting(data: Mapping[str, Any]) -> str:
    """The setting that names patients, in the source that reads the images."""
    pattern = r'data.group = "…", a pattern on the path, as in "patient(\d+)"'
    if data["source"] == "table":
        return f'data.columns = {{ group = "…" }}, the column of patients, or {pattern}'
    return pattern if data["source"] == "folder" else "a table with a column of patients, if they are known"


def _by_site(bad: Sequence[str]) -> str:
    """How many of the files that cannot be used are of which site, where that is known."""
    sites = Counter(found[1] for line in bad if (found := re.search(r" \(site ([^()]+)\)$", line)))
    return f" ({', '.join(f'{site} {n}' for site, n in sorted(sites.items()))})" if sites else ""


def _of_note(note: str) -> Finding:
    """What was noted while images were read; the setting that it names deals with it, its first files are examples."""
    what, _, first = note.partition("; first: ")
    what, *setting = re.split(r"[;:] set (?:data\.)?", what, maxsplit=1)
    deal = f"data.{setting[0]}" if setting else "nothing to do, if this is intended"
    return Finding(what, deal, tuple(first.split(", ")[:SHOWN]) if first else ())


def copies_across(collection: Collection) -> int:
    """Images with the same pixels on both sides of the split that the data name."""
    sides = _sides_by_key(collection, collection.hashes)
    return sum(len(parts) > 1 for parts in sides.values())


def groups_across(collection: Collection) -> int:
    """Groups that are trained on and tested on in the split that the data name."""
    sides = _sides_by_key(collection, collection.groups or ())
    return sum({"train", "test"} <= parts for parts in sides.values())


def _sides_by_key(collection: Collection, keys: Sequence[str]) -> dict[str, set[str]]:
    sides: dict[str, set[str]] = defaultdict(set)
    for key, part in zip(keys, collection.splits or (), strict=False):
        if key:
            sides[key].add(part or "train")
    return sides


def _of_copies(collection: Collection) -> list[Finding]:
    gone = left_out({"duplicates": "drop"}, collection)
    found = []
    across = copies_across(collection)
    if gone.copies:
        names = tuple(collection.ids[row] for row in gone.copies[:SHOWN])
        where = f", {across} image(s) on both sides of the split" if across else ""
        what = f"{len(gone.copies)} image(s) are copies of others, to the pixel{where}"
        found.append(Finding(what, 'data.duplicates = "drop" (splits that are made here keep copies together)', names))
    if gone.contradictions:
        names = tuple(collection.ids[row] for row in gone.contradictions[:SHOWN])
        what = f"{len(gone.contradictions)} image(s) are there with two different labels"
        found.append(Finding(what, 'correct them; data.duplicates = "drop" leaves all of them out', names))
    return found


def _of_near(collection: Collection) -> list[Finding]:
    pairs = near_pairs(collection_hashes(collection), other_pixels(collection))
    if not pairs:
        return []
    parts = collection.splits or ("",) * len(collection)
    across = sum((parts[pair.a] or "train") != (parts[pair.b] or "train") for pair in pairs)
    names = tuple(f"{collection.ids[pair.a]} ~ {collection.ids[pair.b]}" for pair in pairs[:SHOWN])
    where = f", {across} of them across the split" if across else ""
    return [
        Finding(
            f"{len(pairs)} pair(s) of images are almost the same{where}",
            "a group for both keeps them on one side: a column group, or data.group",
            names,
        )
    ]


def _of_classes(collection: Collection) -> list[Finding]:
    if collection.task != "classification" or collection.targets.ndim > 1:
        return []
    counts = Counter(collection.targets.tolist())
    small = [
        f"{name} ({counts[number]})" for number, name in enumerate(collection.classes) if counts[number] < SMALL_CLASS
    ]
    found = []
    if small:
        what = f"classes with fewer than {SMALL_CLASS} images: {', '.join(small[:SHOWN])}"
        found.append(Finding(what, "collect more, or join classes; each site may lack them"))
    return found


def _of_colours(collection: Collection) -> list[Finding]:
    """Values of all images, and sites whose mean colour is far from that of the others."""
    step = max(1, len(collection) // SAMPLE)
    images = grey_levels(collection.images[::step])
    means = images.mean((1, 2))  # (n, C)
    found = []
    spread = images.amax((1, 2, 3)) - images.amin((1, 2, 3))
    if empty := int((spread < 4).sum()):
        found.append(Finding(f"{empty} of {len(images)} images looked at show nothing (one value)", "take them out"))
    dark = float((images.amax((1, 2, 3)) < 64).float().mean())
    if dark > 0.5:
        what = f"{dark:.0%} of the images are almost black"
        found.append(Finding(what, 'data.prepare = ["range:percentiles"]'))
    if collection.sites is None:
        return found
    sites = np.asarray(collection.sites)[::step]
    for site in sorted({*sites.tolist()} - {""}):
        own, others = means[sites == site], means[sites != site]
        if len(own) and len(others) and float((own.mean(0) - others.mean(0)).abs().max()) > COLOURS_APART:
            what = f"the colours of site {site} are far from those of the others"
            found.append(Finding(what, 'data.prepare = ["shades-of-grey"] for colour, or a method for feature shift'))
    return found
