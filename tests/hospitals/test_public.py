"""A public set across hospitals: the coordinator sends it to every site, and no site may have it among its own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

import crossward
from crossward.errors import ConfigError, DataError
from crossward.hospitals.build import build_coordinator_run, build_site_run, image_facts, shared_images
from crossward.hospitals.federation_terms import FederationTerms, create_run_directory
from crossward.hospitals.flower.coordinator import coordinate_run
from crossward.hospitals.service import Hospital, Service
from crossward.runs.build import prepare
from crossward.runs.checkpoint_writer import CHECKPOINT
from crossward.runs.run_directory import RunDir
from crossward.testing.loopback_federation import ALLOW_ALL, create_grid
from crossward.testing.short_runs import assert_same

SITES = ("hospital-1", "hospital-2", "hospital-3")
SHARED = {"partition": {"public": 0.25}, "method": {"name": "fedmd", "start_epochs": 1}}


def run_federation(folder, config, settings_of, **terms):
    create_run_directory(
        folder / "run", config, FederationTerms("a1", "north", SITES, wait=0, patience=0, least=3, **terms)
    )
    services = [Service(Hospital(name, folder / name, settings_of(config, name), ALLOW_ALL)) for name in SITES]
    coordinate_run(folder / "run", create_grid(services))
    return RunDir(folder / "run").tree(CHECKPOINT)["state"]


@pytest.fixture
def images(tmp_path):
    folder, rng = tmp_path / "public", np.random.default_rng(0)
    (folder / "deep").mkdir(parents=True)
    for name in ("a.png", "b.png", "deep/c.png", "deep/d.png"):
        Image.fromarray(rng.integers(0, 256, (24, 24, 3), dtype=np.uint8)).save(folder / name)
    return folder


def test_the_coordinators_public_rows_serve_as_in_one_process(tiny, settings_of, tmp_path):
    config = tiny(**SHARED)
    here = crossward.run(config, overrides=[f"run.out={tmp_path}", "run.name=here"])
    state = run_federation(tmp_path, config, settings_of, own_data=True)
    assert_same(state, RunDir(here.folder).tree(CHECKPOINT)["state"])


def test_a_folder_of_images_that_everybody_may_see(tiny, settings_of, tmp_path, images):
    config = tiny(method=SHARED["method"])
    run_federation(tmp_path, config, settings_of, public=str(images))
    restarted = Service(Hospital(SITES[0], tmp_path / SITES[0], settings_of(config, SITES[0]), ALLOW_ALL))
    federation = restarted._current_run("a1").run_sites.federation  # a worker that is started anew has them, too
    expected = np.asarray(Image.open(images / "deep" / "c.png"))
    assert len(federation.public) == 4
    assert (federation.collection.images[federation.public[2]].numpy() == expected).all()


def test_a_method_that_needs_one_is_refused_without(tiny, settings_of):
    config = tiny(method=SHARED["method"])
    with pytest.raises(ConfigError, match="public set"):
        build_site_run(config.canonical(), SITES, SITES[0], settings_of(config, SITES[0]), 0)


def test_public_images_among_a_sites_own_are_counted_there(tiny, settings_of):
    config = tiny(method=SHARED["method"])
    whole = prepare(tiny()).federation
    mine = whole.collection.images[whole.sites[0].test[:2]]
    for number, expected in ((0, 2), (1, 0)):
        site = build_site_run(config.canonical(), SITES, SITES[number], settings_of(config, SITES[number]), 0, mine)
        assert len(site.federation.public) == 2
        assert shared_images(site.federation, site.federation.sites[number]) == expected


def test_public_images_among_the_coordinators_own_are_refused(tiny):
    config = tiny(data={"global_test": 6}, method=SHARED["method"])
    own = prepare(tiny(data={"global_test": 6})).federation
    facts = image_facts(own.collection)
    tested = own.collection.images[own.server.test[:3]]
    with pytest.raises(ConfigError, match="3 of the 3 public images are among the coordinator's own"):
        build_coordinator_run(config, SITES, facts, own, public=tested)


def test_public_images_of_another_size(tiny, settings_of):
    config = tiny(method=SHARED["method"])
    facts = image_facts(prepare(tiny()).federation.collection)
    with pytest.raises(ConfigError, match="public images of"):
        build_coordinator_run(config, SITES, facts, public=torch.zeros(2, 9, 9, 3, dtype=torch.uint8))


def test_public_images_that_cannot_be_read(tiny, settings_of, tmp_path, images):
    (images / "a.png").write_bytes(b"no image")
    with pytest.raises(DataError, match="1 of 4 public images cannot be read"):
        run_federation(tmp_path, tiny(method=SHARED["method"]), settings_of, public=str(images))
