"""The commands that use a trained network: predict and export."""

from __future__ import annotations

import csv
import io

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image

import crossward
from crossward.config.reading import config_from
from crossward.runs.build import prepare


def csv_rows(text):
    return list(csv.DictReader(io.StringIO(text)))


@pytest.fixture
def pictures(finished_run, tmp_path):
    """The server's test images of the phantom as files."""
    federation = prepare(config_from(finished_run().config)).federation
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number, row in enumerate(federation.server.test.tolist()):
        Image.fromarray(federation.collection.images[row].numpy()).save(folder / f"{number:02d}.png")
    return folder


@pytest.fixture
def segmented(config, gallery):
    return crossward.run(config(data=gallery.table(gallery.masked()), net={"base": 4, "levels": 2}, run={"rounds": 1}))


def test_predictions_are_those_that_the_run_stored(cli, finished_run, pictures):
    result = finished_run()
    classes = result.about["task"]["classes"]
    output = cli("predict", result.folder, pictures)
    assert output.code == 0
    rows = csv_rows(output.out)
    assert list(rows[0]) == ["image", "predicted", *classes]
    assert [row["image"] for row in rows] == [str(file) for file in sorted(pictures.iterdir())]
    stored = result.predictions(result.summary["best"]["round"])["server"]["test"]
    values = torch.tensor([[float(row[name]) for name in classes] for row in rows])
    assert values.sum(1).tolist() == pytest.approx([1.0] * 16, abs=1e-5)
    torch.testing.assert_close(values, stored, atol=2e-6, rtol=0)
    assert [row["predicted"] for row in rows] == [classes[i] for i in stored.argmax(1).tolist()]


def test_predict_writes_a_file_for_a_site_and_a_round(cli, finished_run, pictures, tmp_path):
    result = finished_run("local")
    words = ["--site", "hospital-3", "--which", "last", "--out", tmp_path / "p.csv"]
    output = cli("predict", result.folder, pictures / "03.png", pictures / "01.png", *words)
    assert output.code == 0
    assert output.out == ""
    rows = csv_rows((tmp_path / "p.csv").read_text())
    assert [row["image"][-6:] for row in rows] == ["03.png", "01.png"]
    stored = result.predictions(3)["hospital-3"]["common_test"]
    assert float(rows[0]["basophil"]) == pytest.approx(float(stored[3, 0]), abs=2e-6)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["{local}", "{pictures}"], 2, "each site has a network of its own"),
        (["{fedavg}", "{pictures}", "--site", "x"], 2, "there is no site 'x'"),
        (["{fedavg}", "{pictures}", "--which", "first"], 2, "--which 'first'"),
        (["{fedavg}", "{pictures}/none.png"], 3, "there is no file"),
        (["{fedavg}", "{empty}"], 3, "there are no images in"),
        (["{empty}", "{pictures}"], 5, "is not a run directory"),
        (["{fedavg}", "{bad}"], 3, "1 of 1 images cannot be read"),
        (["{fedavg}", "{pictures}", "--out", "{empty}/none/p.csv"], 5, "none/p.csv"),
        (["{fedavg}", "{pictures}", "--masks", "{empty}"], 2, "it has no use for --masks"),
    ],
)
def test_predictions_that_are_refused(cli, finished_run, pictures, tmp_path, words, code, message):
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.png").write_bytes(b"rubbish")
    places = {"pictures": pictures, "empty": tmp_path / "empty", "bad": tmp_path / "bad.png"}
    runs = {"local": finished_run("local").folder, "fedavg": finished_run().folder}
    output = cli("predict", *(word.format(**places, **runs) for word in words))
    assert output.code == code
    assert message in output.err


def test_predicting_masks(cli, segmented, gallery, tmp_path):
    gallery.image("new/large.png", (50, 30))
    output = cli("predict", segmented.folder, gallery.root / "new", "--masks", tmp_path / "masks")
    [row] = csv_rows(output.out)
    assert list(row) == ["image", "mask", "share of background", "share of foreground"]
    assert float(row["share of background"]) + float(row["share of foreground"]) == pytest.approx(1, abs=1e-5)
    mask = np.asarray(Image.open(row["mask"]))
    assert mask.shape == (30, 50)
    assert set(np.unique(mask)) <= {0, 255}
    [(_, pixels, _)] = segmented.deployed().read([gallery.root / "new" / "large.png"])
    expected = Image.fromarray(segmented.deployed().predict(pixels)[0].numpy() * 255).resize((50, 30), 0)
    assert (mask == np.asarray(expected)).all()


def test_segmentation_needs_a_folder_for_masks(cli, segmented, gallery):
    gallery.image("new/large.png", (50, 30))
    output = cli("predict", segmented.folder, gallery.root / "new")
    assert output.code == 2
    assert "--masks" in output.err


def test_masks_of_images_of_the_same_name(cli, segmented, gallery, tmp_path):
    for name in ("new/left/1.png", "new/right/1.png"):
        gallery.image(name)
    rows = csv_rows(cli("predict", segmented.folder, gallery.root / "new", "--masks", tmp_path / "masks").out)
    assert len({row["mask"] for row in rows}) == 2


def test_the_mask_of_a_cropped_image_covers_what_was_seen(segmented):
    network = segmented.deployed()
    network.fit = "crop"
    mask = np.asarray(network.mask(torch.ones(20, 20, dtype=torch.uint8), (60, 20)))
    assert mask.shape == (20, 60)
    assert (mask[:, 20:40] == 255).all()
    assert not mask[:, :20].any()


@pytest.mark.parametrize("method", ["fedavg", "local"])
def test_exported_networks_agree(cli, finished_run, method, tmp_path):
    result = finished_run(method)
    site = ["--site", "hospital-2"] if method == "local" else []
    output = cli("export", result.folder, "--to", "onnx", *site, "--out", tmp_path / "net.onnx")
    assert output.code == 0
    assert output.out.strip().splitlines()[-1] == str(tmp_path / "net.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "net.onnx"), providers=["CPUExecutionProvider"])
    network = result.deployed(*site[1:])
    for batch in (1, 2, 7):
        pixels = torch.randint(0, 256, (batch, 28, 28, 3), dtype=torch.uint8, generator=torch.manual_seed(batch))
        [probabilities] = session.run(None, {"pixels": (pixels.permute(0, 3, 1, 2) / 255).numpy()})
        np.testing.assert_allclose(probabilities, network.predict(pixels).numpy(), atol=1e-4)


def test_an_export_that_cannot_be_written(cli, finished_run, tmp_path):
    output = cli("export", finished_run().folder, "--out", tmp_path / "none" / "net.onnx")
    assert output.code == 5
    assert "none/net.onnx" in output.err


def test_a_network_without_a_graph_is_refused(cli, finished_run, tmp_path):
    output = cli("export", finished_run("fedsm").folder, "--out", tmp_path / "net.onnx")
    assert output.code == 2
    assert not (tmp_path / "net.onnx").exists()
    assert "cannot be written as one graph" in output.err
    assert "Traceback" not in output.err


def test_an_unknown_format_is_refused(cli, finished_run):
    output = cli("export", finished_run().folder, "--to", "tflite")
    assert output.code == 2
    assert "Known: onnx." in output.err
