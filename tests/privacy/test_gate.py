"""The gate: what is not declared, of another type, shape or size, or without its noise does not leave a site."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch

from crossward.core import noisy_statistics as kinds
from crossward.core.disclosure import (
    CLASS_COUNTS,
    CLASS_PROTOTYPES,
    SAMPLE_COUNT,
    VALIDATION_CONFUSION,
    WEIGHTS,
    Bound,
    Disclosure,
    DisclosureKind,
    Made,
    ReplyRefused,
)
from crossward.core.engine import Job, run_job
from crossward.core.method import Method, answer
from crossward.core.weights import Weights
from crossward.hospitals.policy import Policy, PolicyViolation
from crossward.hospitals.site_rules import HospitalRules
from crossward.privacy.gate import Gate
from crossward.testing.toy import Toy, linear

OPEN = HospitalRules(Policy(min_class_count=0), frozenset())


@dataclass(frozen=True)
class Sends(Method):
    """FedAvg that sends one item more, or another."""

    discloses: ClassVar[Mapping[str, Disclosure]] = {
        "model": WEIGHTS,
        "n": SAMPLE_COUNT,
        "counts": CLASS_COUNTS,
        "prototypes": CLASS_PROTOTYPES,
    }
    what: str = "nothing"

    def train(self, site, down):
        reply = super().train(site, down)
        bent = {
            "nothing": {},
            "ages": {"ages": torch.tensor([71])},
            "rows": {"counts": torch.ones(3), "prototypes": torch.ones(2, 4)},
            "row for row": {"counts": torch.ones(3), "prototypes": torch.ones(3, 4)},
            "pixels": {"model": Weights({**reply["model"], "pixels": torch.ones(9, 9)})},
            "shape": {"model": Weights({**reply["model"], "head.bias": torch.ones(99)})},
            "numbers": {"n": torch.ones(12)},
            "all": {"prototypes": torch.ones(3, 200_000), "counts": torch.ones(3)},
        }
        return reply | bent[self.what]


def opened(gate, method):
    site = Toy(absent=False).run_sites(method, net=linear).open(1, 0, {})
    site.gate = gate
    return site, {"model": Weights.of(site.model)}


def reply_of(gate, what):
    method = Sends(what=what)
    site, down = opened(gate, method)
    return answer(method, site, "train", down, 1)


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("ages", "item 'ages', which the method does not declare"),
        ("rows", r"class prototypes \(item 'prototypes'\) has no row for each of the class counts \(3,\)"),
        ("pixels", r"weights \(item 'model'\) holds what is no weight of the network: pixels"),
        ("shape", "no weight of the network: head.bias"),
        ("numbers", r"sample count \(item 'n'\) should be one number and is a tensor \(12,\)"),
        ("all", r"2,40\d,\d+ bytes in all, and a reply of this network has 1,048,576 at most"),
    ],
)
@pytest.mark.parametrize(
    ("gate", "error"), [(Gate(), ReplyRefused), (Gate(rules=OPEN), PolicyViolation)], ids=["simulation", "hospital"]
)
def test_what_is_not_as_declared_is_refused_in_words(gate, error, what, words):
    with pytest.raises(error, match=words):
        reply_of(gate, what)


@pytest.mark.parametrize("gate", [None, Gate(), Gate(rules=OPEN)], ids=["none", "simulation", "hospital"])
@pytest.mark.parametrize("what", ["nothing", "row for row"])
def test_an_honest_reply_passes_as_it_is(gate, what):
    expected = reply_of(None, what)
    passed = reply_of(gate, what)
    assert passed.keys() == expected.keys()
    assert all(torch.equal(passed["model"][name], tensor) for name, tensor in expected["model"].items())
    assert passed["n"] == 20


def test_without_a_gate_what_is_not_declared_is_refused_all_the_same():
    with pytest.raises(ReplyRefused, match="does not declare: ages"):
        reply_of(None, "ages")


class Doubles:
    """Rules that change what they let out."""

    allows_metrics = True

    def screen(self, method, reply, problems):
        return reply | {"n": 2 * reply["n"]}

    def screen_metrics(self, reply):
        return {"metrics": '"screened"'}


def test_a_refused_reply_leaves_no_trace_and_rules_are_the_last_word():
    run_sites = Toy().run_sites(Sends(what="ages"))
    run_sites.rules = OPEN
    memory = {"kept": 1}
    down = {"model": Weights.of(run_sites.server(0).new_net())}
    with pytest.raises(PolicyViolation, match="ages"):
        run_job(run_sites, Job(0, "train", 0, 1, True), down, memory)
    assert memory == {"kept": 1}
    run_sites = replace(run_sites, method=Sends(), rules=Doubles())
    outcome, _ = run_job(run_sites, Job(0, "train", 0, 1, True), down, memory)
    assert outcome.reply["n"] == 24
    assert len(outcome.losses) == 1
    judged, _ = run_job(run_sites, Job(0, "judge", 0, 1, False), down, memory)
    assert judged.reply == {"metrics": '"screened"'}


@pytest.mark.parametrize(
    ("gate", "leave"),
    [
        (Gate(), True),
        (Gate("image"), False),
        (Gate("site"), False),
        (Gate(rules=OPEN), True),
        (Gate(rules=HospitalRules(Policy(allow=()), frozenset())), False),
    ],
    ids=["plain", "image", "site", "open hospital", "hospital without metrics"],
)
def test_losses_and_metrics_pass_the_gate_as_well(gate, leave):
    assert gate.losses((0.25, 0.5)) == ((0.25, 0.5) if leave else ())
    site, down = opened(gate, Method())
    metrics = answer(Method(), site, "judge", down, 1)["metrics"]
    assert ("accuracy" in metrics) == leave
    assert leave or metrics == "{}"


# noise, item by item --------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Releases(Method):
    """Sends one statistic, in a step that has released statistics of these kinds with noise."""

    discloses: ClassVar[Mapping[str, Disclosure]] = {
        "counts": CLASS_COUNTS,
        "prototypes": CLASS_PROTOTYPES,
        "confusion": VALIDATION_CONFUSION,
        "moments": Disclosure(DisclosureKind.PROTOTYPES, "feature statistics", made=Made.MEAN, bound=Bound.CLIP),
        "gradients": Disclosure(DisclosureKind.GRADIENTS, "by class", made=Made.MEAN, bound=Bound.CLIP),
    }
    item: str = "counts"
    kinds: tuple[str, ...] = ()

    def train(self, site, down):
        site.released += self.kinds
        return {self.item: torch.ones(3)}


@pytest.mark.parametrize(
    ("item", "kinds", "leaves"),
    [
        ("counts", (), False),
        ("counts", (kinds.CLASS_COUNTS,), True),
        ("counts", (kinds.CLASS_SUMS,), True),
        ("counts", (kinds.PROTOTYPES,), False),
        ("prototypes", (kinds.CLASS_SUMS,), True),
        ("prototypes", (kinds.CLASS_COUNTS,), False),
        ("gradients", (kinds.CLASS_SUMS,), True),
        ("gradients", (kinds.CLASS_COUNTS, kinds.MOMENTS), False),
        ("moments", (kinds.MOMENTS,), True),
        ("moments", (kinds.CLASS_COUNTS,), False),
        ("confusion", (kinds.CLASS_COUNTS, kinds.CLASS_SUMS, kinds.MOMENTS), False),
    ],
)
def test_a_statistic_leaves_only_after_a_release_of_its_own_kind(item, kinds, leaves):
    """Class counts that a loss has taken with noise cover no prototypes, and nothing covers confusion matrices."""
    method = Releases(item=item, kinds=kinds)
    site, down = opened(Gate("image"), method)
    if leaves:
        assert set(answer(method, site, "train", down, 1)) == {item}
        return
    with pytest.raises(ReplyRefused, match=rf"\(item '{item}'\) is .*, and this step has released none with noise"):
        answer(method, site, "train", down, 1)


def test_predictions_of_a_simulation_are_what_it_measures_with():
    site, down = opened(Gate("image"), Method())
    assert set(answer(Method(), site, "predict", down, 1)) == {"val", "test"}
