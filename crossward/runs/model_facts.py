"""What a program must know of an exported network: its input, its output, what prepares images, where it is from."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from crossward import __version__
from crossward.core.image_size import sides
from crossward.core.pixel_range import brightest
from crossward.runs.deployed import Deployed
from crossward.runs.result import Result

OUTSIDE = (  # what the network expects to be done to an image file before it
    "turn it upright by its EXIF orientation",
    "bring it to `dtype` by its window, range or bits, RGB or grey as `colour` says",
    "cut out what `fit` says",
    "resize it to `size` by Pillow's BILINEAR",
    "apply the operations of `prepare` in order",
)


def model_facts(result: Result, network: Deployed, site: str | None, which: str) -> dict[str, Any]:
    """Nothing of the images of the run but their size: no names, no paths, no patients."""
    best = result.summary["best"]
    white = brightest(network.depth)
    return {
        "task": network.task,
        "classes": list(network.classes),
        "size": list(sides(network.size)),
        "channels": network.channels,
        "colour": colour_word(network.channels),
        "layout": "NHWC",
        "dtype": f"uint{network.depth}",
        "value_range": [0, white],
        "normalisation": {
            "mean": list(network.mean),
            "std": list(network.std),
            "of": f"pixels / {white}",
            "inside": True,
        },
        "shrink": network.shrink,
        "fit": network.fit,
        "prepare": list(network.prepare),
        "resize": "bilinear, antialiased (Pillow's BILINEAR)",
        "outside": list(OUTSIDE),
        "method": result.about["method"]["name"],
        "site": site if result.about["personal"] else None,
        "which": which,
        "round": best["round"] if which == "best" and best else result.summary["rounds"],
        "crossward": __version__,
        "trained_with": result.about["crossward"],
        "run_hash": run_hash(result),
        "weights_sha256": hashlib.sha256(result.weights_file(site, which).read_bytes()).hexdigest(),
    }


def colour_word(channels: int) -> str:
    return {1: "grey", 3: "RGB"}.get(channels, f"{channels} channels")


def run_hash(result: Result) -> str:
    """The same for runs of the same configuration on the same partition of the same images."""
    about = {"config": _without_places(result.config), "partition": result.partition.get("hash")}
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


def _without_places(config: dict[str, Any]) -> dict[str, Any]:
    """Without the settings that change nothing in a run: its place, its name, who computes it and who observes it."""
    engine = ("name", "workers", "memory_mib", "device_images_mib")
    idle = {"run": ("out", "name"), "data": ("path", "root"), "engine": engine}
    kept = {name: section for name, section in config.items() if name not in ("observe", "checkpoint")}
    for name, keys in idle.items():
        kept[name] = {key: value for key, value in config[name].items() if key not in keys}
    return kept


def headline_metrics(result: Result) -> dict[str, float]:
    """The test metrics of the best round that are single numbers; of one set for all, else the mean over sites."""
    best = result.summary["best"]
    views = best["metrics"].get("test", {}) if best else {}
    metrics = views.get("global") or views.get("local", {}).get("mean", {})
    return {name: value for name, value in metrics.items() if isinstance(value, float)}
