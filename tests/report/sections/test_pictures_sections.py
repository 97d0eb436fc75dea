"""Segmentation, the map of features and images: on small runs that were trained."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import pytest
import torch
from PIL import Image

from crossward.report import feature_map
from crossward.report.content import DataTable, Note, Picture, blocks_of, charts_of
from crossward.report.grad_cam import grad_cam
from crossward.report.run_images import features, images_by_holder, open_images
from crossward.report.sections.features import features_section
from crossward.report.sections.images import WARNING, heated, images_section, surest_mistakes
from crossward.report.sections.segmentation import segmentation_section
from crossward.report.source import read_report_source

POLYP = {"data": {"source": "phantom", "kind": "polyp", "size": 32, "sites": 2, "train": 12, "val": 4, "test": 6}}


@pytest.fixture(scope="module")
def trained(finished_run):
    return read_report_source([finished_run().folder], resamples=100)


def notes(section) -> str:
    return " ".join(block.text for block in blocks_of(section) if isinstance(block, Note))


def pictures(section) -> list[Picture]:
    return [block for block in blocks_of(section) if isinstance(block, Picture)]


# features -------------------------------------------------------------------------------------------------------------
def test_the_map_is_computed_once_and_then_stored(trained, monkeypatch):
    assert features_section(trained, compute=False) is None
    section = features_section(trained, compute=True)
    by_class, by_site = charts_of(section)
    rows = by_class.spec["data"]["values"]
    held = images_by_holder(open_images(trained.runs[0]))
    assert len(rows) == sum(len(each.images) for each in held)
    assert {row["colour"] for row in by_site.spec["data"]["values"]} == {each.holder for each in held}
    monkeypatch.setattr(feature_map, "open_images", None)
    again = features_section(trained, compute=False)
    assert charts_of(again)[0].spec == by_class.spec


def test_features_are_those_in_front_of_the_head(trained):
    run = trained.runs[0]
    network = run.result.deployed()
    images = images_by_holder(open_images(run))[0].images
    with torch.no_grad():
        probabilities = network.network.head(features(network, images)).softmax(1)
    assert torch.allclose(probabilities, network.probabilities(images), atol=1e-5)


def test_a_run_whose_images_are_gone_says_so(finished_run, monkeypatch):
    from crossward.errors import DataError
    from crossward.report.sections import features as section_module

    def gone(run):
        raise DataError("there is no file with these images")

    monkeypatch.setattr(section_module, "stored_map", lambda run: None)
    monkeypatch.setattr(feature_map, "open_images", gone)
    section = features_section(read_report_source([finished_run().folder], resamples=100), compute=True)
    assert "there is no file with these images" in notes(section)


def test_networks_of_their_own_have_no_common_map(finished_run):
    section = features_section(read_report_source([finished_run("local").folder], resamples=100), compute=True)
    assert "network of its own" in notes(section)


# images ---------------------------------------------------------------------------------------------------------------
def test_the_surest_mistakes_come_first():
    p = torch.tensor([[0.1, 0.9], [0.4, 0.6], [0.8, 0.2]])
    truth = torch.tensor([0, 0, 0])
    found = surest_mistakes([p, p[:1]], [truth, truth[:1]], 0)
    assert [(each.holder, each.row) for each in found] == [(0, 0), (1, 0), (0, 1)]
    assert found[0].said == 1
    assert surest_mistakes([p], [truth], 1) == []


@pytest.mark.parametrize("method", ["fedavg", "local"])
def test_grad_cam_is_a_map_of_the_images_size(finished_run, method):
    source = read_report_source([finished_run(method).folder], resamples=100)
    run = source.runs[0]
    held = images_by_holder(open_images(run))[0]
    network = run.result.deployed(held.holder if method == "local" else None)
    maps = grad_cam(network, held.images[:3], [0, 1, 2])
    assert maps.shape == (3, *held.images.shape[1:3])
    assert float(maps.min()) >= 0
    assert float(maps.max()) <= 1
    assert not torch.equal(maps[0], maps[1])


def test_grad_cam_finds_the_pixels_that_a_class_is_read_off():
    """A network that counts the bright pixels of the left half: the map is there and nowhere else."""
    from crossward.core.net import Net

    class LeftHalf(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = torch.nn.Conv2d(1, 1, 1, bias=False)
            self.conv.weight.data.fill_(1.0)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.conv(x)[..., :4].mean((2, 3))

    class Network:
        network = Net(LeftHalf(), torch.nn.Linear(1, 2, bias=False), 1)

        def inputs(self, images: torch.Tensor):
            yield images.permute(0, 3, 1, 2).float() / 255

        def logits(self, x: torch.Tensor) -> torch.Tensor:
            return self.network(x)

    Network.network.head.weight.data = torch.tensor([[1.0], [-1.0]])
    images = torch.zeros(1, 8, 8, 1, dtype=torch.uint8)
    images[0, 2, 1] = 255
    found = grad_cam(Network(), images, [0])
    assert found[0].argmax() == 2 * 8 + 1
    assert float(found[0].sum()) == pytest.approx(1)
    assert float(grad_cam(Network(), images, [1]).sum()) == 0


def test_heat_is_orange_over_grey():
    image = torch.full((2, 2, 3), 100, dtype=torch.uint8)
    heat = torch.tensor([[0.0, 1.0], [0.0, 0.0]])
    found = heated(image, heat)
    assert found[0, 0].tolist() == [100, 100, 100]
    assert found[0, 1].tolist() == [185, 96, 25]


def test_images_are_small_pngs_under_a_warning(trained):
    section = images_section(trained)
    assert section.blocks[0] == Note(WARNING)
    found = pictures(section)
    assert found
    for picture in found:
        image = Image.open(io.BytesIO(base64.b64decode(picture.png)))
        assert image.format == "PNG"
        assert max(image.size) <= 1000
        assert "taken for" in picture.alt


def test_segmentations_are_shown_from_worst_to_best_and_a_bad_picture_is_left_out(finished_run):
    run = finished_run("fedavg", None, **POLYP)
    bad = Path(run.folder) / "pictures" / "overlay-evil-round-0001.png"
    bad.write_bytes(b"<script>")
    section = images_section(read_report_source([run.folder], resamples=100))
    bad.unlink()
    titles = [picture.title for picture in pictures(section)]
    assert any(title.startswith("hospital-") for title in titles)
    assert not any("evil" in title for title in titles)


def test_segmentation_scores_images_with_and_without_apart(finished_run):
    run = finished_run("fedavg", None, **POLYP)
    source = read_report_source([run.folder], resamples=100)
    section = segmentation_section(source)
    [table] = [block for block in blocks_of(section) if isinstance(block, DataTable)]
    stored = source.runs[0].rounds.best_metrics["test"]["local"]["mean"]
    [row] = table.rows
    assert row[1].value == pytest.approx(100 * stored["dice_positive"])
    assert row[4].value == pytest.approx(stored["hd95_penalised"])
    [spread] = charts_of(section)
    for each in spread.spec["data"]["values"]:
        assert each["q05"] <= each["q25"] <= each["value"] <= each["q75"] <= each["q95"]
