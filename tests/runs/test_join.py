"""Hospitals that join a federation that is over: those it left out, and those that bring images of their own."""

from __future__ import annotations

import json
import re
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest
import torch

from crossward.config.reading import config_from, to_toml
from crossward.core.run import Observer
from crossward.core.weights import Weights
from crossward.data.manifest import manifest
from crossward.errors import ConfigError, CrosswardError, DataError, StorageError
from crossward.methods.mh_pflgb.method import MHpFLGB
from crossward.runs.build import prepare
from crossward.runs.checkpoint_writer import BEST, CHECKPOINT
from crossward.runs.join import join
from crossward.runs.run_directory import RunDir

LEFT_OUT = {"partition": {"leave_out": ["hospital-2"]}, "run": {"rounds": 2}}
ONE = {"source": "phantom", "sites": 1, "seed": 7, "train": 16, "val": 4, "test": 6, "global_test": 4}


def quietly(label):
    return nullcontext([])


def joins(folder, site, *overrides):
    return join(folder, str(site), overrides, quietly)


@pytest.fixture(scope="module")
def shared(finished_run):
    """A federation of mh-pflgb that left hospital-2 out."""
    return finished_run("mh-pflgb", **LEFT_OUT)


@pytest.fixture(scope="module")
def newcomer(shared):
    """Hospital-2, having joined it, and what the observers of both runs were shown at their start."""
    seen: dict[str, Starts] = {}

    @contextmanager
    def watched(label):
        seen[label] = Starts()
        yield [seen[label]]

    return join(shared.folder, "hospital-2", [], watched), seen


class Starts(Observer):
    def on_start(self, sites, plan, progress):
        self.weights = Weights.of(sites.open(0, 0, {}, fresh=True).model)
        self.state = progress.state
        self.method = sites.method


@pytest.fixture
def file(tmp_path):
    """A newcomer's TOML file."""

    def write(**sections):
        place = tmp_path / "newcomer.toml"
        place.write_text(to_toml(sections))
        return place

    return write


@pytest.fixture
def refused(no_training):
    """The error of a hospital that cannot join; neither it alone nor with the others has begun to train."""

    def call(folder, site, *overrides) -> CrosswardError:
        before = set(folder.rglob("*"))
        with no_training(), pytest.raises(CrosswardError) as error:
            joins(folder, site, *overrides)
        assert set(folder.rglob("*")) == before
        return error.value

    return call


# a site that was left out joins --------------------------------------------------------------------------------------
def test_both_runs_are_the_newcomer_s(newcomer, shared, config):
    done, _ = newcomer
    assert done.site == "hospital-2"
    assert [run.folder for run in (done.alone, done.joined)] == [
        shared.folder / "joined" / "hospital-2" / label for label in ("alone", "joined")
    ]
    whole = manifest(prepare(config_from(config())).federation)
    for run, method in ((done.alone, "local"), (done.joined, "mh-pflgb")):
        assert (run.about["status"], run.about["method"]["name"]) == ("finished", method)
        kept = RunDir(run.folder).read("partition.json")
        assert kept["sites"] == {"hospital-2": whole["sites"]["hospital-2"]}
        assert kept["recipe"]["joins"] == str(shared.folder)
        assert run.summary["best"]["metrics"]["test"]["local"]["sites"].keys() == {"hospital-2"}


def test_the_federation_is_not_moved(newcomer, shared):
    done, seen = newcomer
    given = RunDir(shared.folder).tree(BEST)["state"]["model"]
    for file in (CHECKPOINT, BEST):
        after = RunDir(done.joined.folder).tree(file)["state"]["model"]
        assert set(after) == set(given)
        assert all(name.startswith("bypass.") and after[name].equal(given[name]) for name in given)
    assert all(seen["joined"].state["model"][name].equal(given[name]) for name in given)


def test_alone_and_joined_begin_alike(newcomer):
    _, seen = newcomer
    alone, joined = seen["alone"].weights, seen["joined"].weights
    assert {name.split(".")[0] for name in alone} == {"body", "head"}
    assert all(alone[name].equal(joined[name]) for name in alone)
    assert seen["alone"].state == {}


def test_all_of_its_epochs_train_its_own_network(newcomer):
    """In a federation one of them is the bypass's, which others have finished training by now."""
    _, seen = newcomer
    assert seen["joined"].method == MHpFLGB(bypass_epochs=0)


def test_its_network_predicts_what_was_kept(newcomer, config):
    done, _ = newcomer
    federation = prepare(config_from(config())).federation
    images = federation.collection.images[federation.sites[1].test]
    for run in (done.alone, done.joined):
        kept = run.predictions(run.summary["best"]["round"])["hospital-2"]["test"]
        torch.testing.assert_close(run.deployed("hospital-2").predict(images), kept, atol=1e-6, rtol=1e-5)
    assert (
        not done.alone.deployed("hospital-2").predict(images).equal(done.joined.deployed("hospital-2").predict(images))
    )


def test_a_second_attempt_leaves_the_first_alone(newcomer, shared, run_contents, cli):
    done, _ = newcomer
    before = [run_contents(run.folder) for run in (shared, done.alone, done.joined)]
    said = cli("join", shared.folder, "--site", "hospital-2", "--json", "--set", "run.rounds=1")
    assert (said.code, said.err) == (0, "")
    *lines, told = map(json.loads, said.out.splitlines())
    assert [(line["run"], line["round"]) for line in lines] == [("alone", 1), ("joined", 1)]
    assert told["site"] == "hospital-2"
    assert re.fullmatch(r"hospital-2-\d+", Path(told["folder"]).relative_to(shared.folder / "joined").name)
    assert (told["alone"]["method"], told["joined"]["method"]) == ("local", "mh-pflgb")
    better = told["joined"]["local"]["f1"] - told["alone"]["local"]["f1"]
    assert told["gain"]["f1"] == pytest.approx(better, abs=1e-12)
    assert [run_contents(run.folder) for run in (shared, done.alone, done.joined)] == before


def test_the_command_line_shows_a_table(finished_run, cli):
    folder = finished_run("fedavg", **LEFT_OUT).folder
    said = cli("join", folder, "--site", "hospital-2", "--set", "run.rounds=1")
    assert (said.code, said.err) == (0, "")
    told = said.out.splitlines()
    assert next(line for line in told if not line.startswith("note: ")) == "alone: 1 sites, 1 rounds"
    assert "hospital-2: alone, and having joined" in said.out
    assert [line.split()[0] for line in told if line.strip().startswith(("local ", "fedavg "))] == ["local", "fedavg"]
    assert re.fullmatch(r"By joining, on its own test set: acc [+-]\d+\.\d, F1 [+-]\d+\.\d.*", told[-2])
    assert Path(told[-1]).parent == folder / "joined"


def test_notes_of_both_runs_are_told_once(shared, file, cli):
    """Each run keeps them; a person reads them before the first."""
    said = cli("join", shared.folder, "--site", file(data=ONE, train={"optimizer": "adam"}), "--set", "run.rounds=1")
    assert said.code == 0, said.err
    told = [line.removeprefix("note: ") for line in said.out.splitlines() if line.startswith("note: ")]
    folder = Path(said.out.splitlines()[-1])
    kept = [json.loads((folder / label / "run.json").read_text())["warnings"] for label in ("alone", "joined")]
    assert {*kept[0]} & {*kept[1]}
    assert sorted(told) == sorted({*kept[0], *kept[1]})


# hospitals that bring images of their own ----------------------------------------------------------------------------
def test_a_hospital_with_its_own_images_and_net(shared, file):
    own = file(data=ONE | {"size": 32}, net={"name": "resnet18", "width": 0.125}, train={"lr": 0.01})
    done = joins(shared.folder, own, "run.rounds=1")
    assert done.site == "hospital-1"  # the one that its data name
    about = done.joined.about
    assert (about["net"]["name"], about["net"]["options"], about["net"]["size"]) == ("resnet18", {"width": 0.125}, 32)
    assert (about["config"]["train"]["lr"], about["config"]["train"]["batch_size"]) == (0.01, 8)  # the rest as the run
    assert (about["config"]["data"]["seed"], about["config"]["partition"]["kind"]) == (7, "site")
    held = RunDir(done.joined.folder).read("partition.json")["sites"]["hospital-1"]
    sizes = {part: len(names) for part, names in held.items()}
    assert sizes == {"train": 16, "val": 4, "test": 6}
    assert "local" in done.joined.summary["best"]["metrics"]["test"]


def test_a_hospital_with_a_folder_of_images(shared, file, gallery):
    for number, name in enumerate([c for c in shared.about["task"]["classes"] for _ in range(4)]):
        gallery.image(f"{name}/{number}.png", (40, 30))
    own = file(data={"source": "folder", "path": str(gallery.root)}, partition={"split": [0.5, 0.25, 0.25]})
    done = joins(shared.folder, own, "run.rounds=1")
    data = done.joined.config["data"]
    assert (data["size"], data["channels"], data["normalise"]) == (28, 3, "half")  # read as the federation's were
    assert done.site == "site-1"
    assert done.joined.summary["best"]["metrics"]["test"]["local"]["mean"]["n"] == 8


@pytest.mark.parametrize("kind", ["site", "auto"])
def test_one_of_several_sites_of_a_file(shared, file, kind):
    two = ONE | {"sites": 2}
    own = file(data=two, partition={"kind": kind, "leave_out": ["hospital-1"]})
    assert joins(shared.folder, own, "run.rounds=1").site == "hospital-2"


def test_a_recipe_of_the_newcomer_is_not_overruled_by_the_run(shared, file):
    own = file(data=ONE, train={"recipe": "paper", "epochs": 1})
    trained = joins(shared.folder, own, "run.rounds=1").joined.config["train"]
    assert (trained["optimizer"], trained["lr"], trained["epochs"]) == ("adam", 1e-4, 1)


# who cannot join -----------------------------------------------------------------------------------------------------
def test_a_site_that_is_not_known(shared, finished_run, refused):
    error = refused(shared.folder, "hospital-3")
    assert "'hospital-3' is neither a site that the run left out nor a TOML file" in error.what
    assert error.hint == "It left out: hospital-2."
    assert "It left none out" in refused(finished_run().folder, "hospital-3").hint
    assert "cannot read the configuration" in refused(shared.folder, "none.toml").what


def test_a_run_that_has_not_finished(config, interrupted_run, refused):
    folder = interrupted_run(config(**LEFT_OUT))
    error = refused(folder, "hospital-2")
    assert type(error) is StorageError
    assert error.what == f"{folder} has not finished: it is interrupted"
    assert f"crossward resume {folder}" in error.hint


@pytest.mark.parametrize(
    ("method", "told"),
    [
        ("central", "central cannot be joined: its rounds need the other sites"),
        ("fedmd", "fedmd cannot be joined: its rounds need the other sites"),
        ("local", "local cannot be joined: its sites do not share one network, nor a part of one"),
        ("fedproto", "fedproto cannot be joined: its sites do not share one network, nor a part of one"),
        ("fedproc", "fedproc cannot be joined: its rounds also tell the sites prototypes, known, alpha"),
    ],
)
def test_methods_that_cannot_be_joined(finished_run, refused, method, told):
    federation = finished_run(method, run={"rounds": 1}, partition={"leave_out": ["hospital-2"], "public": 0.2})
    error = refused(federation.folder, "hospital-2")
    assert (type(error), error.what) == (ConfigError, told)


def test_a_network_that_does_not_fit(finished_run, refused):
    folder = finished_run("fedavg", **LEFT_OUT).folder
    error = refused(folder, "hospital-2", 'net={ name = "resnet18", width = 0.125 }')
    assert error.what == "fedavg: what this federation shares does not fit the newcomer's network"
    assert "body.0.weight: (6, 3, 5, 5) is sent, its own is absent" in error.details
    assert "head.weight: (8, 84) is sent, its own is (8, 64)" in error.details
    assert "mh-pflgb" in error.hint


@pytest.mark.parametrize(
    ("sections", "told"),
    [
        ({"net": {"name": "cnn"}}, "has no section [data]"),
        (
            {"data": ONE, "method": {"name": "fedavg"}, "run": {"rounds": 1}},
            "not the newcomer's to say\n  [method]\n  [run]",
        ),
        ({"data": "phantom"}, "not the newcomer's to say\n  [data]"),
        ({"data": ONE | {"sights": 2}}, "data.sights: no such key"),
        ({"data": {"source": "phantomm"}}, "phantomm"),
        ({"data": ONE, "net": {"name": "cmm"}}, "net.name: there is no net 'cmm'"),
        ({"data": ONE | {"kind": "polyp", "size": 32}}, "for segmentation, the federation's for classification"),
        ({"data": ONE | {"sites": 3}, "partition": {"kind": "site"}}, "data are of 3 sites: hospital-1, hosp"),
    ],
)
def test_files_that_are_refused(shared, file, refused, sections, told):
    error = refused(shared.folder, file(**sections))
    assert type(error) is ConfigError
    assert told in str(error)


@pytest.fixture
def table(gallery, shared):
    """A table of one site's images whose labels are the first two classes of the federation; or only the first."""

    def made(classes, count=2, **options):
        rows = gallery.rows(("a",))
        named = [row | {"label": classes[("dog", "cat").index(row["label"])]} for row in rows]
        chosen = [row for row in named if row["label"] in classes[:count]]
        return gallery.table(chosen) | {"classes": classes, **options}

    return made


def test_other_classes_and_colours(shared, file, gallery, table, refused):
    error = refused(shared.folder, file(data=gallery.table(gallery.rows(("a",)))))
    assert error.what == "the newcomer's classes are not those of the federation"
    assert error.details[1] == "the newcomer's alone: cat, dog"
    known = shared.about["task"]["classes"]
    assert refused(shared.folder, file(data=table(known[::-1]))).details[0].startswith("in another order: ")
    error = refused(shared.folder, file(data=table(known, channels=1)))
    assert error.what == "the newcomer's images have 1 channels, the federation's 3"


def test_a_hospital_of_one_class(shared, file, table, refused):
    error = refused(shared.folder, file(data=table(shared.about["task"]["classes"], count=1)))
    assert type(error) is DataError
    assert any("fewer than 2 classes" in line for line in error.details)
