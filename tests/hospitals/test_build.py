"""The two halves of a run: together they are the simulation, and neither has more than its own."""

from __future__ import annotations

import csv
import json
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from crossward.core.engine import SERVER
from crossward.core.weights import Weights
from crossward.errors import ConfigError
from crossward.hospitals.build import build_coordinator_run, build_site_run, image_facts, merge_site_settings
from crossward.runs.build import prepare
from crossward.testing.short_runs import assert_same
from crossward.text import concept_distribution

SITES = ("hospital-1", "hospital-2", "hospital-3")
PARTS = ("train", "val", "test")
OWN_NET = "crossward.nets.cnn:cnn"


def halves(config, own, numbers=0):
    """The simulation, the coordinator's half, and every site's."""
    whole = prepare(config)
    center = build_coordinator_run(config, SITES, image_facts(whole.federation.collection))
    sites = [build_site_run(config.canonical(), SITES, name, own(config, name), numbers) for name in SITES]
    return whole.run_sites, center.run_sites, [site.run_sites for site in sites]


def assert_like(whole, center, sites):
    """Seeds, networks, and what a site opens with in round 1."""
    first = whole.server(0)
    for half in (center, *sites):
        assert (half.seed, half.method, half.training, half.plugins) == (
            whole.seed,
            whole.method,
            whole.training,
            whole.plugins,
        )
        assert half.server(3).rng.initial_seed() == whole.server(3).rng.initial_seed()
        assert [half.architecture(i) for i in half.ids] == [whole.architecture(i) for i in whole.ids]
        assert half.spec(SERVER) == whole.spec(SERVER)
        for architecture in whole.architectures:
            assert_same(
                {"net": Weights.of(half.server(0).new_net(architecture))},
                {"net": Weights.of(first.new_net(architecture))},
            )
    for i, site in enumerate(sites):
        opened, expected = site.open(i, 0, {}), whole.open(i, 0, {})
        assert_same({"net": Weights.of(opened.model)}, {"net": Weights.of(expected.model)})
        assert (opened.name, opened.architecture) == (expected.name, expected.architecture)


@pytest.mark.parametrize("method", ["fednpr-per", "fedrep+npr"])  # heads stay at the sites, each with its own start
def test_halves_agree_with_the_simulation(tiny, own, method):
    whole, center, sites = halves(tiny(method={"name": method}, run={"seed": 5}), own)
    assert_like(whole, center, sites)
    assert center.remote
    assert not any(site.remote for site in sites)


@pytest.mark.parametrize(
    "nets",
    [
        {"net": {"name": ["cnn", "resnet5"]}},
        {
            "site": [
                {"name": "hospital-2", "net": {"name": "cnn", "projection": 16}},
                {"name": "hospital-3", "shrink": 2},
            ]
        },
    ],
)
def test_networks_that_differ(tiny, own, nets):
    whole, center, sites = halves(tiny(method={"name": "mh-pflgb"}, data={"size": 32}, **nets), own)
    assert len(whole.architectures) == (2 if "net" in nets else 3)
    assert_like(whole, center, sites)


@pytest.mark.parametrize("method", ["fedcb", "fedbm"])
def test_sites_need_no_language_model(tiny, own, method, monkeypatch):
    config = tiny(method={"name": method}, text={"encoder": "random:16"})
    facts = image_facts(prepare(config).federation.collection)
    center = build_coordinator_run(config, SITES, facts).run_sites
    assert center.text.dim == 16
    monkeypatch.setattr(
        concept_distribution, "embed_classes", lambda *given, **options: pytest.fail("a language model was asked")
    )
    site = build_site_run(config.canonical(), SITES, SITES[0], own(config, SITES[0]), 16).run_sites
    assert site.text is None
    assert_same({"net": Weights.of(site.server(0).new_net())}, {"net": Weights.of(center.server(0).new_net())})


def test_a_site_opens_its_own_images_alone(tiny, own):
    config = tiny(data={"global_test": 8})
    whole, center, sites = halves(config, own)
    assert [len(getattr(whole.open(SERVER, 0, {}), part)) for part in PARTS] == [0, 0, 8]
    for half, mine in [(center, None), *((site, i) for i, site in enumerate(sites))]:
        for i in [*whole.ids, SERVER]:
            for part in PARTS:
                samples, theirs = getattr(half.open(i, 0, {}), part), getattr(whole.open(i, 0, {}), part)
                if i != mine:
                    assert not len(samples)
                    continue
                for one, other in zip(samples.take(samples.index), theirs.take(theirs.index), strict=True):
                    assert torch.equal(one, other)
    assert len(center.federation.collection) == 0


def test_the_coordinators_own_images(tiny):
    config = tiny(data={"global_test": 8})
    whole = prepare(config)
    facts = image_facts(whole.federation.collection)
    center = build_coordinator_run(config, SITES, facts, whole.federation).run_sites
    assert len(center.open(SERVER, 0, {}).test) == 8
    assert not any(len(getattr(center.open(i, 0, {}), part)) for i in center.ids for part in PARTS)
    with pytest.raises(ConfigError, match="not like those of the sites") as error:
        build_coordinator_run(
            config, SITES, facts | {"classes": ["round", "square"], "size": [28, 28]}, whole.federation
        )
    assert [line.split(":")[0] for line in error.value.details] == ["classes", "size"]


# which part of the data is this site's --------------------------------------------------------------------------------
def half_of(config, said, name=SITES[1]):
    return build_site_run(config.canonical(), SITES, name, said, 0)


def test_take_that_is_wrong_or_missing(tiny, own):
    config = tiny()
    with pytest.raises(ConfigError, match="no such site in the data") as error:
        half_of(config, own(config, "hospital-9"))
    assert "hospital-3" in str(error.value)
    missing = {key: value for key, value in own(config, SITES[1]).items() if key != "take"}
    for said in (missing, {"data": missing["data"]}):  # with or without a partition: the data name their hospitals
        with pytest.raises(ConfigError, match="are of 3 sites: hospital-1, hospital-2, hospital-3") as error:
            half_of(config, said)
        assert "take" in error.value.hint


def test_take_needs_no_partition_where_the_data_name_their_hospitals(tiny, own):
    config = tiny()
    full = own(config, SITES[1])
    told, short = half_of(config, full), half_of(config, {key: full[key] for key in ("data", "take")})
    for part in PARTS:
        assert torch.equal(*(getattr(half.federation.sites[1], part) for half in (told, short)))


def test_a_name_of_its_own(tiny, own):
    config = tiny()
    made = build_site_run(config.canonical(), ["north", "south"], "south", own(config, "hospital-1"), 0)
    assert [site.name for site in made.federation.sites] == ["north", "south"]
    assert [len(site.train) > 0 for site in made.federation.sites] == [False, True]


def test_a_stranger_is_refused(tiny, own):
    with pytest.raises(ConfigError, match="hospital-7 is not of this federation"):
        half_of(tiny(), own(tiny(), SITES[0]), "hospital-7")


@pytest.fixture
def drawn(tmp_path):
    """drawn("cat/1.png") draws an image below tmp_path; no two are alike."""
    rng = np.random.default_rng(0)

    def draw(*names):
        for name in names:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, (9, 9, 3), dtype=np.uint8)).save(tmp_path / name)
        return {"source": "folder", "path": str(tmp_path)}

    return draw


def test_a_folder_of_its_own_is_one_site_split_as_the_run_splits(tiny, drawn):
    data = drawn(*(f"{architecture}/{i}.png" for architecture in ("cat", "dog") for i in range(10)))
    made = half_of(tiny(partition={"split": (0.6, 0.2, 0.2)}), {"data": data})
    assert {part: len(getattr(made.federation.sites[1], part)) for part in PARTS} == {"train": 12, "val": 4, "test": 4}
    assert made.federation.collection.size == (24, 24)  # read as the run reads images


def test_a_folder_that_is_split_already(tiny, drawn):
    parts = {"train": 4, "val": 1, "test": 2}
    data = drawn(
        *(
            f"{part}/{architecture}/{i}.png"
            for part, n in parts.items()
            for architecture in ("cat", "dog")
            for i in range(n)
        )
    )
    made = half_of(tiny(), {"data": data})
    assert {part: len(getattr(made.federation.sites[1], part)) for part in PARTS} == {"train": 8, "val": 2, "test": 4}
    assert not len(made.federation.server.test)


def test_a_site_without_training_images_is_refused(tiny, drawn, tmp_path):
    rows = [(f"{site}-{i}.png", "ab"[i % 2], site, part) for site, part in (("x", "train"), ("y", "test"))
            for i in range(4)]  # fmt: skip
    drawn(*(row[0] for row in rows))
    with (tmp_path / "table.csv").open("w", newline="") as out:
        csv.writer(out).writerows([("path", "label", "site", "split"), *rows])
    table = {"source": "table", "path": str(tmp_path / "table.csv")}
    with pytest.raises(ConfigError, match="hospital-2 has no images to train on"):
        half_of(tiny(), {"data": table, "take": "y"})


# what a coordinator has no say in -------------------------------------------------------------------------------------
def test_no_path_of_the_run_is_opened_at_a_site(tiny, own):
    config = tiny()
    settings = config.canonical()
    settings["data"] = {"source": "folder", "path": "/nowhere/images", "size": 32, "normalise": "imagenet"}
    settings["partition"] |= {"file": "/nowhere/manifest.json", "name": "nowhere", "leave_out": ["hospital-2"]}
    made = build_site_run(settings, SITES, SITES[1], own(config, SITES[1]), 0)
    assert made.config.data == config.data
    assert "nowhere" not in json.dumps(made.config.canonical())
    assert len(made.federation.sites[1].train)


def test_how_images_are_read_is_the_runs_unless_the_site_says_otherwise(tiny):
    settings = tiny(data={"size": None, "augment": ["hflip"], "normalise": "imagenet"}).canonical()
    data = merge_site_settings(settings, {"data": {"source": "folder", "path": "/images", "augment": []}})["data"]
    assert data == {"source": "folder", "path": "/images", "augment": [], "normalise": "imagenet"}


@pytest.mark.parametrize(
    "asked",
    [
        {"net": {"name": "strange.package:net"}},
        {"net": {"name": ["cnn", "strange.package:net"]}},
        {"site": [{"name": "hospital-3", "net": "strange.package:net"}]},
    ],
)
def test_code_that_the_site_does_not_know_is_not_imported(tiny, own, asked, tmp_path, monkeypatch):
    (tmp_path / "strange").mkdir()
    (tmp_path / "strange" / "package.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    config = tiny(**asked)
    with pytest.raises(ConfigError, match=r"code of a person's own: strange\.package:net"):
        half_of(config, own(config, SITES[1]) | {"net": [OWN_NET]})
    assert "strange.package" not in sys.modules


def test_code_that_the_site_allows(tiny, own):
    config = tiny(net={"name": OWN_NET})
    made = half_of(config, own(config, SITES[1]) | {"net": [OWN_NET]})
    usual = half_of(tiny(), own(tiny(), SITES[1]))
    assert_same(*({"net": Weights.of(half.run_sites.server(0).new_net())} for half in (made, usual)))


def test_a_file_of_weights_is_read_only_if_the_site_allows_it(tiny, own):
    settings = tiny(net={"name": "efficientnet-lite0", "start": "/etc/weights"}).canonical()
    said = own(tiny(), SITES[1])
    with pytest.raises(ConfigError, match="asks to read /etc/weights here"):
        merge_site_settings(settings, said)
    assert merge_site_settings(settings, said | {"net": ["/etc/weights"]})["net"]["start"] == "/etc/weights"
    settings["net"]["start"] = "imagenet"
    assert merge_site_settings(settings, said)["net"]["start"] == "imagenet"


def test_images_in_one_place_are_refused_on_both_sides(tiny, own):
    config = tiny(method={"name": "central"})
    with pytest.raises(ConfigError, match="central trains on the images of all sites in one place"):
        half_of(config, own(config, SITES[1]))
    with pytest.raises(ConfigError, match="images never leave one"):
        build_coordinator_run(
            config, SITES, {"task": "classification", "classes": ["a"], "channels": 3, "size": [24, 24]}
        )


def test_what_a_site_may_not_say(tiny, own):
    settings = tiny().canonical()
    with pytest.raises(ConfigError, match="not a site's to say") as error:
        merge_site_settings(settings, own(tiny(), SITES[0]) | {"method": {"name": "local"}, "tak": "x"})
    assert [line.split(":")[0] for line in error.value.details] == ["method", "tak"]
    assert "take" in error.value.details[1]
    with pytest.raises(ConfigError, match="where are its images"):
        merge_site_settings(settings, {"take": SITES[0]})
