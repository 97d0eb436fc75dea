"""The command predict."""

from __future__ import annotations

import csv
import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import crossward
from crossward.config.reading import config_from
from crossward.runs.build import prepare
from crossward.runs.deployed import Deployed


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


def test_one_bad_file_costs_no_prediction(cli, finished_run, pictures, tmp_path):
    """879 good images and a truncated one once gave a CSV of nothing but its header."""
    whole = (pictures / "07.png").read_bytes()
    (pictures / "07.png").write_bytes(whole[: len(whole) // 2])
    output = cli("predict", finished_run().folder, pictures, "--out", tmp_path / "p.csv")
    rows = csv_rows((tmp_path / "p.csv").read_text())
    assert [row["image"][-6:] for row in rows] == [f"{n:02d}.png" for n in range(16) if n != 7]
    assert all(row["predicted"] for row in rows)
    assert output.code == 3
    assert "1 of 16 images cannot be read; the other 15 are predicted" in output.err
    assert f"{pictures / '07.png'}: is cut short" in output.err
    [bad] = csv_rows((tmp_path / "p.problems.csv").read_text())
    assert bad["image"] == str(pictures / "07.png")
    assert "cut short" in bad["problem"]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["p.csv", "p.problems.csv", "pictures"]
    (pictures / "07.png").write_bytes(whole)
    assert cli("predict", finished_run().folder, pictures, "--out", tmp_path / "p.csv").code == 0
    assert len(csv_rows((tmp_path / "p.csv").read_text())) == 16
    assert not (tmp_path / "p.problems.csv").exists()


def test_one_bad_file_costs_no_prediction_on_standard_output(cli, finished_run, pictures):
    (pictures / "00.png").write_bytes(b"")
    output = cli("predict", finished_run().folder, pictures)
    assert output.code == 3
    assert len(csv_rows(output.out)) == 15
    assert "00.png: is empty" in output.err


def test_if_no_image_can_be_read_there_is_no_csv(cli, finished_run, tmp_path):
    (tmp_path / "bad.png").write_bytes(b"rubbish")
    (tmp_path / "p.csv").write_text("of yesterday\n")
    output = cli("predict", finished_run().folder, tmp_path / "bad.png", "--out", tmp_path / "p.csv")
    assert output.code == 3
    assert "1 of 1 images cannot be read\n" in output.err
    assert (tmp_path / "p.csv").read_text() == "of yesterday\n"
    assert not (tmp_path / "p.csv.part").exists()


def test_the_file_grows_and_takes_its_name_at_the_end(cli, finished_run, pictures, tmp_path, monkeypatch):
    """What was predicted before a crash or Ctrl-C stays in the part of the file."""
    network_type = Deployed
    predict = network_type.predict
    sizes = []

    def interrupted(self, images):
        sizes.append((tmp_path / "p.csv.part").stat().st_size)
        if len(sizes) == 3:
            raise KeyboardInterrupt
        return predict(self, images)

    monkeypatch.setattr(network_type, "predict", interrupted)
    monkeypatch.setattr("crossward.runs.deployed.predict_batch_size", lambda samples: 4)
    output = cli("predict", finished_run().folder, pictures, "--out", tmp_path / "p.csv")
    assert output.code == 130
    assert str(tmp_path / "p.csv.part") in output.err.replace("\n", "")
    assert sizes[0] == 0 < sizes[1] < sizes[2]
    assert len(csv_rows((tmp_path / "p.csv.part").read_text())) == 8
    assert not (tmp_path / "p.csv").exists()
    monkeypatch.setattr(network_type, "predict", predict)
    assert cli("predict", finished_run().folder, pictures, "--out", tmp_path / "p.csv").code == 0
    assert len(csv_rows((tmp_path / "p.csv").read_text())) == 16
    assert not (tmp_path / "p.csv.part").exists()


def test_images_in_an_archive(cli, finished_run, pictures, tmp_path):
    with zipfile.ZipFile(tmp_path / "scans.zip", "w") as archive:
        for file in sorted(pictures.iterdir())[:3]:
            archive.write(file, f"ward/{file.name}")
        archive.writestr("ward/broken.png", b"rubbish")
        archive.writestr("notes.txt", b"no image")
    output = cli("predict", finished_run().folder, tmp_path / "scans.zip")
    assert output.code == 3
    assert "1 of 4 images cannot be read; the other 3 are predicted" in output.err
    archived = csv_rows(output.out)
    assert [row["image"] for row in archived] == [f"{tmp_path}/scans.zip/ward/{n:02d}.png" for n in range(3)]
    plain = csv_rows(cli("predict", finished_run().folder, pictures).out)
    assert [row["basophil"] for row in archived] == [row["basophil"] for row in plain[:3]]


HOSTILE = ["=cmd|'!A1'.png", "+1.png", "@x.png", "a,b;c.png", 'quo"te.png', "line\nbreak.png", "tab\t.png", "a\\b.png"]
HOSTILE += ["\u202egnp.exe.png", "x" * 240 + ".png", "-", b"latin-\xe9.png".decode("utf-8", "surrogateescape")]


def test_hostile_file_names_are_safe_in_the_csv(cli, finished_run, pictures, tmp_path, monkeypatch):
    source = (pictures / "00.png").read_bytes()
    names = [name if name.endswith(".png") else f"{name}.png" for name in HOSTILE]
    (tmp_path / "h").mkdir()
    monkeypatch.chdir(tmp_path / "h")
    for name in names:
        Path(name).write_bytes(source)
    output = cli("predict", finished_run().folder, *(f"./{name}" for name in names), "--out", tmp_path / "h.csv")
    assert output.code == 0, output.err
    text = (tmp_path / "h.csv").read_text(encoding="utf-8")
    assert text.count("\n") == len(names) + 1  # a row is a line
    assert all(character.isprintable() or character in "\r\n" for character in text)
    rows = csv_rows(text)
    cells = [cell for row in rows for cell in row.values()]
    assert not [cell for cell in cells if cell.startswith(("=", "+", "-", "@"))]
    assert rows[0]["image"] == "'=cmd|'!A1'.png"  # pathlib drops the "./"
    assert rows[5]["image"] == r"line\nbreak.png"
    assert rows[9]["image"] == names[9]
    assert rows[11]["image"] == r"latin-\udce9.png"


def test_json_lines_have_names_as_they_are(cli, finished_run, pictures, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "=a\nb.png").write_bytes((pictures / "00.png").read_bytes())
    [line] = cli("predict", finished_run().folder, "=a\nb.png", "--json").out.splitlines()
    row = json.loads(line)
    assert row["image"] == "=a\nb.png"
    assert sum(row["probabilities"].values()) == pytest.approx(1, abs=1e-5)
    assert row["predicted"] == max(row["probabilities"], key=row["probabilities"].get)


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
    kinds = [f"{kind} of {name}" for kind in ("pixels", "share") for name in ("background", "foreground")]
    assert list(row) == ["image", "mask", "width", "height", *kinds]
    assert float(row["share of background"]) + float(row["share of foreground"]) == pytest.approx(1, abs=1e-5)
    mask = np.asarray(Image.open(row["mask"]))
    assert mask.shape == (30, 50) == (int(row["height"]), int(row["width"]))
    assert (mask == 255).sum() == int(row["pixels of foreground"])
    assert (mask == 255).mean() == pytest.approx(float(row["share of foreground"]), abs=1e-6)
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
    mask = np.asarray(network.mask_picture(network.class_map(torch.ones(20, 20, dtype=torch.uint8), (60, 20))))
    assert mask.shape == (20, 60)
    assert (mask[:, 20:40] == 255).all()
    assert not mask[:, :20].any()


# groups ---------------------------------------------------------------------------------------------------------------


def test_patients_by_a_table(cli, finished_run, pictures, tmp_path):
    """Patient A has the images 0 to 4, patient B the others but the last, which is in no group."""
    lines = [f"pictures/{n:02d}.png;{'A' if n < 5 else '=B'}" for n in range(15)]
    (tmp_path / "groups.csv").write_text("path;group\n" + "\n".join(lines) + "\n")
    words = ["--groups", tmp_path / "groups.csv", "--out", tmp_path / "p.csv"]
    output = cli("predict", finished_run().folder, pictures, *words)
    assert output.code == 3
    assert "1 of 16 images are predicted, but in no group" in output.err
    assert "15.png" in output.err
    assert len(csv_rows((tmp_path / "p.csv").read_text())) == 16
    classes = finished_run().about["task"]["classes"]
    a, b = csv_rows((tmp_path / "p.groups.csv").read_text())
    assert list(a) == ["group", "images", "predicted", "agreement", *(f"mean of {name}" for name in classes)]
    assert [a["group"], a["images"], b["group"], b["images"]] == ["A", "5", "'=B", "10"]
    stored = finished_run().predictions(finished_run().summary["best"]["round"])["server"]["test"]
    for row, images in ((a, stored[:5]), (b, stored[5:15])):
        mean = images.mean(0)
        assert [float(row[f"mean of {name}"]) for name in classes] == pytest.approx(mean.tolist(), abs=2e-6)
        assert row["predicted"] == classes[int(mean.argmax())]
        assert float(row["agreement"]) == pytest.approx(float((images.argmax(1) == mean.argmax()).float().mean()))


def test_bad_files_and_files_of_no_group_are_both_reported(cli, finished_run, pictures, tmp_path):
    (pictures / "00.png").write_bytes(b"")
    words = ["--group-pattern", r"^(1\d)\.png", "-o", tmp_path / "p.csv"]
    output = cli("predict", finished_run().folder, pictures, *words)
    assert output.code == 3
    assert "1 of 16 images cannot be read; the other 15 are predicted" in output.err
    assert "9 others are in no group" in output.err
    assert len(csv_rows((tmp_path / "p.groups.csv").read_text())) == 6


def test_patients_by_a_pattern_without_a_file_of_predictions(cli, finished_run, pictures, tmp_path):
    words = ["--group-pattern", r"^(\d)\d\.png", "--groups-out", tmp_path / "g.csv"]
    output = cli("predict", finished_run().folder, pictures, *words)
    assert output.code == 0
    assert len(csv_rows(output.out)) == 16
    rows = csv_rows((tmp_path / "g.csv").read_text())
    assert [(row["group"], row["images"]) for row in rows] == [("0", "10"), ("1", "6")]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--groups", "{tmp}/none.csv", "-o", "{tmp}/p.csv"], 3, "cannot read"),
        (["--groups", "{tmp}/wrong.csv", "-o", "{tmp}/p.csv"], 3, "no column group"),
        (["--groups", "{tmp}/twice.csv", "-o", "{tmp}/p.csv"], 3, "row 3: 'a.png' is of another group in row 2"),
        (["--groups", "{tmp}/gap.csv", "-o", "{tmp}/p.csv"], 3, "row 2: the group is missing"),
        (["--groups", "source", "-o", "{tmp}/p.csv"], 2, "name no groups in their paths"),
        (["--group-pattern", "(", "-o", "{tmp}/p.csv"], 2, "not a regular expression"),
        (["--group-pattern", r"\d", "-o", "{tmp}/p.csv"], 2, "no ( )"),
        (["--group-pattern", "(.)"], 2, "--groups-out"),
        (["--groups-out", "{tmp}/g.csv"], 2, "--groups-out needs groups"),
        (["--group-pattern", "(.)", "--groups", "source", "-o", "{tmp}/p.csv"], 2, "two rules"),
        (["--group-pattern", "(.)", "-o", "{tmp}/p.csv", "--groups-out", "{tmp}/p.csv"], 2, "two names"),
    ],
)
def test_groups_that_are_refused(cli, finished_run, pictures, tmp_path, words, code, message):
    (tmp_path / "wrong.csv").write_text("path,patient\na.png,1\n")
    (tmp_path / "twice.csv").write_text("path,group\na.png,1\na.png,2\n")
    (tmp_path / "gap.csv").write_text("path,group\na.png,\n")
    output = cli("predict", finished_run().folder, pictures, *(word.format(tmp=tmp_path) for word in words))
    assert output.code == code
    assert message in output.err
    assert not (tmp_path / "p.csv").exists()


@pytest.mark.parametrize(
    ("data", "path", "group"),
    [
        ({"source": "folder", "path": "x", "group": r"patient-(\w+)/"}, "ward/patient-7b/1.png", "7b"),
        ({"source": "folder", "path": "x", "group": r"patient-(\w+)/"}, "ward/1.png", ""),
        ({"source": "oct2017"}, "CNV-1016042-3.jpeg", "1016042"),
        ({"source": "breakhis"}, "new/SOB_B_A-14-22549AB-40-001.png", "14-22549"),
        ({"source": "breakhis"}, "new/slide.png", ""),
    ],
)
def test_sources_that_name_the_patient_in_the_path(data, path, group):
    rule = config_from({"data": data}).data.group_rule()
    assert rule is not None
    assert rule(path) == group


def test_segmentation_has_no_groups(cli, segmented, gallery, tmp_path):
    gallery.image("new/large.png", (50, 30))
    words = ["--masks", tmp_path / "masks", "--group-pattern", "(.)", "-o", tmp_path / "p.csv"]
    output = cli("predict", segmented.folder, gallery.root / "new", *words)
    assert output.code == 2
    assert "this network segments" in output.err
