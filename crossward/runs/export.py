"""Export: a trained network of a run as one ONNX graph, for programs that know nothing of crossward."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path

import torch

from crossward.errors import ConfigError
from crossward.runs.deployed import Deployed
from crossward.runs.result import load


def export_network(folder: Path, format: str, site: str | None, which: str, out: Path | None = None) -> Path:
    """Write the network of a run directory to `out` (default: a file beside the run's weights); the file's path."""
    if format != "onnx":
        raise ConfigError(f"cannot export to {format!r}", hint="Known: onnx.")
    _require_onnx()
    network = load(folder).deployed(site, which)
    file = out or folder / "weights" / (f"{which}-{site}.onnx" if site else f"{which}.onnx")
    try:
        _write_onnx(network, file)
    except torch.onnx.OnnxExporterError as error:
        raise ConfigError(
            f"the network of {folder} cannot be written as one graph",
            details=[_root_cause(error)],
            hint="A method that chooses between networks for each image, as fedsm does, has no such graph; "
            "`crossward predict` predicts with it.",
        ) from None
    return file


def _require_onnx() -> None:
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError:
        raise ConfigError(
            "exporting to ONNX needs more packages", hint='Run: pip install "crossward[export]"'
        ) from None


def _write_onnx(network: Deployed, file: Path) -> None:
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it warns about packages that are not needed
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch's, about its own code
        torch.onnx.export(
            network.module().eval(),
            (torch.zeros(2, network.channels, network.size, network.size),),
            str(file),
            dynamo=True,
            external_data=False,
            input_names=["pixels"],
            output_names=["probabilities"],
            dynamic_shapes=({0: torch.export.Dim("batch", min=1)},),
            verbose=False,
        )


def _root_cause(error: BaseException) -> str:
    """The first line of the error from which the others followed."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error).strip().splitlines()[0]
