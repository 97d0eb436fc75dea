"""The commands that look at data and put networks to use: inspect, split, predict, export, demo."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image

import crossward
from crossward.cli import demo
from crossward.config.reading import checked
from crossward.runs.build import prepare


def rows(text):
    return list(csv.DictReader(io.StringIO(text)))


@pytest.fixture
def pictures(finished, tmp_path):
    """The server's test images of the phantom as files."""
    federation = prepare(checked(finished().config)).federation
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number, row in enumerate(federation.server.test.tolist()):
        Image.fromarray(federation.collection.images[row].numpy()).save(folder / f"{number:02d}.png")
    return folder


@pytest.fixture
def segmented(config, gallery):
    return crossward.run(config(data=gallery.table(gallery.masked()), net={"base": 4, "levels": 2}, run={"rounds": 1}))


def test_inspect(cli, toml_file, config):
    federation = prepare(checked(config())).federation
    told = json.loads(cli("data", "inspect", toml_file(config()), "--json").out)
    assert told["classes"] == list(federation.classes)
    assert told["train"] == dict(zip(("hospital-1", "hospital-2", "hospital-3"), federation.counts().tolist()))
    assert told["sites"]["server"] == {"train": 0, "val": 0, "test": 16}
    said = cli("data", "inspect", toml_file(config()))
    assert said.code == 0
    assert all(name in said.out for name in ("hospital-1", "hospital-3", "server"))


def test_inspect_tells_what_deserves_a_second_look(cli, toml_file, config, gallery):
    table = gallery.rows()
    (gallery.root / table[-1]["path"]).write_bytes(b"")
    asked = config(data=gallery.table(table[:1] + table[6:]) | {"bad_files": "quarantine"}, run={"rounds": 1})
    said = cli("data", "inspect", toml_file(asked))
    assert "note: site a trains on one sample" in said.out
    assert "left out: row " in said.out.replace("\n", " ")


def test_inspect_prints_names_as_they_are(cli, toml_file, config, gallery):
    table = gallery.rows()
    (gallery.root / "0" / "left[b].png").write_bytes(b"")
    table.append(table[0] | {"path": "0/left[b].png"})
    said = cli("data", "inspect", toml_file(config(data=gallery.table(table) | {"bad_files": "quarantine"})))
    assert "0/left[b].png" in said.out


def test_split_writes_a_manifest_that_a_run_takes(cli, toml_file, config, tmp_path):
    said = cli("data", "split", toml_file(config()), "-o", tmp_path / "deep" / "p.json")
    assert said.code == 0
    assert said.out.splitlines()[0] == str(tmp_path / "deep" / "p.json")
    asked = config(partition={"file": str(tmp_path / "deep" / "p.json")}, run={"rounds": 1})
    assert cli("run", toml_file(asked), "-q").code == 0
    (tmp_path / "file").touch()
    assert cli("data", "split", toml_file(config()), "-o", tmp_path / "file" / "p.json").code == 5


def test_predict_prints_what_the_run_kept(cli, finished, pictures):
    result = finished()
    said = cli("predict", result.folder, pictures)
    told = rows(said.out)
    assert (said.code, list(told[0])) == (0, ["image", "predicted", *result.about["task"]["classes"]])
    assert [row["image"] for row in told] == [str(file) for file in sorted(pictures.iterdir())]
    kept = result.predictions(result.summary["best"]["round"])["server"]["test"]
    values = torch.tensor([[float(row[name]) for name in result.about["task"]["classes"]] for row in told])
    assert values.sum(1).tolist() == pytest.approx([1.0] * 16, abs=1e-5)
    torch.testing.assert_close(values, kept, atol=2e-6, rtol=0)
    assert [row["predicted"] for row in told] == [result.about["task"]["classes"][i] for i in kept.argmax(1).tolist()]


def test_predict_writes_a_file_for_a_site_and_a_round(cli, finished, pictures, tmp_path):
    result = finished("local")
    words = ["--site", "hospital-3", "--which", "last", "--out", tmp_path / "p.csv"]
    said = cli("predict", result.folder, pictures / "03.png", pictures / "01.png", *words)
    assert (said.code, said.out) == (0, "")
    told = rows((tmp_path / "p.csv").read_text())
    assert [row["image"][-6:] for row in told] == ["03.png", "01.png"]
    kept = result.predictions(3)["hospital-3"]["common_test"]
    assert float(told[0]["basophil"]) == pytest.approx(float(kept[3, 0]), abs=2e-6)


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["{local}", "{pictures}"], 2, "each site has a network of its own"),
        (["{fedavg}", "{pictures}", "--site", "x"], 2, "there is no site 'x'"),
        (["{fedavg}", "{pictures}", "--which", "first"], 2, "--which 'first'"),
        (["{fedavg}", "{pictures}/none.png"], 3, "there is no file"),
        (["{fedavg}", "{empty}"], 3, "there are no images in"),
        (["{empty}", "{pictures}"], 5, "is not a run directory"),
        (["{fedavg}", "{bad}"], 3, "1 of 1 images cannot be read"),
        (["{fedavg}", "{pictures}", "--out", "{empty}/none/p.csv"], 5, "none/p.csv"),
    ],
)
def test_predictions_that_are_refused(cli, finished, pictures, tmp_path, words, code, told):
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.png").write_bytes(b"rubbish")
    places = {"pictures": pictures, "empty": tmp_path / "empty", "bad": tmp_path / "bad.png"}
    runs = {"local": finished("local").folder, "fedavg": finished().folder}
    said = cli("predict", *(word.format(**places, **runs) for word in words))
    assert said.code == code
    assert told in said.err


def test_predicting_masks(cli, segmented, gallery, tmp_path):
    gallery.image("new/large.png", (50, 30))
    said = cli("predict", segmented.folder, gallery.root / "new", "--masks", tmp_path / "masks")
    [row] = rows(said.out)
    assert list(row) == ["image", "mask", "share of background", "share of foreground"]
    assert float(row["share of background"]) + float(row["share of foreground"]) == pytest.approx(1, abs=1e-5)
    mask = np.asarray(Image.open(row["mask"]))
    assert mask.shape == (30, 50)
    assert set(np.unique(mask)) <= {0, 255}
    [(_, pixels, _)] = segmented.deployed().read([gallery.root / "new" / "large.png"])
    shown = Image.fromarray(segmented.deployed().predict(pixels)[0].numpy() * 255).resize((50, 30), 0)
    assert (mask == np.asarray(shown)).all()
    refused = cli("predict", segmented.folder, gallery.root / "new")
    assert (refused.code, "--masks" in refused.err) == (2, True)


def test_masks_of_images_of_the_same_name(cli, segmented, gallery, tmp_path):
    for name in ("new/left/1.png", "new/right/1.png"):
        gallery.image(name)
    told = rows(cli("predict", segmented.folder, gallery.root / "new", "--masks", tmp_path / "masks").out)
    assert len({row["mask"] for row in told}) == 2


def test_the_mask_of_a_cropped_image_covers_what_was_seen(segmented):
    network = segmented.deployed()
    network.fit = "crop"
    mask = np.asarray(network.mask(torch.ones(20, 20, dtype=torch.uint8), (60, 20)))
    assert mask.shape == (20, 60)
    assert (mask[:, 20:40] == 255).all()
    assert not mask[:, :20].any()


def test_masks_without_segmentation_are_refused(cli, finished, pictures, tmp_path):
    said = cli("predict", finished().folder, pictures, "--masks", tmp_path / "masks")
    assert said.code == 2


@pytest.mark.parametrize("method", ["fedavg", "local"])
def test_exported_networks_agree(cli, finished, method, tmp_path):
    result = finished(method)
    site = ["--site", "hospital-2"] if method == "local" else []
    said = cli("export", result.folder, "--to", "onnx", *site, "--out", tmp_path / "net.onnx")
    assert (said.code, said.out.strip().splitlines()[-1]) == (0, str(tmp_path / "net.onnx"))
    session = onnxruntime.InferenceSession(str(tmp_path / "net.onnx"), providers=["CPUExecutionProvider"])
    network = result.deployed(*site[1:])
    for batch in (1, 2, 7):
        pixels = torch.randint(0, 256, (batch, 28, 28, 3), dtype=torch.uint8, generator=torch.manual_seed(batch))
        [told] = session.run(None, {"pixels": (pixels.permute(0, 3, 1, 2) / 255).numpy()})
        np.testing.assert_allclose(told, network.predict(pixels).numpy(), atol=1e-4)


def test_an_export_that_cannot_be_written(cli, finished, tmp_path):
    said = cli("export", finished().folder, "--out", tmp_path / "none" / "net.onnx")
    assert said.code == 5
    assert "none/net.onnx" in said.err


def test_a_network_without_a_graph_is_refused(cli, finished, tmp_path):
    said = cli("export", finished("fedsm").folder, "--out", tmp_path / "net.onnx")
    assert (said.code, (tmp_path / "net.onnx").exists()) == (2, False)
    assert "cannot be written as one graph" in said.err
    assert "Traceback" not in said.err


def test_an_unknown_format_is_refused(cli, finished):
    said = cli("export", finished().folder, "--to", "tflite")
    assert (said.code, "Known: onnx." in said.err) == (2, True)


def test_the_demo_compares_the_methods(cli, tmp_path, monkeypatch):
    small = {"train": 16, "val": 4, "test": 4, "global_test": 8}
    reduced = [
        replace(c, methods=c.methods[:2], config=c.config | {"data": c.config["data"] | small})
        for c in demo.COMPARISONS
    ]
    monkeypatch.setattr(demo, "COMPARISONS", reduced)
    said = cli("demo", "--rounds", "1", "--out", tmp_path, "--json")
    *lines, last = map(json.loads, said.out.splitlines())
    assert [(line["run"], line["round"]) for line in lines] == [
        (name, 1) for name in ("local", "fedavg", "local", "fedavg", "local", "mh-pflgb")
    ]
    assert {name: [row["method"] for row in rows] for name, rows in last["results"].items()} == {
        "blood": ["local", "fedavg"],
        "polyp": ["local", "fedavg"],
        "mixed": ["local", "mh-pflgb"],
    }
    assert last["folder"] == str(tmp_path / "demo-1")
    assert crossward.load(tmp_path / "demo-1" / "polyp" / "local").about["status"] == "finished"
