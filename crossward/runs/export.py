"""Export: a trained network of a run in a format that other programs run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from crossward.errors import ConfigError
from crossward.names import nearest
from crossward.runs.model_facts import model_facts
from crossward.runs.monai_bundle import write_bundle
from crossward.runs.onnx_graph import require_onnx, write_onnx
from crossward.runs.parity import Parity, parity_images
from crossward.runs.result import load

ENDINGS = {"onnx": ".onnx", "monai-bundle": "-monai-bundle"}  # format -> what its file or folder is called at the end


@dataclass(frozen=True)
class Exported:
    path: Path
    parity: Parity


def export_network(folder: Path, format: str, site: str | None, which: str, out: Path | None = None) -> Exported:
    """Write the network of a run directory to `out` (default: beside the run's weights), and compare what was written
    with it."""
    if format not in ENDINGS:
        raise ConfigError(f"cannot export to {format!r}", hint=nearest(format, ENDINGS))
    if format == "onnx":
        require_onnx()
    result = load(folder)
    network = result.deployed(site, which)
    stem = f"{which}-{site}" if site else which
    path = out or folder / "weights" / f"{stem}{ENDINGS[format]}"
    images, kind = parity_images(result, network, site)
    facts = model_facts(result, network, site, which)
    if format == "onnx":
        return Exported(path, write_onnx(network, facts, images, kind, path))
    return Exported(path, write_bundle(result, network, facts, images, kind, path))
