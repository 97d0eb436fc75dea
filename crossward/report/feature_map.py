"""A map of test features: t-SNE of what stands in front of a network's head, computed once and stored in the cache."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch

from crossward.core.seeds import derive
from crossward.disk import write_atomically
from crossward.report.run_images import features, images_by_holder, open_images
from crossward.report.source import ReportRun
from crossward.user_folders import cache_folder

MOST_POINTS = 2000
FEWEST_POINTS = 10
PERPLEXITY = 30
VERSION = 1  # of what is stored


@dataclass(frozen=True)
class FeatureMap:
    """Points of test images, in no unit."""

    x: tuple[float, ...]
    y: tuple[float, ...]
    labels: tuple[int, ...]  # the class, or first label; of a segmentation, 1 where there is something to segment
    sites: tuple[str, ...]
    images: int  # that there are; points are drawn from them


def stored_map(run: ReportRun) -> FeatureMap | None:
    """The map of a run if it was computed before, from the same weights and images."""
    try:
        document = json.loads(_file(run).read_text())
        return FeatureMap(
            tuple(map(float, document["x"])),
            tuple(map(float, document["y"])),
            tuple(map(int, document["labels"])),
            tuple(map(str, document["sites"])),
            int(document["images"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def compute_map(run: ReportRun) -> FeatureMap | None:
    """The map, from the images; None if there are too few. Raises CrosswardError if they are not there."""
    from sklearn.manifold import TSNE

    network = run.result.deployed()
    holders = images_by_holder(open_images(run))
    images = torch.cat([each.images for each in holders])
    sites = [each.holder for each in holders for _ in range(len(each.images))]
    labels = [_label(target) for each in holders for target in each.targets]
    if len(images) < FEWEST_POINTS:
        return None
    rng = torch.Generator().manual_seed(derive(run.seed, "feature map"))
    rows = sorted(torch.randperm(len(images), generator=rng)[:MOST_POINTS].tolist())
    z = features(network, images[rows]).double().numpy()
    perplexity = min(PERPLEXITY, (len(rows) - 1) / 3)
    points = TSNE(2, perplexity=perplexity, init="pca", random_state=0).fit_transform(z)
    found = FeatureMap(
        tuple(round(float(value), 2) for value in points[:, 0]),
        tuple(round(float(value), 2) for value in points[:, 1]),
        tuple(labels[row] for row in rows),
        tuple(sites[row] for row in rows),
        len(images),
    )
    _store(run, found)
    return found


def _label(target: Any) -> int:
    """The class, of several labels the first (-1: none), of a mask whether there is something to segment."""
    if target.ndim == 1:
        return int(target.argmax()) if target.any() else -1
    return int(target) if target.ndim == 0 else int((target > 0).any())


def _file(run: ReportRun) -> Path:
    """Under the hash of the weights and of the partition, so that a run that is repeated elsewhere finds it as well."""
    digest = blake2b(f"{VERSION} {run.partition['hash']}".encode(), digest_size=12)
    weights = run.result.weights_file(None, "best")
    try:
        digest.update(weights.read_bytes())
    except OSError:
        digest.update(str(weights).encode())
    return cache_folder() / "reports" / f"features-{digest.hexdigest()}.json"


def _store(run: ReportRun, found: FeatureMap) -> None:
    file = _file(run)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, json.dumps(asdict(found)).encode(), durable=False)
