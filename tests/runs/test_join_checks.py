"""A hospital that joins has images that the federation has not seen."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from crossward.config.reading import to_toml
from crossward.errors import ConfigError, DataError
from crossward.runs.join import join
from crossward.runs.join_checks import UNKNOWN
from crossward.runs.run_directory import RunDir

PHANTOM = {"source": "phantom", "sites": 3, "train": 24, "val": 8, "test": 8, "global_test": 16, "size": 28}
SHARED_OUT = {"kind": "iid", "sites": 3, "leave_out": ["site-2"]}


def joins(folder, site, *overrides):
    return join(folder, str(site), overrides, lambda label: nullcontext([]))


@pytest.fixture(scope="module")
def federation(finished_run):
    return finished_run("mh-pflgb", run={"rounds": 1})


@pytest.fixture
def dealt(config, gallery, tmp_path):
    """A run over images in a folder that are dealt out by chance; its second site was left out."""
    import crossward

    for number in range(36):
        gallery.image(f"{('cat', 'dog')[number % 2]}/{number}.png", (28, 28))
    data = {"source": "folder", "path": str(gallery.root), "size": 28}
    return crossward.run(config(data=data, partition=SHARED_OUT, method={"name": "mh-pflgb"}, run={"rounds": 1}))


def test_a_site_that_was_left_out_keeps_its_images_whatever_the_seed(dealt):
    held = [
        RunDir(joins(dealt.folder, "site-2", f"run.seed={seed}").joined.folder).read("partition.json")["sites"]
        for seed in (0, 3)
    ]
    assert held[0] == held[1]
    assert list(held[0]) == ["site-2"]
    members = RunDir(dealt.folder).read("partition.json")["sites"]
    used = {name for parts in members.values() for names in parts.values() for name in names}
    assert used.isdisjoint(name for names in held[0]["site-2"].values() for name in names)


@pytest.mark.parametrize("change", ["partition.seed=3", "partition.sites=2", "partition.split=[0.5, 0.25, 0.25]"])
def test_a_site_that_was_left_out_is_not_dealt_anew(dealt, no_training, change):
    with no_training(), pytest.raises(ConfigError, match="would not be the site that the run left out") as error:
        joins(dealt.folder, "site-2", change)
    assert error.value.details[0] in ("site-1", "site-3")


@pytest.mark.parametrize("size", [28, 20])
def test_images_that_the_federation_has_seen_are_refused(dealt, tmp_path, no_training, size):
    """However large they are read."""
    own = tmp_path / "own.toml"
    own.write_text(to_toml({"data": {"source": "folder", "path": dealt.config["data"]["path"], "size": size}}))
    with (
        no_training(),
        pytest.raises(DataError, match="24 of the newcomer's 36 images, or their patients, are the") as e,
    ):
        joins(dealt.folder, own)
    assert "brings images that the federation has not seen" in e.value.hint


def test_a_member_does_not_join_again(federation, tmp_path, no_training):
    own = tmp_path / "own.toml"
    out = ["hospital-1", "hospital-3"]
    own.write_text(to_toml({"data": PHANTOM, "partition": {"kind": "site", "leave_out": out}}))
    with no_training(), pytest.raises(DataError, match="are the federation's"):
        joins(federation.folder, own)


def test_where_the_federation_s_images_are_not_at_hand_it_is_told(dealt, tmp_path, gallery):
    new, old = tmp_path / "new", gallery.root.rename(tmp_path / "elsewhere")
    new.mkdir()
    for name in ("cat", "dog"):
        (new / name).mkdir()
        for file in sorted((old / name).iterdir())[:8]:
            (new / name / file.name).write_bytes(file.read_bytes())
    own = tmp_path / "own.toml"
    own.write_text(to_toml({"data": {"source": "folder", "path": str(new)}}))
    done = joins(dealt.folder, own)
    assert UNKNOWN in done.joined.about["warnings"]
    assert UNKNOWN in done.alone.about["warnings"]
