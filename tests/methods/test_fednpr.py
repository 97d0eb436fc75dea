"""FedNPR and FedNPR-Per: FedAvg and a personal head with bsm and npr to the bit, and their papers' settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

from crossward.core import select
from crossward.core.method import Method
from crossward.core.select import Select
from crossward.core.training import Training
from crossward.engines.local import LocalEngine
from crossward.methods.fedavg import FedAvg
from crossward.methods.fednpr import FedNPR
from crossward.methods.fednpr_per import FedNPRPer
from crossward.plugins.bsm import Bsm
from crossward.plugins.npr import Npr
from crossward.testing.short_runs import assert_same, run_to_end
from crossward.testing.toy import Toy

TRAINING = Training(epochs=2, batch_size=4, optimizer="adam", lr=0.01, keep_state=True)


@dataclass(frozen=True)
class PersonalHead(Method):
    shared: ClassVar[Select] = select.body


@pytest.mark.parametrize("task", ["classification", "segmentation"])
@pytest.mark.parametrize(
    ("method", "host"), [(FedNPR, FedAvg()), (FedNPRPer, PersonalHead())], ids=["fednpr", "fednpr-per"]
)
def test_it_is_its_host_with_two_plugins(method: type[FedNPR], host: Method, task: str):
    toy, options = Toy(task, sizes=((6, 2, 0), (9, 2, 0)), common=0), {"k": 2, "weight": 0.5, "layernorm": False}
    whole = toy.run_sites(method(**options), training=TRAINING)
    plugged = toy.run_sites(host, (Bsm(), Npr(**options)), TRAINING)
    assert_same(run_to_end(whole, LocalEngine(whole)), run_to_end(plugged, LocalEngine(plugged)))


def test_only_the_personal_one_keeps_its_head_at_home():
    net = Toy().run_sites(FedNPR()).server(0).new_net()
    assert not (~FedNPR().travels).names(net)
    assert (~FedNPRPer().travels).names(net) == ["head.weight", "head.bias"]


def test_prototypes_stay_in_memory():
    run_sites = Toy(common=0).run_sites(FedNPRPer(), training=TRAINING)
    end = run_to_end(run_sites, LocalEngine(run_sites))
    assert "npr" not in end["state"]
    assert end["memory"]["0"]["npr"].shape == (3, 4, 16)


def test_the_paper_trains_with_adam_and_two_drops():
    paper = Training(**FedNPR.recipe)
    assert paper.keep_state
    assert paper.optimizer == "adam"
    assert [paper.rate(r, 0) for r in (58, 59, 68, 69)] == pytest.approx([1e-3, 1e-4, 1e-4, 1e-5])  # rounds 60 and 70
