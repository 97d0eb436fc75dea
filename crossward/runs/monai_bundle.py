"""MONAI bundle: a trained network as a folder that MONAI's tools run, with what prepares images for it.

configs/metadata.json     what the network is, its input and its output
configs/inference.json    `python -m monai.bundle run --config_file configs/inference.json --dataset_dir IMAGES`
models/model.ts, .pt      TorchScript (normalisation and softmax inside), its weights, and the names of the classes
scripts/                  the code that decoded the training images, and a loop that writes a CSV
docs/README.md, license.txt, LICENSE
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from importlib import metadata, resources
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from crossward.core.image_size import sides
from crossward.disk import cannot_write
from crossward.errors import ConfigError, StorageError
from crossward.foreign import printable
from crossward.names import module_source
from crossward.runs.deployed import Deployed
from crossward.runs.model_facts import colour_word, headline_metrics
from crossward.runs.onnx_graph import NO_GRAPH, quiet_torch, root_cause
from crossward.runs.parity import Parity, measure_parity
from crossward.runs.result import Result
from crossward.tasks import multi_label

SCHEMA = "https://project-monai.github.io/schema/meta_schema_20240725.json"  # the name of a format: nothing is fetched
CLASSES = "classes.json"  # beside the network: MONAI evaluates what a configuration holds, and names come from folders
EVALUATED = ("$", "@", "%")  # what MONAI calculates, looks up or reads from a file, wherever a text begins with it
COPIED = {  # module -> its name in the bundle
    "crossward.errors": "errors",
    "crossward.core.image_size": "image_size",
    "crossward.core.pixel_range": "pixel_range",
    "crossward.data.archives": "archives",
    "crossward.data.decode": "decode",
    "crossward.data.dicom_orientation": "dicom_orientation",
    "crossward.data.dicom_pixels": "dicom_pixels",
    "crossward.data.dicom_reading": "dicom_reading",
    "crossward.data.file_format": "file_format",
    "crossward.data.masks": "masks",
    "crossward.data.picture_range": "picture_range",
    "crossward.data.prepare": "prepare",
    "crossward.data.value_range": "value_range",
    "crossward.data.volumes": "volumes",
    "crossward.user_folders": "user_folders",
    "crossward.runs.bundle_scripts.transforms": "transforms",
    "crossward.runs.bundle_scripts.inference": "inference",
}
LICENCE = """The code in scripts/ is part of Crossward, licensed under the Apache License, Version 2.0
(https://www.apache.org/licenses/LICENSE-2.0).

The licence of the network in models/ is for those to state who trained it, and depends on the images it was trained on:
replace this paragraph before you pass the bundle on.
"""


def write_bundle(
    result: Result, network: Deployed, facts: Mapping[str, Any], images: Tensor, kind: str, folder: Path
) -> Parity:
    """Write the bundle, once its network predicts the images as the network of the run does."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise StorageError(f"{folder} exists", hint="Remove it, or name another folder with --out.")
    script = _torchscript(network)
    parity = measure_parity(network, lambda some: script(_channels_first(some)), images, kind)
    about = _metadata(result, network, dict(facts) | {"parity": parity.facts()})
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as place:
            bundle = Path(place) / "bundle"
            _write_files(bundle, script, about, network, result)
            if folder.exists():
                folder.rmdir()
            shutil.move(bundle, folder)
    except OSError as error:
        raise cannot_write(folder, error) from error
    return parity


class _ChannelsFirst(nn.Module):
    """(B, C, H, W) pixels from 0 to white, of any type, to probabilities: MONAI's order of dimensions."""

    def __init__(self, whole: nn.Module) -> None:
        super().__init__()
        self.whole = whole

    def forward(self, image: Tensor) -> Tensor:
        probabilities: Tensor = self.whole(image.permute(0, 2, 3, 1))[0]
        return probabilities


def _channels_first(images: Tensor) -> Tensor:
    return images.permute(0, 3, 1, 2).float()


def _torchscript(network: Deployed) -> torch.jit.ScriptModule:
    whole = _ChannelsFirst(network.module()).eval()
    example = torch.zeros(2, network.channels, *sides(network.size))
    try:  # tracing would silently keep one branch of a network that chooses by image: torch.export refuses such
        with quiet_torch():
            torch.export.export(whole, (example,), dynamic_shapes=({0: torch.export.Dim("batch", min=1)},))
    except Exception as error:  # torch raises errors of many kinds here: all say that there is no single graph
        raise ConfigError(
            "the network cannot be written as one graph", details=[root_cause(error)], hint=NO_GRAPH
        ) from None
    with quiet_torch(), torch.no_grad():  # it warns that TorchScript is old, which bundles hold, and of fixed sizes
        script = torch.jit.trace(whole, (example,))
    assert isinstance(script, torch.jit.ScriptModule)
    return script


def _write_files(
    bundle: Path, script: torch.jit.ScriptModule, about: Mapping[str, Any], network: Deployed, result: Result
) -> None:
    for name in ("configs", "models", "docs", "scripts"):
        (bundle / name).mkdir(parents=True)
    text = json.dumps(inert(about), indent=4)
    (bundle / "configs" / "metadata.json").write_text(text + "\n")
    (bundle / "configs" / "inference.json").write_text(json.dumps(_inference(network), indent=4) + "\n")
    with quiet_torch():
        torch.jit.save(script, str(bundle / "models" / "model.ts"), _extra_files={"metadata.json": text.encode()})
    torch.save(script.state_dict(), bundle / "models" / "model.pt")
    (bundle / "models" / CLASSES).write_text(json.dumps(list(network.classes)) + "\n")
    (bundle / "docs" / "README.md").write_text(_readme(result, about), encoding="utf-8")
    (bundle / "docs" / "license.txt").write_text(LICENCE)
    (bundle / "LICENSE").write_text(LICENCE)
    (bundle / "scripts" / "__init__.py").write_text("")
    for module, name in COPIED.items():
        (bundle / "scripts" / f"{name}.py").write_text(_standing_alone(module), encoding="utf-8")


def inert(value: Any) -> Any:
    """The same with an apostrophe before every text that MONAI would evaluate."""
    if isinstance(value, Mapping):
        return {key: inert(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [inert(inner) for inner in value]
    return f"'{value}" if isinstance(value, str) and value.lstrip().startswith(EVALUATED) else value


def _standing_alone(module: str) -> str:
    """The source of a module that imports the others of the bundle in place of crossward's."""
    source = module_source(module)
    for other, name in COPIED.items():
        source = source.replace(f"from {other} import", f"from .{name} import")
    return source


def _metadata(result: Result, network: Deployed, facts: Mapping[str, Any]) -> dict[str, Any]:
    classes = {str(k): name for k, name in enumerate(network.classes)}
    segments = network.task == "segmentation"
    height, width = sides(network.size)
    return {
        "schema": SCHEMA,
        "version": "1.0.0",
        "changelog": {"1.0.0": "exported by crossward"},
        "monai_version": metadata.version("monai"),
        "pytorch_version": metadata.version("torch").split("+")[0],
        "numpy_version": metadata.version("numpy"),
        "required_packages_version": {"pillow": metadata.version("pillow")},
        "name": f"{facts['method']} {network.task}",
        "task": f"{network.task} of images ({colour_word(network.channels)}) into {len(classes)} classes",
        "description": f"A network trained by federated learning ({facts['method']}) with crossward.",
        "authors": "not stated: the authors must supply this",
        "copyright": "not stated: the authors must supply this",
        "intended_use": "Research. Not for diagnosis without a validation of its own.",
        "eval_metrics": headline_metrics(result),
        "crossward": dict(facts),
        "network_data_format": {
            "inputs": {
                "image": {
                    "type": "image",
                    "format": "magnitude",
                    "modality": "n/a",
                    "num_channels": network.channels,
                    "spatial_shape": [height, width],
                    "dtype": "float32",
                    "value_range": list(facts["value_range"]),
                    "is_patch_data": False,
                    "channel_def": _channel_names(network.channels),
                }
            },
            "outputs": {
                "pred": {
                    "type": "image" if segments else "probabilities",
                    "format": "classes",
                    "num_channels": len(classes),
                    "spatial_shape": [height // network.shrink, width // network.shrink] if segments else [],
                    "dtype": "float32",
                    "value_range": [0, 1],
                    "is_patch_data": False,
                    "channel_def": classes,
                }
            },
        },
    }


def _channel_names(channels: int) -> dict[str, str]:
    known = {1: ("grey",), 3: ("red", "green", "blue")}
    numbered = tuple(f"channel {number}" for number in range(1, channels + 1))
    return {str(k): name for k, name in enumerate(known.get(channels, numbered))}


def _inference(network: Deployed) -> dict[str, Any]:
    reading = {
        "size": network.size,
        "channels": network.channels,
        "fit": network.fit,
        "prepare": list(network.prepare),
        "depth": network.depth,
    }
    masks = {"masks": "$@bundle_root + '/masks'"} if network.task == "segmentation" else {}
    discrete: dict[str, Any] = {"argmax": True}
    if network.task == multi_label.NAME:
        discrete = {"threshold": multi_label.THRESHOLD}
    evaluated = ("dataloader", "network", "inferer", "postprocessing", "classes", "output", "device")
    return {
        "imports": ["$import torch"],
        "bundle_root": ".",
        "dataset_dir": "images",
        "output": "$@bundle_root + '/predictions.csv'",
        "device": "$torch.device('cuda' if torch.cuda.is_available() else 'cpu')",
        "classes": f"$@bundle_root + '/models/{CLASSES}'",
        "network_def": "$torch.jit.load(@bundle_root + '/models/model.ts', map_location=@device)",
        "network": "$@network_def.to(@device).eval()",
        "preprocessing": {
            "_target_": "Compose",
            "transforms": [{"_target_": "scripts.transforms.ReadImaged", "keys": "image", **reading}],
        },
        "dataset": {
            "_target_": "Dataset",
            "data": {"_target_": "scripts.transforms.list_images", "folder": "@dataset_dir"},
            "transform": "@preprocessing",
        },
        "dataloader": {"_target_": "DataLoader", "dataset": "@dataset", "batch_size": 16, "num_workers": 0},
        "inferer": {"_target_": "SimpleInferer"},
        "postprocessing": {
            "_target_": "Compose",
            "transforms": [{"_target_": "AsDiscreted", "keys": "label", **discrete}],
        },
        "evaluator": {
            "_target_": "scripts.inference.Inference",
            **{name: f"@{name}" for name in evaluated},
            **masks,
        },
        "run": ["$@evaluator.run()"],
    }


def _readme(result: Result, about: Mapping[str, Any]) -> str:
    facts = about["crossward"]
    template = resources.files("crossward.runs.bundle_scripts").joinpath("README.template.md").read_text("utf-8")
    steps = "\n".join(f"{number}. {step}" for number, step in enumerate(facts["outside"], start=1))
    values = {
        "name": about["name"],
        "task": about["task"],
        "classes": printable(", ".join(facts["classes"])),
        "method": facts["method"],
        "rounds": str(facts["round"]),
        "sites": str(len(result.about["sites"])),
        "input": f"(B, {facts['channels']}, {facts['size'][0]}, {facts['size'][1]}) from 0 to "
        f"{facts['value_range'][1]}, {facts['colour']}",
        "mean": str(facts["normalisation"]["mean"]),
        "std": str(facts["normalisation"]["std"]),
        "fit": facts["fit"],
        "prepare": ", ".join(facts["prepare"]) or "none",
        "steps": steps,
        "metrics": "\n".join(f"| {name} | {value:.4f} |" for name, value in about["eval_metrics"].items()),
        "run_hash": facts["run_hash"],
    }
    for name, value in values.items():
        template = template.replace(f"<{name}>", value)
    return template
