"""Export: a trained network of a run as one ONNX graph, for programs that know nothing of us."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path

import torch
from rich.console import Console

from crossward.cli.runs import checked_which
from crossward.errors import ConfigError
from crossward.runs import lifecycle as api
from crossward.runs.deployed import Deployed


def export_network(folder: Path, to: str, site: str | None, which: str, out: Path | None) -> None:
    if to != "onnx":
        raise ConfigError(f"cannot export to {to!r}", hint="Known: onnx.")
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError:
        raise ConfigError(
            "exporting to ONNX needs more packages", hint='Run: pip install "crossward[export]"'
        ) from None
    result = api.load(folder)
    network = result.deployed(site, checked_which(which))
    place = out or folder / "weights" / f"{which}{f'-{site}' if site else ''}.onnx"
    try:
        _to_onnx(network, place)
    except torch.onnx.OnnxExporterError as error:
        raise ConfigError(
            f"the network of {folder} cannot be written as one graph",
            details=[_reason(error)],
            hint="A method that chooses between networks for each image, as fedsm does, has no such graph; "
            "`crossward predict` predicts with it.",
        ) from None
    Console().out(str(place), highlight=False)


def _to_onnx(network: Deployed, place: Path) -> None:
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it tells of packages that are not needed
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of torch about itself
        torch.onnx.export(
            network.module().eval(),
            (torch.zeros(2, network.channels, network.size, network.size),),
            str(place),
            dynamo=True,
            external_data=False,
            input_names=["pixels"],
            output_names=["probabilities"],
            dynamic_shapes=({0: torch.export.Dim("batch", min=1)},),
            verbose=False,
        )


def _reason(error: BaseException) -> str:
    """The first line of what went wrong first."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error).strip().splitlines()[0]
