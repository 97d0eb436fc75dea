"""run_job: the outcome of one job, and the memory it leaves."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch

from crossward.core.engine import Job, run_job
from crossward.core.weights import Weights
from crossward.errors import RunError
from crossward.methods.fedavg import FedAvg
from crossward.testing.toy import Toy


@dataclass(frozen=True)
class CountsRounds(FedAvg):
    """Counts its rounds in the site's memory; site 1 then diverges."""

    def train(self, site, down):
        site.memory["rounds"] = site.memory.get("rounds", 0) + 1
        reply = super().train(site, down)
        return reply | {"model": reply["model"] * math.nan} if site.id == 1 else reply


@pytest.fixture
def run_sites():
    return Toy().run_sites(CountsRounds())


@pytest.fixture
def down(run_sites):
    return {"model": Weights.of(run_sites.server(0).new_net())}


def test_a_job_leaves_the_memory_it_started_from(run_sites, down):
    memory = {"rounds": 4}
    outcome, after = run_job(run_sites, Job(0, "train", 0, 1, True), down, memory)
    assert memory == {"rounds": 4}
    assert after["rounds"] == 5
    assert outcome.failure == ""
    assert len(outcome.losses) == 1
    assert outcome.losses[0] > 0


def test_a_job_that_fails_gives_its_memory_back(run_sites, down):
    memory = {"rounds": 4}
    outcome, after = run_job(run_sites, Job(1, "train", 1, 1, True), down, memory)
    assert after is memory
    assert memory == {"rounds": 4}
    assert outcome.reply == {}
    assert outcome.failure


@dataclass(frozen=True)
class NeedsMuch(FedAvg):
    def train(self, site, down):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB")


def test_a_device_without_enough_memory_is_reported_in_words(down):
    run_sites = Toy().run_sites(NeedsMuch())
    with pytest.raises(RunError, match="site-0, step 'train': its device, cpu, has too little memory") as error:
        run_job(run_sites, Job(0, "train", 0, 1, True), down, {})
    assert error.value.details == ("CUDA out of memory. Tried to allocate 20 GiB",)
    assert "train.batch_size" in error.value.hint
    assert "engine.device_images_mib" in error.value.hint
