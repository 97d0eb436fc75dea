"""Every method, task and plugin through every check; and every check shown to catch what it is for."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import pytest
import torch

from crossward.core import select
from crossward.core.method import Method, RoundContext
from crossward.core.select import Select
from crossward.core.site import Site
from crossward.core.tree import Tree
from crossward.core.weights import Weights
from crossward.errors import RunError
from crossward.methods import METHODS, method_class
from crossward.methods.fedavg import FedAvg
from crossward.plugins import PLUGINS, plugin_class
from crossward.testing import conformance
from crossward.testing.cases import Case, cases
from crossward.testing.conformance import CHECKS, Check, checks
from crossward.testing.faulty_methods import EditsPayload, HiddenInModule, HiddenOnModel

PAIRS = [
    pytest.param(case, check, id=f"{case}-{check.__name__.removeprefix('check_')}")
    for case in cases()
    for check in checks(case)
]


@pytest.mark.parametrize(("case", "check"), PAIRS)
def test_method_conforms(case: Case, check: Check):
    check(case)


def test_cases_are_every_method_task_and_plugin():
    served = {(method_class(name), task) for name in METHODS for task in method_class(name).tasks}
    assert {(type(case.method), case.task) for case in cases() if not case.plugins} == served
    carried = {(type(p), t) for p in (plugin_class(name)() for name in PLUGINS) for t in p.tasks}
    assert {(type(case.plugins[0]), case.task) for case in cases() if case.plugins} == carried
    assert len({str(case) for case in cases()}) == len(list(cases()))


def test_every_check_is_in_the_suite_and_runs_on_every_plain_case():
    written = {check for name, check in vars(conformance).items() if name.startswith("check_")}
    assert written == set(CHECKS)
    assert all(checks(case) == CHECKS for case in cases() if not case.plugins)


@pytest.mark.parametrize("name", METHODS)
def test_method_pickles(name: str):
    method = method_class(name)()
    assert pickle.loads(pickle.dumps(method)) == method


# methods that each break one rule -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Unhashable(Method):
    layers: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Demanding(Method):
    depth: int = field(kw_only=True)


class Thawed(Method):
    def __setattr__(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)


@dataclass(frozen=True)
class Absent(Method):
    steps: ClassVar[tuple[str, ...]] = ("train", "polish")


@dataclass(frozen=True)
class Leaks(Method):
    shared: ClassVar[Select] = select.body

    what: Literal["images", "flat", "memory", "head", "age", "no n"] = "images"

    def train(self, site: Site, down: Tree) -> Tree:
        reply = super().train(site, down)
        x, _ = site.train.take(site.train.index)
        leaks = {
            "images": reply | {"n": x},
            "flat": reply | {"n": x.flatten()},
            "memory": reply | {"n": {"_personal": 1.0}},
            "head": reply | {"model": Weights.of(site.model)},
            "age": reply | {"age": 50.0},
            "no n": {"model": reply["model"]},
        }
        return leaks[self.what]

    def aggregate(self, state: Tree, replies: Mapping[int, Tree], ctx: RoundContext) -> Tree:
        return state


@dataclass(frozen=True)
class Impatient(Method):
    def aggregate(self, state: Tree, replies: Mapping[int, Tree], ctx: RoundContext) -> Tree:
        return state | {"model": replies[0]["model"]}


@dataclass(frozen=True)
class Explodes(Method):
    def aggregate(self, state: Tree, replies: Mapping[int, Tree], ctx: RoundContext) -> Tree:
        last = ctx.round + 1 == ctx.rounds
        return state | {"model": state["model"] * (torch.nan if last else 1.0)}


@dataclass(frozen=True)
class DividesByCounts(Method):
    def train(self, site: Site, down: Tree) -> Tree:
        return super().train(site, down) | {"counts": site.task.counts(site.train.labels).float()}

    def aggregate(self, state: Tree, replies: Mapping[int, Tree], ctx: RoundContext) -> Tree:
        return state | {"rarity": 1 / torch.stack([reply["counts"] for reply in replies.values()]).sum(0)}


@dataclass(frozen=True)
class WantsTwo(Method):
    def train(self, site: Site, down: Tree) -> Tree:
        return super().train(site, down) | {"spread": torch.tensor(1.0) / (site.size - 1)}


@dataclass(frozen=True)
class SendsStatistics(Method):
    def train(self, site: Site, down: Tree) -> Tree:
        return super().train(site, down) | {"model": Weights.of(site.model)}

    def aggregate(self, state: Tree, replies: Mapping[int, Tree], ctx: RoundContext) -> Tree:
        return state


@pytest.mark.parametrize(
    ("method", "check", "complaint"),
    [
        (Unhashable(), "is_a_value", "unhashable"),
        (Demanding(depth=2), "is_a_value", "without a default"),
        (Thawed(), "is_a_value", "no FrozenInstanceError"),
        (Absent(), "steps", "no step polish"),
        (Absent(), "docstring", "Departures"),
        (HiddenOnModel(), "strict_equals_by_reference", "tensors differ"),
        (EditsPayload(), "strict_equals_by_reference", "tensors differ"),
        (HiddenInModule(), "pool_equals_local", "KeyError: 'c'"),
        (HiddenOnModel(), "order_of_clients", "tensors differ"),
        (HiddenOnModel(), "resume", "after round 1.*tensors differ"),
        (Impatient(), "drop_out", "0"),
        (Leaks(what="images"), "replies_are_private", "train: n has the shape of images"),
        (Leaks(what="flat"), "replies_are_private", "train: n holds an image"),
        (Leaks(what="memory"), "replies_are_private", "n/_personal is named as client memory"),
        (Leaks(what="head"), "replies_are_private", r"model tells \['head.bias', 'head.weight'\]"),
        (Leaks(what="age"), "replies_are_disclosed", "sent: .'age', 'model', 'n'"),
        (Leaks(what="no n"), "replies_are_disclosed", r"declared and not sent: .'n'\]"),
        (EditsPayload(), "payload_is_left_alone", "site=0, step='train', round=0"),
        (Explodes(), "ends_finite", "not finite: .*head.weight"),
        (DividesByCounts(), "class_nobody_has", "not finite: .*rarity"),
        (WantsTwo(), "small_sites", "left out of a round: .*site-0"),
        (SendsStatistics(), "buffers", "buffers='local', yet a client sends .*running_mean"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Method) else value.split()[0],
)
def test_check_catches(method: Method, check: str, complaint: str):
    with pytest.raises((AssertionError, TypeError, KeyError, RuntimeError), match=complaint) as caught:
        getattr(conformance, f"check_{check}")(Case(method, "classification"))
    assert not isinstance(caught.value, RunError)


def test_a_case_says_what_it_is():
    assert str(Case(FedAvg(), "segmentation", (plugin_class("prox")(),))) == "fedavg+prox-segmentation"
