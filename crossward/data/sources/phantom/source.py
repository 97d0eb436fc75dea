"""Drawn on the spot: blood smears (8 classes) or polyps with masks, each hospital with its own style.

Procedural, seeded and licence-free images that look like what they name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from crossward.data.collection import Collection
from crossward.data.sources.phantom import blood as phantom_blood
from crossward.data.sources.phantom import polyp as phantom_polyp
from crossward.data.sources.settings import Loaded, SourceSettings
from crossward.errors import ConfigError
from crossward.settings import Count, NonNegative, Positive

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]
Paint = Callable[[int, Ints, Ints, np.random.Generator], tuple[Bytes, NDArray[np.generic]]]

SMALLEST = 24  # pixels along one side: below this a platelet is less than a pixel
SERVER = "global"  # how ids and patients of the server's own rows begin


class PhantomSettings(SourceSettings):
    source: Literal["phantom"] = "phantom"
    kind: Literal["blood", "polyp"] = "blood"
    sites: Count = 6
    train: Count = 300  # images a site has on average
    val: NonNegative = 60
    test: NonNegative = 60
    global_test: NonNegative = 400
    size: Count | None = None  # pixels; None: 28 for blood, 64 for polyp
    skew: Positive = 0.5  # Dirichlet parameter of the sites' class mix (blood)
    difficulty: Positive = 1.0
    seed: NonNegative = 0

    def load(self) -> Loaded:
        shared = self.model_dump(include={"sites", "train", "val", "test", "global_test", "seed", "difficulty"})
        if self.kind == "polyp":
            return polyp(size=self.size or 64, **shared), []
        return blood(size=self.size or 28, skew=self.skew, **shared), []


@dataclass(frozen=True)
class Part:
    """Images that were drawn together."""

    images: Bytes
    targets: NDArray[np.generic]
    ids: list[str]
    groups: list[str]
    site: str
    split: str


def blood(*, sites: int = 6, train: int = 300, val: int = 60, test: int = 60, global_test: int = 400, size: int = 28,
          seed: int = 0, skew: float = 0.5, difficulty: float = 1.0) -> Collection:  # fmt: skip
    """Eight kinds of blood cell; each hospital has its stain, its camera and its Dirichlet(skew) class mix."""
    counts = {"train": train, "val": val, "test": test}
    _check(sites, counts | {"global_test": global_test}, size, seed, {"skew": skew, "difficulty": difficulty})
    kinds = len(phantom_blood.CLASSES)
    styles = [phantom_blood.style(_rng(seed, k, "style"), difficulty) for k in range(sites)]

    def paint(site: int, labels: Ints, patients: Ints, rng: np.random.Generator) -> tuple[Bytes, Ints]:
        scene = phantom_blood.scene(labels, patients, styles[site].zoom, rng, difficulty)
        return phantom_blood.draw(scene, styles[site], size, rng), labels

    parts = []
    for k in range(sites):
        mix = _mix(kinds, skew, seed, k)
        labels = {s: _labels(n, mix, _rng(seed, k, f"labels {s}")) for s, n in _counts(counts, seed, k).items()}
        parts += _hospital(k, labels, seed, paint)
    turn = np.arange(global_test)
    parts += _server(turn % kinds, turn // kinds % sites, seed, paint)
    return _collection("phantom-blood", "classification", phantom_blood.CLASSES, parts)


def polyp(*, sites: int = 4, train: int = 100, val: int = 20, test: int = 30, global_test: int = 100, size: int = 64,
          seed: int = 0, difficulty: float = 1.0) -> Collection:  # fmt: skip
    """Polyps in colonoscopy frames, with their masks; each hospital has its endoscope and its sizes of polyps."""
    counts = {"train": train, "val": val, "test": test}
    _check(sites, counts | {"global_test": global_test}, size, seed, {"difficulty": difficulty})
    styles = [phantom_polyp.style(k, _rng(seed, k, "style"), difficulty) for k in range(sites)]

    def paint(site: int, _: Ints, patients: Ints, rng: np.random.Generator) -> tuple[Bytes, Bytes]:
        scene = phantom_polyp.scene(patients, styles[site], rng, difficulty)
        return phantom_polyp.draw(scene, styles[site], size, rng)

    parts = []
    for k in range(sites):
        labels = {s: np.ones(n, np.int64) for s, n in _counts(counts, seed, k).items()}
        parts += _hospital(k, labels, seed, paint)
    turn = np.arange(global_test)
    parts += _server(np.ones(global_test, np.int64), turn % sites, seed, paint)
    return _collection("phantom-polyp", "segmentation", phantom_polyp.CLASSES, parts)


def _check(sites: int, counts: dict[str, int], size: int, seed: int, positive: dict[str, float]) -> None:
    wrong = [f"sites = {sites}: at least 1"] if sites < 1 else []
    wrong += [f"{name} = {n}: 0 or more" for name, n in counts.items() if n < 0]
    wrong += [f"size = {size}: at least {SMALLEST} pixels"] if size < SMALLEST else []
    wrong += [f"seed = {seed}: 0 or more"] if seed < 0 else []
    wrong += [f"{name} = {value}: above 0" for name, value in positive.items() if not 0 < value < np.inf]
    if wrong:
        raise ConfigError("The phantom dataset cannot be drawn.", details=wrong, hint="Change these [data] options.")


def _rng(seed: int, site: int, use: str) -> np.random.Generator:
    """One stream per (seed, site, use): no hospital depends on how many others there are."""
    return np.random.default_rng([seed, site, int.from_bytes(blake2b(use.encode(), digest_size=8).digest())])


def _counts(average: dict[str, int], seed: int, site: int) -> dict[str, int]:
    """Images per split; of hospitals 1 and 2, 3 and 4, ... one has as many too many as the other too few."""
    surplus = _rng(seed, site // 2, "surplus").uniform(-0.4, 0.4) * (1 - 2 * (site % 2))
    return {split: n + int(np.sign(surplus)) * round(n * abs(surplus)) for split, n in average.items()}


def _mix(kinds: int, skew: float, seed: int, site: int) -> NDArray[np.float64]:
    """Dirichlet class shares; what is common moves on from hospital to hospital, so that each class is somewhere."""
    shares = np.sort(_rng(seed, site, "mix").dirichlet(np.full(kinds, skew)))[::-1]
    order = np.roll(_rng(seed, 0, "order").permutation(kinds), -3 * site)
    return shares[np.argsort(order)]


def _labels(n: int, mix: NDArray[np.float64], rng: np.random.Generator) -> Ints:
    """n classes in shares as near `mix` as whole images allow, at least two of two classes, shuffled."""
    edges = np.cumsum(mix)[:-1]
    labels = np.searchsorted(edges, (np.arange(n) + rng.random()) / max(n, 1), side="right")
    if np.sort(np.bincount(labels, minlength=len(mix)))[-2] < 2:
        first, second = np.argsort(mix)[:-3:-1]
        labels[:4] = np.array([first, second, first, second])[:n]
    return rng.permutation(labels).astype(np.int64)


def _hospital(site: int, labels: dict[str, Ints], seed: int, paint: Paint) -> list[Part]:
    name = f"hospital-{site + 1}"
    known = 0
    parts = []
    for split, own in labels.items():
        rng = _rng(seed, site, split)
        patients = _patients(len(own), rng)
        images, targets = paint(site, own, patients, rng)
        ids = [f"{name}/{split}/{row:04d}" for row in range(len(own))]
        groups = [f"{name}/patient-{known + p:04d}" for p in patients]
        parts.append(Part(images, targets, ids, groups, name, split))
        known += int(patients.max(initial=-1)) + 1
    return parts


def _patients(n: int, rng: np.random.Generator) -> Ints:
    """A patient number for each image, rising from 0: one to a few images in a row are of the same patient."""
    new = rng.random(n) < 0.4
    new[:1] = False
    return np.cumsum(new, dtype=np.int64)


def _server(labels: Ints, styles: Ints, seed: int, paint: Paint) -> list[Part]:
    """The global test set, one part per hospital style, of patients no hospital has."""
    parts = []
    for site in np.unique(styles):
        rows = np.flatnonzero(styles == site)
        images, targets = paint(int(site), labels[rows], np.arange(len(rows)), _rng(seed, int(site), SERVER))
        ids = [f"{SERVER}/test/{row:04d}" for row in rows]
        groups = [f"{SERVER}/patient-{row:04d}" for row in rows]
        parts.append(Part(images, targets, ids, groups, "", "test"))
    return parts


def _collection(name: str, task: str, classes: tuple[str, ...], parts: Sequence[Part]) -> Collection:
    images = np.concatenate([part.images for part in parts])
    return Collection(
        name=name,
        task=task,
        classes=classes,
        images=torch.from_numpy(images),
        targets=torch.from_numpy(np.concatenate([part.targets for part in parts])),
        ids=tuple(i for part in parts for i in part.ids),
        hashes=tuple(blake2b(image.tobytes(), digest_size=16).hexdigest() for image in images),
        groups=tuple(g for part in parts for g in part.groups),
        sites=tuple(part.site for part in parts for _ in part.ids),
        splits=tuple(part.split for part in parts for _ in part.ids),
    )
