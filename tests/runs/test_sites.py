"""Hospitals: what a site gets to see when it is opened."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
import torch

from crossward.config.reading import config_from
from crossward.core.engine import SERVER
from crossward.core.method import PERSONAL
from crossward.core.weights import Weights
from crossward.runs import sites
from crossward.runs.build import prepare


@pytest.fixture
def run_sites(config):
    return lambda **sections: prepare(config_from(config(**sections))).run_sites


def test_a_site_sees_its_own_rows(run_sites):
    made = run_sites()
    for i, split in enumerate(made.federation.sites):
        site = made.open(i, 3, {"x": 1})
        assert (site.id, site.name, site.round, site.memory) == (i, split.name, 3, {"x": 1})
        assert [site.train.index, site.val.index, site.test.index] == [split.train, split.val, split.test]
        assert site.common == {}
        assert site.public is None
    assert list(made.ids) == [0, 1, 2]
    assert made.name(SERVER) == "server"


def test_work_is_what_a_step_sees(run_sites):
    made = run_sites()
    split = made.federation.sites[1]
    assert made.work(1, "train") == len(split.train)
    assert made.work(1, "predict") == made.work(1, "deploy") == len(split.val) + len(split.test)
    assert (made.work(SERVER, "train"), made.work(SERVER, "predict")) == (0, 16)
    personal = run_sites(method={"name": "local"})
    assert personal.work(1, "predict") == len(split.val) + len(split.test) + 16


@pytest.mark.parametrize(
    ("method", "personal"), [("fedavg", False), ("central", False), ("local", True), ("fedavg+ft", True)]
)
def test_who_has_a_network_of_its_own(run_sites, method, personal):
    made = run_sites(method={"name": method})
    assert made.personal is personal
    assert set(made.open(0, 0, {}).common) == ({"val", "test"} if personal else set())
    assert made.open(SERVER, 0, {}).common == {}


def test_batchnorm_statistics_that_stay_make_networks_personal(run_sites):
    net = {"name": "resnet18", "width": 0.125}
    assert run_sites(net=net, method={"name": "fedavg", "buffers": "local"}).personal
    assert not run_sites(net=net).personal
    assert not run_sites(method={"name": "fedavg", "buffers": "local"}).personal  # cnn has none


def test_all_sites_share_one_network_in_memory(run_sites):
    made = run_sites()
    assert made.open(0, 0, {}).model is made.open(1, 0, {}).model
    assert made.open(0, 0, {}, fresh=True).model is not made.open(0, 0, {}).model


def test_weights_that_stay_begin_differently_at_each_site(run_sites):
    made = run_sites(method={"name": "local"})
    shared = [Weights.of(made.open(i, 0, {}).model)["head.weight"].clone() for i in (0, 1)]
    fresh = [Weights.of(made.open(i, 0, {}, fresh=True).model)["head.weight"] for i in (0, 1)]
    assert shared[0].equal(fresh[0])
    assert shared[1].equal(fresh[1])
    assert not shared[0].equal(shared[1])
    assert PERSONAL not in made.open(0, 0, {}).memory


def test_the_server_s_network_is_always_the_same(run_sites):
    made = run_sites()
    one, other = (Weights.of(made.server(round).new_net()) for round in (0, 5))
    assert all(one[name].equal(other[name]) for name in one)
    another = Weights.of(run_sites(run={"seed": 1}).server(0).new_net())
    assert not one["head.weight"].equal(another["head.weight"])
    assert made.server(0).rng.initial_seed() != made.server(1).rng.initial_seed()


def test_building_networks_leaves_the_global_generator_alone(run_sites):
    made = run_sites()
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    made.open(0, 0, {}, fresh=True)
    assert torch.random.get_rng_state().equal(before)


def test_the_public_pool_is_everybody_s(run_sites):
    made = run_sites(partition={"public": 0.25})
    pools = [made.open(i, 0, {}).public.index for i in made.ids] + [made.server(0).public.index]
    assert all(pool.equal(made.federation.public) and len(pool) for pool in pools)


def test_only_training_images_are_augmented(run_sites):
    site = run_sites(data={"augment": ["hflip"]}).open(0, 0, {})
    assert site.train.augment is not None
    assert (site.val.augment, site.test.augment) == (None, None)


def test_targets_are_those_of_the_rows(run_sites):
    made = run_sites()
    rows = made.federation.sites[2].test
    assert made.targets(2, "test").equal(made.federation.collection.targets[rows])
    assert made.targets(SERVER, "test").tolist() == [*range(8), *range(8)]


def test_images_go_to_another_process_by_name(run_sites):
    made = run_sites(data={"train": 200})
    made.open(0, 0, {})
    images = made.federation.collection.images.clone()
    assert len(pickle.dumps(made)) > images.numel()
    made.share_images()
    file = made.federation.collection.file
    assert len(pickle.dumps(made)) < images.numel()
    there = pickle.loads(pickle.dumps(made))
    assert there.federation.collection.images.equal(images)
    assert there.open(0, 0, {}).train.index.equal(made.open(0, 0, {}).train.index)
    made.share_images()
    assert made.federation.collection.file == file
    assert file.is_file()
    del there, made
    assert not file.exists()  # it goes with who shared it


@pytest.mark.parametrize(("worker", "expected"), [("3", "meta"), ("2", "cpu")])
def test_workers_take_the_devices_in_turn(run_sites, monkeypatch, worker, expected):
    made = replace(run_sites(), devices=("cpu", "meta"))
    monkeypatch.setenv("CROSSWARD_WORKER", worker)
    assert made.device == torch.device(expected)
    monkeypatch.setenv("CROSSWARD_WORKER", "0")
    assert pickle.loads(pickle.dumps(made)).device == torch.device("cpu")  # each process finds its own


def test_networks_of_sites_are_compiled_on_request(run_sites, monkeypatch):
    compiled = []
    monkeypatch.setattr(sites, "compile_network", compiled.append)
    made = replace(run_sites(), compiles=True)
    network = made.open(0, 0, {}).model
    made.open(1, 0, {})
    assert compiled == [network]  # once for all sites that share it
