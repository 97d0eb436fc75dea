"""The command export: what it writes predicts what the network of the run does, and says what a program must know."""

from __future__ import annotations

import ast
import csv
import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from PIL import Image

import crossward
from crossward.runs import monai_bundle, onnx_graph
from crossward.runs.monai_bundle import inert


def session_of(file):
    return onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])


def random_images(count, size=28):
    return torch.randint(0, 256, (count, size, size, 3), dtype=torch.uint8, generator=torch.manual_seed(count))


@pytest.fixture(scope="module")
def folder_of_exports(tmp_path_factory):
    return tmp_path_factory.mktemp("exports")


@pytest.fixture
def exported(cli, finished_run, folder_of_exports):
    """exported("onnx", "local", "hospital-2"): what the command printed, and the file or folder that tests only read.
    Each is exported once: torch takes more than a second for a graph."""

    def export(to, method="fedavg", site=""):
        file, said = folder_of_exports / f"{to}-{method}", folder_of_exports / f"{to}-{method}.txt"
        if not said.exists():
            words = ["--site", site] if site else []
            output = cli("export", finished_run(method).folder, "--to", to, *words, "--out", file)
            assert output.code == 0, output.err
            said.write_text(output.out)
        return said.read_text(), file

    return export


@pytest.fixture
def segmented(config, gallery):
    return crossward.run(config(data=gallery.table(gallery.masked()), net={"base": 4, "levels": 2}, run={"rounds": 1}))


@pytest.fixture
def photos(tmp_path):
    """Files of several formats and sizes."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for number, suffix in enumerate(("png", "jpg", "bmp", "tiff")):
        pixels = random_images(number + 1, 60 + 40 * number)[0].numpy()
        Image.fromarray(pixels[:, : 50 + 10 * number]).save(folder / f"{number}.{suffix}")
    return folder


# ONNX -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "site"), [("fedavg", ""), ("local", "hospital-2")])
def test_exported_networks_agree(exported, finished_run, method, site):
    result = finished_run(method)
    said, file = exported("onnx", method, site)
    parity, path = said.strip().splitlines()
    assert path == str(file)
    count = len(result.targets()[site or "server"]["test"])
    assert parity.startswith(f"parity on {count} test images of the run: probabilities differ by at most ")
    session = session_of(file)
    network = result.deployed(*filter(None, [site]))
    for batch in (1, 2, 7):
        pixels = random_images(batch)
        probabilities, logits = session.run(["probabilities", "logits"], {"pixels": pixels.numpy()})
        np.testing.assert_allclose(probabilities, network.predict(pixels).numpy(), atol=1e-5)
        np.testing.assert_allclose(torch.from_numpy(logits).softmax(1), probabilities, atol=1e-6)


def test_the_graph_says_what_a_program_must_know(exported, finished_run):
    result = finished_run("local")
    _, file = exported("onnx", "local", "hospital-2")
    facts = session_of(file).get_modelmeta().custom_metadata_map
    assert json.loads(facts["classes"]) == result.about["task"]["classes"]
    assert json.loads(facts["size"]) == [28, 28]
    assert json.loads(facts["value_range"]) == [0, 255]
    assert json.loads(facts["normalisation"])["mean"] == [0.5] * 3
    assert json.loads(facts["prepare"]) == []
    assert json.loads(facts["parity"])["largest_difference"] <= 1e-4
    plain = ("channels", "colour", "layout", "dtype", "fit", "method", "site", "which", "crossward")
    found = [facts[key] for key in plain]
    assert found == ["3", "RGB", "NHWC", "uint8", "stretch", "local", "hospital-2", "best", crossward.__version__]
    assert len(facts["run_hash"]) == len(facts["weights_sha256"]) == 64
    model = onnx.load(file)
    [pixels] = model.graph.input
    assert pixels.type.tensor_type.elem_type == onnx.TensorProto.UINT8
    assert pixels.type.tensor_type.shape.dim[0].dim_param == "batch"
    onnx.checker.check_model(model, full_check=True)


def test_the_graph_names_no_file_of_this_machine(exported, finished_run):
    content = exported("onnx")[1].read_bytes()
    assert b".py" not in content
    assert str(finished_run().folder.parent).encode() not in content


def test_how_images_are_prepared_is_in_the_metadata(cli, config, tmp_path):
    for place in range(24):
        folder = tmp_path / "set" / ("a", "b")[place % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random_images(place + 1)[place].numpy()).save(folder / f"{place}.png")
    data = {"source": "folder", "path": str(tmp_path / "set"), "size": 28, "fit": "crop", "normalise": "imagenet"}
    data["prepare"] = ["shades-of-grey:6", "brightness:0.6"]
    result = crossward.run(config(data=data, partition={"kind": "iid", "sites": 2}, run={"rounds": 1}))
    (tmp_path / "set" / "a" / "0.png").unlink()  # the images of the run are not what they were
    output = cli("export", result.folder, "--out", tmp_path / "net.onnx")
    assert output.out.startswith("parity on 32 images of random pixels: ")
    session = session_of(tmp_path / "net.onnx")
    facts = session.get_modelmeta().custom_metadata_map
    assert facts["fit"] == "crop"
    assert json.loads(facts["prepare"]) == data["prepare"]
    assert json.loads(facts["normalisation"])["std"] == [0.229, 0.224, 0.225]
    [probabilities] = session.run(["probabilities"], {"pixels": random_images(3).numpy()})
    np.testing.assert_allclose(probabilities, result.deployed().predict(random_images(3)).numpy(), atol=1e-5)


def test_the_documented_use_of_a_graph(cli, exported, finished_run, photos, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "blood.onnx").write_bytes(exported("onnx")[1].read_bytes())
    (tmp_path / "scan.png").write_bytes((photos / "0.png").read_bytes())
    text = (Path(__file__).parents[2] / "docs" / "handover.md").read_text()
    [code] = re.findall(r"```python\n(import json\n.*?)```", text, re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    [row] = csv.DictReader(io.StringIO(cli("predict", finished_run().folder, "scan.png").out))
    assert names["probabilities"][0].tolist() == pytest.approx([float(p) for p in [*row.values()][2:]], abs=1e-5)


def test_segmentation_exports_class_maps(cli, segmented, tmp_path):
    output = cli("export", segmented.folder, "--out", tmp_path / "net.onnx")
    assert output.code == 0
    session = session_of(tmp_path / "net.onnx")
    pixels = random_images(3, 20)
    probabilities, maps = session.run(["probabilities", "class_map"], {"pixels": pixels.numpy()})
    assert probabilities.shape == (3, 2, 20, 20)
    assert maps.dtype == np.uint8
    assert (maps != segmented.deployed().predict(pixels).numpy()).mean() < 0.005  # ties may round to either class


@pytest.mark.parametrize(("to", "module", "part"), [("onnx", onnx_graph, "_probabilities_of")])
def test_a_network_that_predicts_otherwise_is_not_kept(cli, finished_run, tmp_path, monkeypatch, to, module, part):
    right = getattr(module, part)

    def wrong(model):
        return lambda images: right(model)(images) + 2e-4

    monkeypatch.setattr(module, part, wrong)
    output = cli("export", finished_run().folder, "--to", to, "--out", tmp_path / "net")
    assert output.code == 4
    assert "differ by at most 2.0e-04 (1e-04 is allowed)" in output.err
    assert not (tmp_path / "net").exists()


def test_an_export_that_cannot_be_written(cli, finished_run, tmp_path):
    output = cli("export", finished_run().folder, "--out", tmp_path / "none" / "net.onnx")
    assert output.code == 5
    assert "none/net.onnx" in output.err


@pytest.mark.parametrize("to", ["onnx", "monai-bundle"])
def test_a_network_without_a_graph_is_refused(cli, finished_run, tmp_path, to):
    output = cli("export", finished_run("fedsm").folder, "--to", to, "--out", tmp_path / "net")
    assert output.code == 2
    assert not (tmp_path / "net").exists()
    assert "cannot be written as one graph" in output.err
    assert "Traceback" not in output.err
    assert "torch.ops" not in output.out + output.err  # torch prints the graph as far as it got


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--to", "monai"], 2, "Did you mean 'monai-bundle'? Known: onnx, monai-bundle."),
        (["--which", "worst"], 2, "--which 'worst'"),
        (["--site", "hospital-9"], 2, "there is no site 'hospital-9'"),
        (["--to", "monai-bundle", "--out", "{full}"], 5, "exists"),
    ],
)
def test_exports_that_are_refused(cli, finished_run, tmp_path, words, code, message):
    (tmp_path / "something").touch()
    output = cli("export", finished_run().folder, *(word.format(full=tmp_path) for word in words))
    assert output.code == code
    assert message in output.err


# MONAI bundles --------------------------------------------------------------------------------------------------------


@pytest.fixture
def parser(monkeypatch):
    """parser(bundle, dataset) is MONAI's own parser of the bundle's configuration."""
    from monai.bundle import ConfigParser

    def read(bundle, images):
        monkeypatch.syspath_prepend(str(bundle))
        for name in [name for name in sys.modules if name.split(".")[0] == "scripts"]:
            monkeypatch.delitem(sys.modules, name)
        parser = ConfigParser()
        parser.read_config(bundle / "configs" / "inference.json")
        parser.read_meta(bundle / "configs" / "metadata.json")
        parser["bundle_root"] = str(bundle)
        parser["dataset_dir"] = str(images)
        return parser

    yield read
    for name in [name for name in sys.modules if name.split(".")[0] == "scripts"]:
        del sys.modules[name]


def test_a_bundle_predicts_what_the_network_does(cli, finished_run, parser, photos, tmp_path):
    result = finished_run()
    output = cli("export", result.folder, "--to", "monai-bundle", "--out", tmp_path / "bundle")
    assert output.code == 0, output.err
    assert output.out.splitlines()[0].startswith("parity on 16 test images of the run: ")
    assert output.out.splitlines()[1] == str(tmp_path / "bundle")
    config = parser(tmp_path / "bundle", photos)
    network = config.get_parsed_content("network")
    batches = list(config.get_parsed_content("dataloader"))
    predicted = torch.cat([config.get_parsed_content("inferer")(batch["image"], network) for batch in batches])
    [(files, pixels, _)] = result.deployed().read(sorted(photos.iterdir()))
    assert [file for batch in batches for file in batch["file"]] == [str(file) for file in files]
    torch.testing.assert_close(predicted.detach(), result.deployed().predict(pixels), atol=1e-5, rtol=1e-4)
    config.get_parsed_content("run")
    lines = (tmp_path / "bundle" / "predictions.csv").read_text().splitlines()
    ours = cli("predict", result.folder, photos).out.splitlines()
    assert [line.split(",")[:2] for line in lines] == [line.split(",")[:2] for line in ours]
    assert config.get_parsed_content("evaluator").classes == result.about["task"]["classes"]


def test_a_bundle_is_what_monai_expects(exported, finished_run, parser, photos):
    from monai.bundle import ConfigWorkflow, verify_net_in_out
    from monai.data import load_net_with_metadata

    _, bundle = exported("monai-bundle")
    parser(bundle, photos)
    files = {"config_file": str(bundle / "configs/inference.json"), "meta_file": str(bundle / "configs/metadata.json")}
    verify_net_in_out("network", **files, device="cpu", bundle_root=str(bundle))
    places = {"bundle_root": str(bundle), "dataset_dir": str(photos)}
    workflow = ConfigWorkflow(**files, workflow_type="infer", logging_file=False, **places)
    workflow.initialize()
    assert workflow.check_properties() == []
    about = json.loads((bundle / "configs/metadata.json").read_text())
    required = ("schema", "version", "monai_version", "pytorch_version", "numpy_version", "required_packages_version")
    required += ("task", "description", "authors", "copyright", "network_data_format")
    assert not [name for name in required if not about.get(name)]
    image = about["network_data_format"]["inputs"]["image"]
    assert (image["num_channels"], image["spatial_shape"], image["value_range"]) == (3, [28, 28], [0, 255])
    assert about["crossward"]["classes"] == finished_run().about["task"]["classes"]
    assert load_net_with_metadata(str(bundle / "models/model.ts"))[1]["task"] == about["task"]
    state = torch.load(bundle / "models/model.pt", weights_only=True)
    assert sum(weights.numel() for weights in state.values()) > 1000
    readme = (bundle / "docs/README.md").read_text()
    assert "the authors must supply these" in readme
    assert "<" not in readme  # every place of the template is filled
    assert "those to state who trained it" in (bundle / "LICENSE").read_text()
    assert (bundle / "docs/license.txt").read_text() == (bundle / "LICENSE").read_text()


def test_a_bundle_needs_nothing_of_crossward(exported):
    _, bundle = exported("monai-bundle")
    for file in (bundle / "scripts").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                assert not [alias.name for alias in node.names if alias.name.startswith("crossward")]
            elif isinstance(node, ast.ImportFrom):
                assert not (node.module or "").startswith("crossward")
    assert {*monai_bundle.COPIED.values()} == {file.stem for file in (bundle / "scripts").glob("[a-z]*.py")}


def test_a_bundle_that_segments(cli, segmented, parser, gallery, tmp_path):
    gallery.image("new/1.png", (50, 30))
    gallery.image("new/2.png")
    assert cli("export", segmented.folder, "--to", "monai-bundle", "--out", tmp_path / "bundle").code == 0
    config = parser(tmp_path / "bundle", gallery.root / "new")
    config.get_parsed_content("run")
    header, *rows = (tmp_path / "bundle" / "predictions.csv").read_text().splitlines()
    assert header == "image,mask,background,foreground"
    [(_, pixels, _)] = segmented.deployed().read(sorted((gallery.root / "new").iterdir()))
    for row, class_map in zip(rows, segmented.deployed().predict(pixels).numpy(), strict=True):
        mask = np.asarray(Image.open(row.split(",")[1]))
        assert (mask // 255 != class_map).mean() < 0.01
        assert float(row.split(",")[3]) == pytest.approx((mask == 255).mean(), abs=1e-6)


def test_names_in_a_bundle_are_not_executed(cli, config, parser, tmp_path, monkeypatch):
    """MONAI evaluates what begins with $, looks up what begins with @, and reads the files that % names."""
    monkeypatch.chdir(tmp_path)
    hostile = ["$open('pwned', 'w')", "@bundle_root", "%configs"]
    for place in range(36):
        folder = tmp_path / "set" / hostile[place % 3]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random_images(place + 1)[place].numpy()).save(folder / f"{place}.png")
    data = {"source": "folder", "path": str(tmp_path / "set"), "size": 28}
    result = crossward.run(config(data=data, partition={"kind": "iid", "sites": 2}, run={"rounds": 1}))
    assert cli("export", result.folder, "--to", "monai-bundle", "--out", tmp_path / "bundle").code == 0
    read = parser(tmp_path / "bundle", tmp_path / "set")
    classes = sorted(hostile)
    expected = [f"'{name}" for name in classes]
    assert read.get_parsed_content("_meta_")["crossward"]["classes"] == expected
    assert read.get_parsed_content("evaluator").classes == classes
    assert not (tmp_path / "pwned").exists()


def test_texts_that_monai_evaluates_are_quoted():
    value = {"a": ["$x", " @y", "50 %", 3, None], "b": {"c": "%z"}}
    assert inert(value) == {"a": ["'$x", "' @y", "50 %", 3, None], "b": {"c": "'%z"}}
