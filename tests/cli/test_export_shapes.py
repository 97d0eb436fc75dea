"""Networks for images that are not square, of many channels or of 16 bits: what predict, ONNX and MONAI make of
them."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image

import crossward
from crossward.runs.result import Result

PARTITION = {"kind": "iid", "sites": 2, "local_split": [0.6, 0.2, 0.2]}
UNET = {"name": "unet", "base": 4, "levels": 2}


@dataclass(frozen=True)
class Kind:
    """A kind of image files, what they are read as, and whether they have masks."""

    suffix: str
    shape: tuple[int, ...]  # (pages, H, W), or (H, W, 3)
    white: int
    data: dict[str, Any]
    masks: bool = False

    def draw(self, file: Path, seed: int) -> None:
        rng = np.random.default_rng(seed)
        pixels = rng.integers(0, self.white + 1, self.shape).astype(np.uint16 if self.white > 255 else np.uint8)
        if self.shape[-1] == 3:
            Image.fromarray(pixels).save(file)
            return
        first, *others = [Image.fromarray(page) for page in pixels]
        first.save(file, **({"save_all": True, "append_images": others} if others else {}))


KINDS = {
    "wide": Kind("png", (40, 60, 3), 255, {"size": [20, 28]}),
    "five channels": Kind("tif", (5, 30, 44), 255, {"size": [28, 20], "channels": 5, "fit": "crop"}),
    "four channels with masks": Kind("tif", (4, 30, 44), 255, {"size": [16, 24], "channels": 4}, True),
    "16 bits": Kind(
        "png", (1, 40, 60), 4095, {"size": [20, 28], "channels": 1, "depth": 16, "prepare": "range:bits:12"}
    ),
    "16 bits with masks": Kind("tif", (2, 30, 44), 65535, {"size": [16, 24], "channels": 2, "depth": 16}, True),
}


IN_EVERY_RUN = ("five channels", "16 bits with masks")  # of the tests; the others in `make e2e`


@pytest.fixture(
    scope="module", params=[pytest.param(k, marks=() if k in IN_EVERY_RUN else pytest.mark.e2e) for k in KINDS]
)
def kind(request) -> Kind:
    return KINDS[request.param]


@pytest.fixture(scope="module")
def trained(kind, tmp_path_factory) -> Result:
    folder = tmp_path_factory.mktemp("shapes")
    for number in range(20):
        place = folder / "files" / ("images" if kind.masks else ("benign", "malignant")[number % 2])
        place.mkdir(parents=True, exist_ok=True)
        kind.draw(place / f"{number}.{kind.suffix}", number)
        if kind.masks:
            (folder / "files" / "masks").mkdir(exist_ok=True)
            mask = np.zeros(kind.shape[1:], dtype=np.uint8)
            mask[5 : 10 + number, 8:30] = 255
            Image.fromarray(mask).save(folder / "files" / "masks" / f"{number}.png")
    data = {"source": "folder", "path": str(folder / "files"), "augment": ["hflip", "rotate:10"], **kind.data}
    return crossward.run(
        {
            "data": data,
            "partition": PARTITION,
            "run": {"rounds": 2, "out": str(folder / "runs")},
            "train": {"lr": 0.05, "batch_size": 4},
            "engine": {"device": "cpu"},
            **({"net": UNET} if kind.masks else {}),
        }
    )


@pytest.fixture
def new_files(kind, tmp_path) -> Path:
    (tmp_path / "new").mkdir()
    for number in range(3):
        kind.draw(tmp_path / "new" / f"{number}.{kind.suffix}", 100 + number)
    return tmp_path / "new"


def decoded(result: Result, folder: Path) -> torch.Tensor:
    [(_, pixels, _)] = result.deployed().read(sorted(folder.iterdir()))
    return pixels


def test_a_trained_network_predicts_files(kind, trained, new_files, cli, tmp_path):
    masks = ["--masks", tmp_path / "masks"] if kind.masks else []
    output = cli("predict", trained.folder, new_files, *masks)
    assert output.code == 0, output.err
    rows = list(csv.DictReader(io.StringIO(output.out)))
    pixels = decoded(trained, new_files)
    assert pixels.shape == (3, *kind.data["size"], kind.data.get("channels", 3))
    assert pixels.dtype == (torch.uint16 if "depth" in kind.data else torch.uint8)
    predicted = trained.deployed().predict(pixels)
    if not kind.masks:
        found = [[float(row[name]) for name in ("benign", "malignant")] for row in rows]
        assert torch.allclose(torch.tensor(found), predicted, atol=1e-5)
        return
    for number, class_map in enumerate(predicted):
        mask = np.asarray(Image.open(tmp_path / "masks" / f"{number}.png"))
        assert mask.shape == kind.shape[1:]
        assert np.array_equal(mask // 255, trained.deployed().class_map(class_map, mask.shape[::-1]).numpy())


def test_the_graph_agrees(kind, trained, new_files, cli, tmp_path):
    output = cli("export", trained.folder, "--to", "onnx", "--out", tmp_path / "net.onnx")
    assert output.code == 0, output.err
    assert "test images of the run" in output.out
    session = onnxruntime.InferenceSession(str(tmp_path / "net.onnx"), providers=["CPUExecutionProvider"])
    facts = session.get_modelmeta().custom_metadata_map
    depth = kind.data.get("depth", 8)
    assert session.get_inputs()[0].type == f"tensor(uint{depth})"
    assert facts["dtype"] == f"uint{depth}"
    assert json.loads(facts["size"]) == kind.data["size"]
    assert json.loads(facts["normalisation"])["of"] == f"pixels / {2**depth - 1}"
    pixels = decoded(trained, new_files)
    [probabilities] = session.run(["probabilities"], {"pixels": pixels.numpy()})
    torch.testing.assert_close(
        torch.from_numpy(probabilities), trained.deployed().probabilities(pixels), atol=1e-4, rtol=0
    )


@pytest.fixture
def parser(monkeypatch) -> Iterator[Callable[[Path, Path], Any]]:
    from monai.bundle import ConfigParser

    def forget() -> None:
        for name in [name for name in sys.modules if name.split(".")[0] == "scripts"]:
            del sys.modules[name]

    def read(bundle: Path, images: Path) -> Any:
        monkeypatch.syspath_prepend(str(bundle))
        forget()
        parser = ConfigParser()
        parser.read_config(bundle / "configs" / "inference.json")
        parser["bundle_root"], parser["dataset_dir"] = str(bundle), str(images)
        return parser

    yield read
    forget()


def test_the_bundle_agrees(kind, trained, new_files, parser, cli, tmp_path):
    output = cli("export", trained.folder, "--to", "monai-bundle", "--out", tmp_path / "bundle")
    assert output.code == 0, output.err
    config = parser(tmp_path / "bundle", new_files)
    [batch] = config.get_parsed_content("dataloader")
    pixels = decoded(trained, new_files)
    assert torch.equal(batch["image"], pixels.permute(0, 3, 1, 2).float())
    predicted = config.get_parsed_content("inferer")(batch["image"], config.get_parsed_content("network"))
    torch.testing.assert_close(predicted.detach(), trained.deployed().probabilities(pixels), atol=1e-4, rtol=0)
    config.get_parsed_content("run")
    assert len((tmp_path / "bundle" / "predictions.csv").read_text().splitlines()) == 4
    about = json.loads((tmp_path / "bundle" / "configs" / "metadata.json").read_text())
    image = about["network_data_format"]["inputs"]["image"]
    white = 2 ** kind.data.get("depth", 8) - 1
    assert (image["num_channels"], image["spatial_shape"]) == (kind.data.get("channels", 3), kind.data["size"])
    assert image["value_range"] == [0, white]
    assert f"from 0 to {white}" in (tmp_path / "bundle" / "docs" / "README.md").read_text()


def test_the_report_shows_images(trained, cli, tmp_path):
    output = cli("report", trained.folder, "--images", "--output", tmp_path / "page.html")
    assert output.code == 0, output.err
    assert (tmp_path / "page.html").read_text().count("data:image/png;base64") >= 1
