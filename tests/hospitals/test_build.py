"""The parts of a run between hospitals: together they equal the simulation, and each has its own images alone."""

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
from crossward.data.manifest import manifest
from crossward.errors import ConfigError
from crossward.hospitals.build import build_coordinator_run, build_site_run, image_facts, merge_site_settings
from crossward.runs.build import prepare
from crossward.testing.short_runs import assert_same
from crossward.text import concept_distribution

SITES = ("hospital-1", "hospital-2", "hospital-3")
PARTS = ("train", "val", "test")
OWN_NET = "crossward.nets.cnn:cnn"


def build_all(config, settings_of, text_size=0):
    """The simulation, the coordinator's part, and every site's."""
    whole = prepare(config)
    coordinator = build_coordinator_run(config, SITES, image_facts(whole.federation.collection))
    sites = [build_site_run(config.canonical(), SITES, name, settings_of(config, name), text_size) for name in SITES]
    return whole.run_sites, coordinator.run_sites, [site.run_sites for site in sites]


def assert_parts_agree(whole, coordinator, sites):
    """Compare seeds, networks, and what a site opens with in round 1."""
    server = whole.server(0)
    for part in (coordinator, *sites):
        assert part.seed == whole.seed
        assert part.method == whole.method
        assert part.training == whole.training
        assert part.plugins == whole.plugins
        assert part.server(3).rng.initial_seed() == whole.server(3).rng.initial_seed()
        assert [part.architecture(i) for i in part.ids] == [whole.architecture(i) for i in whole.ids]
        assert part.spec(SERVER) == whole.spec(SERVER)
        for architecture in whole.architectures:
            assert_same(
                {"net": Weights.of(part.server(0).new_net(architecture))},
                {"net": Weights.of(server.new_net(architecture))},
            )
    for i, site in enumerate(sites):
        opened = site.open(i, 0, {})
        expected = whole.open(i, 0, {})
        assert_same({"net": Weights.of(opened.model)}, {"net": Weights.of(expected.model)})
        assert opened.name == expected.name
        assert opened.architecture == expected.architecture


@pytest.mark.parametrize("method", ["fednpr-per", "fedrep+npr"])  # heads stay at the sites, each with its own start
def test_the_parts_agree_with_the_simulation(tiny, settings_of, method):
    whole, coordinator, sites = build_all(tiny(method={"name": method}, run={"seed": 5}), settings_of)
    assert_parts_agree(whole, coordinator, sites)
    assert coordinator.remote
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
def test_networks_that_differ(tiny, settings_of, nets):
    whole, coordinator, sites = build_all(tiny(method={"name": "mh-pflgb"}, data={"size": 32}, **nets), settings_of)
    assert len(whole.architectures) == (2 if "net" in nets else 3)
    assert_parts_agree(whole, coordinator, sites)


@pytest.mark.parametrize("method", ["fedcb", "fedbm"])
def test_sites_need_no_language_model(tiny, settings_of, method, monkeypatch):
    config = tiny(method={"name": method}, text={"encoder": "random:16"})
    facts = image_facts(prepare(config).federation.collection)
    coordinator = build_coordinator_run(config, SITES, facts).run_sites
    assert coordinator.text.dim == 16
    monkeypatch.setattr(
        concept_distribution, "embed_classes", lambda *given, **options: pytest.fail("a language model was asked")
    )
    site = build_site_run(config.canonical(), SITES, SITES[0], settings_of(config, SITES[0]), 16).run_sites
    assert site.text is None
    assert_same({"net": Weights.of(site.server(0).new_net())}, {"net": Weights.of(coordinator.server(0).new_net())})


def assert_same_samples(samples, expected):
    for one, other in zip(samples.take(samples.index), expected.take(expected.index), strict=True):
        assert torch.equal(one, other)


def test_a_site_opens_its_own_images_alone(tiny, settings_of):
    config = tiny(data={"global_test": 8})
    whole, coordinator, sites = build_all(config, settings_of)
    assert [len(getattr(whole.open(SERVER, 0, {}), part)) for part in PARTS] == [0, 0, 8]
    for number, run_sites in enumerate([*sites, coordinator]):
        for i in [*whole.ids, SERVER]:
            for part in PARTS:
                samples = getattr(run_sites.open(i, 0, {}), part)
                if i == number:
                    assert_same_samples(samples, getattr(whole.open(i, 0, {}), part))
                else:
                    assert not len(samples)
    assert len(coordinator.federation.collection) == 0


def test_nothing_of_a_sites_groups_reaches_the_coordinators_partition(tiny):
    config = tiny()
    whole = prepare(config).federation
    assert manifest(whole)["groups"]
    coordinator = build_coordinator_run(config, SITES, image_facts(whole.collection)).federation
    assert "groups" not in manifest(coordinator)
    assert "group" not in json.dumps(image_facts(whole.collection))


def test_the_coordinators_own_images(tiny):
    config = tiny(data={"global_test": 8})
    whole = prepare(config)
    facts = image_facts(whole.federation.collection)
    coordinator = build_coordinator_run(config, SITES, facts, whole.federation).run_sites
    assert len(coordinator.open(SERVER, 0, {}).test) == 8
    assert not any(len(getattr(coordinator.open(i, 0, {}), part)) for i in coordinator.ids for part in PARTS)
    with pytest.raises(ConfigError, match="not like those of the sites") as error:
        build_coordinator_run(
            config, SITES, facts | {"classes": ["round", "square"], "size": [28, 28]}, whole.federation
        )
    assert [line.split(":")[0] for line in error.value.details] == ["classes", "size"]


# which part of the data is this site's --------------------------------------------------------------------------------
def build_site(config, settings, name=SITES[1]):
    return build_site_run(config.canonical(), SITES, name, settings, 0)


def test_take_that_is_wrong_or_missing(tiny, settings_of):
    config = tiny()
    with pytest.raises(ConfigError, match="no such site in the data") as error:
        build_site(config, settings_of(config, "hospital-9"))
    assert "hospital-3" in str(error.value)
    missing = {key: value for key, value in settings_of(config, SITES[1]).items() if key != "take"}
    for settings in (missing, {"data": missing["data"]}):  # with or without a partition: the data name their hospitals
        with pytest.raises(ConfigError, match="are of 3 sites: hospital-1, hospital-2, hospital-3") as error:
            build_site(config, settings)
        assert "take" in error.value.hint


def test_take_needs_no_partition_where_the_data_name_their_hospitals(tiny, settings_of):
    config = tiny()
    full = settings_of(config, SITES[1])
    with_partition = build_site(config, full)
    without = build_site(config, {key: full[key] for key in ("data", "take")})
    for part in PARTS:
        assert torch.equal(*(getattr(run.federation.sites[1], part) for run in (with_partition, without)))


def test_a_name_of_its_own(tiny, settings_of):
    config = tiny()
    prepared = build_site_run(config.canonical(), ["north", "south"], "south", settings_of(config, "hospital-1"), 0)
    assert [site.name for site in prepared.federation.sites] == ["north", "south"]
    assert [len(site.train) > 0 for site in prepared.federation.sites] == [False, True]


def test_a_stranger_is_refused(tiny, settings_of):
    with pytest.raises(ConfigError, match="hospital-7 is not of this federation"):
        build_site(tiny(), settings_of(tiny(), SITES[0]), "hospital-7")


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
    data = drawn(*(f"{label}/{i}.png" for label in ("cat", "dog") for i in range(10)))
    prepared = build_site(tiny(partition={"split": (0.6, 0.2, 0.2)}), {"data": data})
    assert {part: len(getattr(prepared.federation.sites[1], part)) for part in PARTS} == {
        "train": 12,
        "val": 4,
        "test": 4,
    }
    assert prepared.federation.collection.size == (24, 24)  # read as the run reads images


def test_a_folder_that_is_split_already(tiny, drawn):
    parts = {"train": 4, "val": 1, "test": 2}
    data = drawn(
        *(f"{part}/{label}/{i}.png" for part, n in parts.items() for label in ("cat", "dog") for i in range(n))
    )
    prepared = build_site(tiny(), {"data": data})
    assert {part: len(getattr(prepared.federation.sites[1], part)) for part in PARTS} == {
        "train": 8,
        "val": 2,
        "test": 4,
    }
    assert not len(prepared.federation.server.test)


def test_a_site_without_training_images_is_refused(tiny, drawn, tmp_path):
    rows = [(f"{site}-{i}.png", "ab"[i % 2], site, part) for site, part in (("x", "train"), ("y", "test"))
            for i in range(4)]  # fmt: skip
    drawn(*(row[0] for row in rows))
    with (tmp_path / "table.csv").open("w", newline="") as out:
        csv.writer(out).writerows([("path", "label", "site", "split"), *rows])
    table = {"source": "table", "path": str(tmp_path / "table.csv")}
    with pytest.raises(ConfigError, match="hospital-2 has no images to train on"):
        build_site(tiny(), {"data": table, "take": "y"})


# what a coordinator has no say in -------------------------------------------------------------------------------------
def test_no_path_of_the_run_is_opened_at_a_site(tiny, settings_of):
    config = tiny()
    settings = config.canonical()
    settings["data"] = {"source": "folder", "path": "/nowhere/images", "size": 32, "normalise": "imagenet"}
    settings["partition"] |= {"file": "/nowhere/manifest.json", "name": "nowhere", "leave_out": ["hospital-2"]}
    prepared = build_site_run(settings, SITES, SITES[1], settings_of(config, SITES[1]), 0)
    assert prepared.config.data == config.data
    assert "nowhere" not in json.dumps(prepared.config.canonical())
    assert len(prepared.federation.sites[1].train)


def test_how_images_are_read_is_the_runs_unless_the_site_says_otherwise(tiny):
    settings = tiny(data={"size": None, "augment": ["hflip"], "normalise": "imagenet"}).canonical()
    data = merge_site_settings(settings, {"data": {"source": "folder", "path": "/images", "augment": []}})["data"]
    assert data == {"source": "folder", "path": "/images", "augment": [], "normalise": "imagenet"}


@pytest.mark.parametrize(
    "sections",
    [
        {"net": {"name": "strange.package:net"}},
        {"net": {"name": ["cnn", "strange.package:net"]}},
        {"site": [{"name": "hospital-3", "net": "strange.package:net"}]},
    ],
)
def test_code_that_the_site_does_not_know_is_not_imported(tiny, settings_of, sections, tmp_path, monkeypatch):
    (tmp_path / "strange").mkdir()
    (tmp_path / "strange" / "package.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    config = tiny(**sections)
    with pytest.raises(ConfigError, match=r"code of a person's own: strange\.package:net"):
        build_site(config, settings_of(config, SITES[1]) | {"net": [OWN_NET]})
    assert "strange.package" not in sys.modules


def test_code_that_the_site_allows(tiny, settings_of):
    config = tiny(net={"name": OWN_NET})
    prepared = build_site(config, settings_of(config, SITES[1]) | {"net": [OWN_NET]})
    usual = build_site(tiny(), settings_of(tiny(), SITES[1]))
    assert_same(*({"net": Weights.of(part.run_sites.server(0).new_net())} for part in (prepared, usual)))


def test_a_file_of_weights_is_read_only_if_the_site_allows_it(tiny, settings_of):
    run_settings = tiny(net={"name": "efficientnet-lite0", "start": "/etc/weights"}).canonical()
    settings = settings_of(tiny(), SITES[1])
    with pytest.raises(ConfigError, match="asks to read /etc/weights here"):
        merge_site_settings(run_settings, settings)
    assert merge_site_settings(run_settings, settings | {"net": ["/etc/weights"]})["net"]["start"] == "/etc/weights"
    run_settings["net"]["start"] = "imagenet"
    assert merge_site_settings(run_settings, settings)["net"]["start"] == "imagenet"


def test_images_in_one_place_are_refused_on_both_sides(tiny, settings_of):
    config = tiny(method={"name": "central"})
    with pytest.raises(ConfigError, match="central trains on the images of all sites in one place"):
        build_site(config, settings_of(config, SITES[1]))
    with pytest.raises(ConfigError, match="images never leave one"):
        build_coordinator_run(
            config, SITES, {"task": "classification", "classes": ["a"], "channels": 3, "size": [24, 24]}
        )


def test_what_a_site_may_not_set(tiny, settings_of):
    settings = tiny().canonical()
    with pytest.raises(ConfigError, match="not a site's to say") as error:
        merge_site_settings(settings, settings_of(tiny(), SITES[0]) | {"method": {"name": "local"}, "tak": "x"})
    assert [line.split(":")[0] for line in error.value.details] == ["method", "tak"]
    assert "take" in error.value.details[1]
    with pytest.raises(ConfigError, match="where are its images"):
        merge_site_settings(settings, {"take": SITES[0]})
