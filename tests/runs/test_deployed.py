"""Deployed networks: they predict what the run predicted, from files, and as ONNX."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from PIL import Image

import crossward
from crossward import nets
from crossward.config.reading import config_from
from crossward.core.tree import encode
from crossward.errors import ConfigError, DataError, StorageError
from crossward.runs.build import prepare
from crossward.runs.run_directory import RunDir


def images(result, site, part="test"):
    federation = prepare(config_from(result.config)).federation
    split = federation.server if site == "server" else {s.name: s for s in federation.sites}[site]
    return federation.collection.images[getattr(split, part)]


@pytest.mark.parametrize("method", ["fedavg", "central", "scaffold"])
def test_a_shared_network_predicts_what_was_kept(finished_run, method):
    result = finished_run(method)
    for which, round in (("best", result.summary["best"]["round"]), ("last", 3)):
        network = result.deployed(which=which)
        for site in ("server", "hospital-2"):
            again = network.predict(images(result, site))
            torch.testing.assert_close(again, result.predictions(round)[site]["test"], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("method", ["local", "fedavg+ft"])
def test_personal_networks_predict_what_was_kept(finished_run, method):
    result = finished_run(method)
    kept = result.predictions(result.summary["best"]["round"])
    for site in result.about["sites"]:
        network = result.deployed(site)
        torch.testing.assert_close(network.predict(images(result, site)), kept[site]["test"], atol=1e-6, rtol=1e-5)
        common = network.predict(images(result, "server"))
        torch.testing.assert_close(common, kept[site]["common_test"], atol=1e-6, rtol=1e-5)


def test_fine_tuned_networks_differ(finished_run):
    one, other = (finished_run("fedavg+ft").deployed(site) for site in ("hospital-1", "hospital-2"))
    same = images(finished_run("fedavg+ft"), "server")
    assert not one.predict(same).allclose(other.predict(same), atol=1e-4)


def test_predicting_changes_nothing(finished_run):
    network, some = finished_run().deployed(), images(finished_run(), "server")
    assert network.predict(some).equal(network.predict(some))
    # one image or many at a time: only rounding differs
    torch.testing.assert_close(network.predict(some[:1]), network.predict(some)[:1], atol=1e-6, rtol=1e-5)


def test_images_of_another_shape_are_refused(finished_run):
    network = finished_run().deployed()
    with pytest.raises(ConfigError, match=r"images of \(32, 32, 3\) for a net of 28 px, 3 channels"):
        network.predict(torch.zeros(1, 32, 32, 3, dtype=torch.uint8))


def test_files_are_read_as_the_network_wants_them(finished_run, tmp_path):
    network, some = finished_run().deployed(), images(finished_run(), "server")
    files = [tmp_path / f"{number}.png" for number in range(len(some))]
    for file, pixels in zip(files, some.numpy(), strict=True):
        Image.fromarray(pixels).save(file)
    [(read, pixels, sizes)] = network.read(files)
    assert read == files
    assert set(sizes) == {(28, 28)}
    assert pixels.equal(some)
    Image.fromarray(np.zeros((90, 40), np.uint16)).save(tmp_path / "wide.tiff")
    [(_, pixels, sizes)] = network.read([tmp_path / "wide.tiff"])
    assert pixels.shape == (1, 28, 28, 3)
    assert sizes == [(40, 90)]


def test_files_that_cannot_be_read_cost_no_others(finished_run, tmp_path):
    network = finished_run().deployed()
    (tmp_path / "a.png").write_bytes(b"")
    (tmp_path / "b.txt").write_text("no image")
    Image.new("RGB", (30, 30)).save(tmp_path / "good.png")
    batches = network.read([tmp_path / name for name in ("a.png", "good.png", "b.txt", "none.png")])
    read, pixels, _ = next(batches)
    assert read == [tmp_path / "good.png"]
    assert pixels.shape == (1, 28, 28, 3)
    with pytest.raises(DataError, match="3 of 4 images cannot be read; the other one is good") as error:
        next(batches)
    assert [line.split(":")[0] for line in error.value.details] == [
        str(tmp_path / name) for name in ("a.png", "b.txt", "none.png")
    ]


def test_the_module_takes_bytes_and_gives_probabilities(finished_run):
    network, some = finished_run().deployed(), images(finished_run(), "server")
    with torch.no_grad():
        probabilities, logits = network.module()(some)
    torch.testing.assert_close(probabilities, network.predict(some), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(logits.softmax(1), probabilities)
    torch.testing.assert_close(network.probabilities(some), network.predict(some), atol=1e-6, rtol=1e-5)


def test_arrays_of_numpy_are_predicted_as_tensors_are(finished_run):
    network, some = finished_run().deployed(), images(finished_run(), "server")
    expected = network.predict(some).numpy()
    array = some.numpy().copy()
    found = network.predict(array)
    assert isinstance(found, np.ndarray)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_allclose(network.predict(array[3]), expected[3:4], atol=1e-6)  # one image is a batch of one
    np.testing.assert_array_equal(network.predict(array[::-1])[::-1], expected)  # whatever its strides
    array.setflags(write=False)
    np.testing.assert_array_equal(network.predict(array), expected)
    assert network.predict(array[:0]).shape == (0, 8)


def test_grey_arrays_may_lack_the_channel(config, tmp_path):
    rng = np.random.default_rng(0)
    for place in range(24):
        folder = tmp_path / "set" / ("dark", "bright")[place % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 120 + 60 * (place % 2), (28, 28), np.uint8)).save(folder / f"{place}.png")
    data = {"source": "folder", "path": str(tmp_path / "set"), "size": 28, "channels": 1}
    network = crossward.run(config(data=data, partition={"kind": "iid", "sites": 2}, run={"rounds": 1})).deployed()
    grey = rng.integers(0, 256, (5, 28, 28), np.uint8)
    expected = network.predict(grey[..., None])
    np.testing.assert_array_equal(network.predict(grey), expected)
    np.testing.assert_allclose(network.predict(grey[2]), expected[2:3], atol=1e-6)


BYTES = np.zeros((2, 28, 28, 3), np.uint8)


@pytest.mark.parametrize(
    ("wrong", "message", "hint"),
    [
        (BYTES.astype(np.float32) + 0.5, "float32 from 0.5 to 0.5, not uint8", "(images * 255).round()"),
        (BYTES.astype(np.int64) + 7, "int64 from 7 to 7, not uint8", "convert them to uint8"),
        (BYTES.astype(np.int16) - 1000, "int16 from -1000 to -1000, not uint8", "from 0 to 255"),
        (torch.full((2, 28, 28, 3), 3.5), "float32 from 3.5 to 3.5, not uint8", "convert them to uint8"),
        (BYTES.astype(object), "object, not numbers", "uint8"),
        (BYTES.tolist(), "a list, not an array", "numpy array"),
        (BYTES.transpose(0, 3, 1, 2), r"images of (3, 28, 28) for a net of 28 px, 3 channels", "Channels come last"),
        (BYTES[:, :20], r"images of (20, 28, 3) for a net of 28 px", "crossward predict"),
        (BYTES[..., :1], r"images of (28, 28, 1) for a net of 28 px, 3 channels", "colour images"),
        (BYTES[..., 0], "images of 3 dimensions, (2, 28, 28)", "one (H, W, C), with C = 3"),
        (np.zeros((), np.uint8), "images of 0 dimensions", "(N, H, W, C)"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_arrays_that_are_refused(finished_run, wrong, message, hint):
    with pytest.raises(ConfigError, match=re.escape(message)) as error:
        finished_run().deployed().predict(wrong)
    assert hint in error.value.hint


def test_a_damaged_network_is_named(finished_run, config, interrupted_run, tmp_path):
    rundir = RunDir.create(tmp_path / "run")
    rundir.write("run.json", finished_run().about)
    (tmp_path / "run" / "weights" / "best").mkdir()
    file = tmp_path / "run" / "weights" / "best" / "global.safetensors"
    file.write_bytes(encode({"model": torch.ones(3)})[:-2])
    from crossward import load

    with pytest.raises(StorageError, match=f"{file}: "):
        load(tmp_path / "run").deployed()
    with pytest.raises(StorageError, match="cannot read"):
        load(tmp_path / "run").deployed(which="last")


def test_segmentation_predicts_class_maps(config, gallery):
    from crossward import run

    result = run(config(data=gallery.table(gallery.masked()), net={"base": 4, "levels": 2}, run={"rounds": 2}))
    collection = config_from(result.config).data.load()[0]
    rows = prepare(config_from(result.config)).federation.sites[1].test
    maps = result.deployed(which="last").predict(collection.images[rows])
    assert (maps.shape, maps.dtype) == ((2, 20, 20), torch.uint8)
    assert (maps != result.predictions(2)["b"]["test"]).float().mean() < 0.005  # ties may round to either class


def test_new_images_are_prepared_as_the_training_images_were(config, tmp_path):
    rng = np.random.default_rng(0)
    for place in range(24):
        folder = tmp_path / "set" / ("dark", "bright")[place % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 120 + 60 * (place % 2), (28, 28, 3), np.uint8)).save(folder / f"{place}.png")
    data = {"source": "folder", "path": str(tmp_path / "set"), "size": 28, "prepare": ["brightness:0.6"]}
    settings = config(data=data, partition={"kind": "iid", "sites": 2}, run={"rounds": 1, "out": str(tmp_path)})
    result = crossward.run(settings | {"data": data})
    collection, _ = config_from(result.config).data.load()
    [(_, pixels, _)] = result.deployed().read([tmp_path / "set" / row for row in collection.ids])
    assert pixels.equal(collection.images)
    assert pixels.float().mean() / 255 == pytest.approx(0.6, abs=0.02)


def test_a_network_needs_no_more_the_file_it_started_from(config, tmp_path, monkeypatch):
    from safetensors.torch import save_file

    monkeypatch.chdir(tmp_path)
    net = {"name": "efficientnet-lite0", "width": 0.25}
    save_file(nets.build(net["name"], channels=3, classes=8, size=28, width=0.25).state_dict(), "begin.safetensors")
    settings = config(net=net | {"start": "begin.safetensors"}, run={"rounds": 1, "out": str(tmp_path / "runs")})
    result = crossward.run(settings)
    assert result.config["net"]["start"] == str(tmp_path / "begin.safetensors")  # found again from anywhere
    some = images(result, "server")
    (tmp_path / "begin.safetensors").unlink()
    assert result.deployed().predict(some).shape == (16, 8)
