"""Bad input through the whole stack: the right error and exit code, every offender named, nothing begun."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from crossward.errors import ConfigError, CrosswardError, DataError, RunError
from crossward.runs import lifecycle as api


@pytest.fixture
def refused(config, cli, toml_file, no_training):
    """The error of a run that never begins, by the API and by the command line."""

    def run(kind: type[CrosswardError], **sections) -> CrosswardError:
        asked = config(**sections)
        with no_training(), pytest.raises(CrosswardError) as error:
            api.run(asked)
        with no_training():
            said = cli("run", toml_file(asked))
        assert isinstance(error.value, kind)
        assert said.code == kind.exit_code
        without_lines = re.sub(r" \([^()]*, line \d+\)", "", said.err)  # a file can say where a mistake is
        assert without_lines == f"Error: {error.value}\n"
        assert "Traceback" not in said.err
        assert not Path(asked["run"]["out"]).exists()
        return error.value

    return run


# images and masks ----------------------------------------------------------------------------------------------------
def test_unreadable_images_are_all_named(gallery, refused):
    rows = gallery.rows()
    (gallery.root / rows[0]["path"]).write_bytes(b"")
    (gallery.root / rows[2]["path"]).write_bytes(b"no image at all")
    (gallery.root / rows[3]["path"]).write_bytes((gallery.root / rows[3]["path"]).read_bytes()[:200])
    (gallery.root / "photo.doc").write_bytes((gallery.root / rows[6]["path"]).read_bytes())
    rows[6] |= {"path": "photo.doc"}
    error = refused(DataError, data=gallery.table(rows))
    assert [line.split(":")[0] for line in error.details] == ["row 2", "row 4", "row 5", "row 8"]
    assert "is empty (0 bytes)" in error.details[0]
    assert "its content is not an image" in error.details[1]
    assert "cut short" in error.details[2]
    assert 'the extension ".doc"' in error.details[3]
    assert "quarantine" in error.hint


def test_a_table_that_names_missing_files_lists_them_by_row(gallery, refused):
    rows = gallery.rows()
    for number in (1, 4, 7):
        (gallery.root / rows[number]["path"]).unlink()
    error = refused(DataError, data=gallery.table(rows))
    assert [line.split(": ")[:2] for line in error.details] == [[f"row {n + 2}", rows[n]["path"]] for n in (1, 4, 7)]
    assert all("no such file" in line for line in error.details)


def test_a_mask_of_another_size_is_named(gallery, refused):
    rows = gallery.masked()
    gallery.mask(rows[3]["mask"], size=(10, 20))
    [line] = refused(DataError, data=gallery.table(rows) | {"bad_files": "refuse"}).details
    assert line == (
        f"row 5: {rows[3]['path']}: its mask {rows[3]['mask']} is 10 x 20 pixels, but the image is 20 x 20 pixels"
        " (site a)"
    )


def test_a_mask_of_unknown_classes_is_named(gallery, refused):
    rows = gallery.masked()
    gallery.mask(rows[0]["mask"], value=7)
    data = gallery.table(rows) | {"bad_files": "refuse"} | {"classes": ["background", "polyp", "tool"]}
    details = refused(DataError, data=data).details
    assert (
        f"row 2: {rows[0]['path']}: mask {rows[0]['mask']}: has the values 0, 7, but there are 3 classes" in details[0]
    )


# labels, sites and splits --------------------------------------------------------------------------------------------
def test_a_label_outside_the_classes_is_named(gallery, refused):
    rows = gallery.rows()
    rows[2]["label"] = "dgo"
    data = gallery.table(rows) | {"bad_files": "refuse", "classes": ["cat", "dog"]}
    [line] = refused(DataError, data=data).details
    assert line == f'row 4: {rows[2]["path"]}: its label "dgo" is not among the classes; the nearest is "dog" (site a)'


def test_an_array_label_outside_the_classes_is_named(tmp_path, refused):
    parts = {f"{part}_images": np.zeros((4, 28, 28), np.uint8) for part in ("train", "val", "test")}
    labels = {f"{part}_labels": np.arange(4)[:, None] for part in ("train", "val", "test")}
    np.savez(tmp_path / "set.npz", **parts, **labels)
    data = {"source": "npz", "path": str(tmp_path / "set.npz"), "classes": ["a", "b"]}
    assert "has the label 3, but 2 classes are named" in refused(DataError, data=data).what


def test_class_names_that_differ_between_sites_are_named(gallery, refused):
    rows = gallery.rows()
    for row in rows:
        if row["site"] == "b":
            row["label"] = row["label"].title()
    details = refused(DataError, data=gallery.table(rows)).details
    assert set(details) == {
        'site b: the label "Dog" (5 rows) looks like "dog" of site a',
        'site b: the label "Cat" (5 rows) looks like "cat" of site a',
    }


def test_duplicates_across_train_and_test_are_refused_in_pairs(gallery, refused):
    rows = gallery.rows()
    train, test = rows[0]["path"], rows[-1]["path"]
    (gallery.root / test).write_bytes((gallery.root / train).read_bytes())
    [line] = refused(DataError, data=gallery.table(rows)).details
    assert line == f"duplicate image: {train} (a, train) = {test} (b, test)"


def test_a_site_without_rows_is_named(gallery, refused):
    error = refused(DataError, data=gallery.table(gallery.rows(("a",))), partition={"kind": "iid", "sites": 30})
    assert any("site" in line for line in (error.what, *error.details))


def test_one_class_in_all_is_refused(gallery, refused):
    rows = [row | {"label": "dog"} for row in gallery.rows()]
    assert refused(DataError, data=gallery.table(rows)).details == ("training rows of fewer than 2 classes: dog",)


@pytest.mark.parametrize(
    ("names", "reason"),
    [(("x/1", "y"), "a tree cannot hold a name with '/'"), (("server", "y"), "the server's own rows have that name")],
)
def test_site_names_that_cannot_be_used_are_refused(gallery, refused, names, reason):
    assert any(names[0] in line for line in refused(DataError, data=gallery.table(gallery.rows(names))).details), reason


@pytest.mark.parametrize(
    ("lacking", "warning"),
    [("site", "site a trains on one sample"), ("class", "site a trains on one class only: dog")],
)
def test_a_site_of_one_sample_or_one_class_runs_with_a_warning(gallery, config, cli, toml_file, lacking, warning):
    rows = gallery.rows()
    ours = [row for row in rows if row["site"] == "a" and row["split"] == "train"]
    rows = [row for row in rows if row not in (ours[1:] if lacking == "site" else ours[1::2])]
    said = cli("run", toml_file(config(data=gallery.table(rows))))
    assert said.code == 0
    assert f"note: {warning}" in said.out
    [folder] = Path(config()["run"]["out"]).iterdir()
    assert warning in api.load(folder).about["warnings"]
    assert api.load(folder).summary["failures"] == 0


# configurations ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("sections", "told"),
    [
        ({"method": {"name": "fedagv"}}, "method: there is no method 'fedagv'"),
        ({"net": {"name": "rasnet18"}}, "net.name: there is no net 'rasnet18'"),
        ({"method": {"name": "fedavg+tf"}}, "plugin: there is no plugin 'tf'"),
        ({"run": {"rounds": -1}}, "run.rounds: input should be greater than or equal to 1, not -1"),
        ({"run": {"ronds": 1}}, "run.ronds: no such key"),
        (
            {"method": {"name": "fedprox", "mu": -0.5}},
            "method.mu: input should be greater than or equal to 0, not -0.5",
        ),
        ({"task": {"smoothing": 0.1}}, "The task 'classification' does not know these options."),
        ({"task": {"label_smoothing": 2}}, "label_smoothing must be a number from 0 to below 1, not 2."),
        ({"net": {"name": "resnet18", "width": "wide"}}, "width: must be a number, not 'wide'."),
        ({"net": {"name": "unet"}}, "the net 'unet' does not serve classification"),
        ({"evaluate": {"select": "f2"}}, "evaluate.select: there is no metric 'f2' on validation sets"),
        ({"evaluate": {"select": "f1+acuracy"}}, "Did you mean 'accuracy'?"),
        ({"evaluate": {"select": "f1+"}}, 'a "+" needs a metric on either side'),
        ({"evaluate": {"select": "f1+accuracy+f1"}}, "'f1+accuracy+f1' has f1 more than once"),
        ({"evaluate": {"select": "f1+nll+ece"}}, "of nll, ece less is better"),
        ({"evaluate": {"select": "f1+recall"}}, "recall is a list, one for each class; its mean is balanced_accuracy"),
        ({"evaluate": {"select": "support"}}, "'support' is no metric with one number to compare"),
        ({"data": {"normalise": [[0.5, 0.5], [1, 1]]}}, "does not fit images of 3 channel(s)"),
        ({"data": {"size": 20}}, "size = 20: at least 24 pixels"),
        ({"data": {"augment": ["shake"]}}, "shake"),
        ({"engine": {"device": "cuda:7"}}, "engine.device = 'cuda:7' is not on this machine"),
        ({"engine": {"device": "abacus"}}, "engine.device = 'abacus' is not on this machine"),
        ({"partition": {"public": 0.9}}, "public"),
        ({"partition": {"kind": "dirichlet", "sites": 2, "local_split": [0.5, 0.1, 0.1]}}, "must add up to 1"),
    ],
)
def test_mistakes_in_a_configuration(refused, sections, told):
    assert told in str(refused(ConfigError, **sections))


def test_a_strict_pool_is_refused(refused):
    assert "engine.strict" in refused(ConfigError, engine={"name": "pool", "strict": True, "device": "cpu"}).what


def test_a_strict_pool_is_a_mistake_in_the_configuration(config, no_training):
    with no_training(), pytest.raises(ConfigError, match=r"engine\.strict is for engine\.name"):
        api.run(config(engine={"name": "pool", "strict": True, "device": "cpu"}))


def test_images_too_small_for_the_net_are_refused(gallery, refused):
    error = refused(ConfigError, data=gallery.table(gallery.rows()) | {"size": 12})
    assert error.what == "The net 'cnn' needs images of at least 16 x 16 pixels; these have 12."


def test_a_classifier_for_masks_is_refused(gallery, refused):
    error = refused(ConfigError, data=gallery.table(gallery.masked()), net={"name": "cnn"})
    assert (error.what, error.hint) == (
        "the net 'cnn' does not serve segmentation",
        "These do: unet, unetpp, fcn, resunet.",
    )


def test_data_that_is_not_there_is_refused(refused, tmp_path):
    for source in ("folder", "table", "npz"):
        data = {"source": source, "path": str(tmp_path / "none")}
        assert str(tmp_path / "none") in str(refused(DataError, data=data))
    assert "CROSSWARD_DATA" in str(refused(ConfigError, data={"source": "medmnist", "name": "bloodmnist"}))


def test_batches_that_batchnorm_cannot_train_on_are_told(gallery, config):
    net = {"name": "resnet18", "width": 0.125, "stem": "imagenet"}
    data = gallery.table(gallery.rows()) | {"size": 32}
    with pytest.raises(CrosswardError, match="batch_size"):
        api.run(config(data=data, net=net, train={"batch_size": 1}))


# runs that cannot go on ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("sections", "told"),
    [
        ({"run": {"min_clients": 4}}, "round 1: 3 clients are left, 4 are needed"),
        ({"train": {"lr": 1e30, "batch_size": 4}}, "round 1: 0 clients are left, 1 are needed"),
    ],
)
def test_too_few_clients_end_the_run(config, cli, toml_file, sections, told):
    said = cli("run", toml_file(config(**sections)), "-q")
    assert said.code == RunError.exit_code == 4
    assert said.err.startswith(f"Error: {told}\n")
    assert "Traceback" not in said.err
    [folder] = Path(config()["run"]["out"]).iterdir()
    about = api.load(folder).about
    assert (about["status"], told in about["error"]) == ("failed", True)
    if "train" in sections:
        assert all(f"hospital-{n}: " in said.err for n in (1, 2, 3))
