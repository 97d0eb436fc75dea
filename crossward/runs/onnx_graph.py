"""ONNX: a trained network as one graph, for programs that know nothing of crossward."""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from crossward import __version__
from crossward.core.bit_depth import PIXEL_TYPES
from crossward.core.image_size import sides
from crossward.disk import write_atomically
from crossward.errors import ConfigError
from crossward.runs.deployed import Deployed
from crossward.runs.parity import Parity, measure_parity

if TYPE_CHECKING:
    from onnx import ModelProto

INPUT = "pixels"  # (batch, H, W, C) uint8 or uint16
NO_GRAPH = (
    "A method that chooses between networks for each image, as fedsm does, has no such graph; `crossward predict` "
    "predicts with it."
)


def require_onnx() -> None:
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError:
        raise ConfigError(
            "exporting to ONNX needs more packages", hint='Run: pip install "crossward[export]"'
        ) from None


def write_onnx(network: Deployed, facts: Mapping[str, Any], images: Tensor, kind: str, file: Path) -> Parity:
    """Write the graph with `facts` as its metadata, once it predicts the images as the network does."""
    model = _graph(network)
    _remove_traces(model)
    parity = measure_parity(network, _probabilities_of(model), images, kind)
    _describe(model, dict(facts) | {"parity": parity.facts()})
    write_atomically(file, model.SerializeToString())
    return parity


@contextmanager
def quiet_torch() -> Iterator[None]:
    """Torch exports without a word: it warns of its own code and of packages that are not needed, and prints the whole
    graph before the error that we report."""
    logger = logging.getLogger("torch")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    unread = io.StringIO()
    try:
        with warnings.catch_warnings(), redirect_stdout(unread), redirect_stderr(unread):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _graph(network: Deployed) -> ModelProto:
    example = torch.zeros(2, *sides(network.size), network.channels, dtype=PIXEL_TYPES[network.depth])
    second = "class_map" if network.task == "segmentation" else "logits"
    try:
        with quiet_torch():
            program = torch.onnx.export(
                network.module(),
                (example,),
                dynamo=True,
                input_names=[INPUT],
                output_names=["probabilities", second],
                dynamic_shapes=({0: torch.export.Dim("batch", min=1)},),
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as error:
        raise ConfigError(
            "the network cannot be written as one graph", details=[root_cause(error)], hint=NO_GRAPH
        ) from None
    assert program is not None
    return program.model_proto


def _remove_traces(model: ModelProto) -> None:
    """The exporter notes with every node from which line of which file of this machine it comes."""
    for holder in (model.graph, *model.functions):
        del holder.metadata_props[:]
        for node in holder.node:
            del node.metadata_props[:]
            node.doc_string = ""
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        del value.metadata_props[:]


def _describe(model: ModelProto, facts: Mapping[str, Any]) -> None:
    """Every fact under its own key: text as it is, anything else as JSON."""
    model.producer_name = "crossward"
    model.producer_version = __version__
    model.doc_string = (
        f"{INPUT}: (batch, {', '.join(map(str, facts['size']))}, {facts['channels']}) {facts['dtype']}, "
        f"{facts['colour']}, normalised inside. docs/handover.md of crossward says what to do to an image file before."
    )
    del model.metadata_props[:]
    for key, value in facts.items():
        if value is not None:
            model.metadata_props.add(key=key, value=value if isinstance(value, str) else json.dumps(value))


def _probabilities_of(model: ModelProto) -> Any:
    import onnxruntime

    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])

    def probabilities(images: Tensor) -> Tensor:
        [values] = session.run(["probabilities"], {INPUT: np.ascontiguousarray(images.numpy())})
        return torch.from_numpy(values)

    return probabilities


def root_cause(error: BaseException) -> str:
    """The first line of the error from which the others followed."""
    while error.__cause__ is not None:
        error = error.__cause__
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
