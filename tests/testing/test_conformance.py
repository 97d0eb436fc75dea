"""Every method, task and plugin through its checks; and every check shown to catch the faults that it is for."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import pytest
import torch

from crossward.core import engine as core_engine
from crossward.core import select
from crossward.core.disclosure import CLASS_COUNTS, SAMPLE_COUNT, WEIGHTS, Disclosure, ReplyRefused
from crossward.core.method import Clients, Method, RoundContext, answer
from crossward.core.optimiser_memory import OPTIMISER
from crossward.core.plugin import Plugin
from crossward.core.select import Select
from crossward.core.site import Site
from crossward.core.task import ONE_CLASS
from crossward.core.tree import Tree, decode
from crossward.core.weights import Weights
from crossward.errors import RunError
from crossward.methods import METHODS, method_class
from crossward.methods.fedavg import FedAvg
from crossward.plugins import PLUGINS, plugin_class
from crossward.plugins.npr import Npr
from crossward.plugins.prox import Prox
from crossward.testing import conformance
from crossward.testing.cases import Case, cases, reference_run
from crossward.testing.conformance import CARRIERS, CHECKS, COMBINATION_CHECKS, Check, checks
from crossward.testing.faulty_methods import EditsPayload, HiddenInModule, HiddenOnModel
from crossward.testing.faulty_plugins import (
    HiddenInProcess,
    HiddenOnNetwork,
    SendsImage,
    SendsMemory,
    TunesWithoutImages,
)


def short_name(check: Check) -> str:
    return check.__name__.removeprefix("check_")


# Of a method's second task, `make test` checks what differs there; `make e2e` checks the rest, which takes minutes.
QUICK_CHECKS = (
    conformance.check_strict_equals_by_reference,
    conformance.check_resume,
    conformance.check_replies,
    conformance.check_class_nobody_has,
    conformance.check_small_sites,
    conformance.check_networks_that_differ,
)


def marks(case: Case, check: Check) -> list[pytest.MarkDecorator]:
    is_first_task = case.task == case.method.tasks[0]
    is_quick = not case.plugins and check in QUICK_CHECKS
    return [] if is_first_task or is_quick else [pytest.mark.e2e]


PAIRS = [
    pytest.param(case, check, id=f"{case}-{short_name(check)}", marks=marks(case, check))
    for case in cases()
    for check in checks(case)
]


@pytest.mark.parametrize(("case", "check"), PAIRS)
def test_method_conforms(case: Case, check: Check):
    check(case)


def test_cases_are_every_method_task_and_plugin():
    every = list(cases())
    tasks = {name: set(method_class(name).tasks) & set(ONE_CLASS) for name in METHODS}
    served = {(method_class(name), task) for name in METHODS for task in tasks[name]}
    assert {(type(case.method), case.task) for case in every if not case.plugins} == served
    for name in PLUGINS:
        plugin = plugin_class(name)
        carried = {(method, task) for method, task in served if task in plugin.tasks}
        assert {(type(case.method), case.task) for case in every if plugin in map(type, case.plugins)} == carried
    assert len({str(case) for case in every}) == len(every)


def test_every_check_is_in_the_suite():
    written = {check for name, check in vars(conformance).items() if name.startswith("check_")}
    assert written == {*CHECKS, *COMBINATION_CHECKS}


def test_plain_methods_and_the_carriers_of_plugins_get_every_check():
    every = list(cases())
    assert all(checks(case) == CHECKS for case in every if not case.plugins)
    for name in PLUGINS:
        plugin = plugin_class(name)
        full = {(type(c.method), c.task) for c in every if plugin in map(type, c.plugins) and checks(c) == CHECKS}
        assert full == {(method, task) for method in CARRIERS for task in plugin.tasks if task in ONE_CLASS}
    assert all(checks(case) in (CHECKS, COMBINATION_CHECKS) for case in every)


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
class Undescribed(Method):
    """The file that it is in does not say where it departs from a paper."""


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
    discloses: ClassVar[Mapping[str, Disclosure]] = {"model": WEIGHTS, "n": SAMPLE_COUNT, "counts": CLASS_COUNTS}

    def train(self, site: Site, down: Tree) -> Tree:
        return super().train(site, down) | {"counts": site.task.counts(site.train.labels).float()}

    def aggregate(self, state: Tree, replies: Mapping[int, Tree], ctx: RoundContext) -> Tree:
        return state | {"rarity": 1 / torch.stack([reply["counts"] for reply in replies.values()]).sum(0)}


@dataclass(frozen=True)
class CallsMeansSums(DividesByCounts):
    def train(self, site: Site, down: Tree) -> Tree:
        reply = super().train(site, down)
        return reply | {"counts": reply["counts"] / site.size}


@dataclass(frozen=True)
class WantsTwo(Method):
    discloses: ClassVar[Mapping[str, Disclosure]] = {"model": WEIGHTS, "n": SAMPLE_COUNT, "spread": CLASS_COUNTS}

    def train(self, site: Site, down: Tree) -> Tree:
        return super().train(site, down) | {"spread": torch.tensor(1.0) / (site.size - 1)}


@dataclass(frozen=True)
class SendsStatistics(Method):
    def train(self, site: Site, down: Tree) -> Tree:
        return super().train(site, down) | {"model": Weights.of(site.model)}

    def aggregate(self, state: Tree, replies: Mapping[int, Tree], ctx: RoundContext) -> Tree:
        return state


@dataclass(frozen=True)
class WeighsByTurn(Method):
    """The model that a client is sent depends on how many were asked before it."""

    def round(self, state: Tree, clients: Clients, ctx: RoundContext) -> Tree:
        served: list[int] = []

        def payload(client: int) -> Tree:
            served.append(client)
            return {"model": state["model"] * (1 + len(served) / 100)}

        return self.aggregate(state, clients.ask("train", payload), ctx)


@pytest.mark.parametrize(
    ("method", "check", "complaint"),
    [
        (Unhashable(), "definition", "unhashable"),
        (Demanding(depth=2), "definition", "without a default"),
        (Thawed(), "definition", "no FrozenInstanceError"),
        (Absent(), "definition", "no step polish"),
        (Undescribed(), "definition", "Departures"),
        (HiddenOnModel(), "strict_equals_by_reference", "strict: .*tensors differ"),
        (EditsPayload(), "strict_equals_by_reference", "strict: .*tensors differ"),
        (HiddenInModule(), "pool_equals_local", "KeyError: 'c'"),
        (HiddenOnModel(), "order_of_clients", "another order: .*tensors differ"),
        (WeighsByTurn(), "order_of_clients", "another order: .*tensors differ"),
        (HiddenOnModel(), "resume", "after round 1.*tensors differ"),
        (Impatient(), "drop_out", "0"),
        (Leaks(what="images"), "replies", "train: n has the shape of images"),
        (Leaks(what="flat"), "replies", "train: n holds an image"),
        (Leaks(what="memory"), "replies", "n/_personal is named as client memory"),
        (Leaks(what="head"), "replies", r"model holds \['head.bias', 'head.weight'\]"),
        (Leaks(what="age"), "replies", "answers 'train' with what it does not declare: age"),
        (Leaks(what="no n"), "replies", r"declared and not sent: .'n'\]"),
        (CallsMeansSums(), "declared_items", "train: counts is no sum over images"),
        (EditsPayload(), "replies", "site=0, step='train', round=0"),
        (Explodes(), "replies", "not finite: .*head.weight"),
        (DividesByCounts(), "class_nobody_has", "not finite: .*rarity"),
        (WantsTwo(), "small_sites", "left out of a round: .*site-0"),
        (SendsStatistics(), "buffers", "buffers='local', yet a client sends .*running_mean"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Method) else value.split()[0],
)
def test_check_catches(method: Method, check: str, complaint: str):
    with pytest.raises((AssertionError, TypeError, KeyError, RuntimeError, ReplyRefused), match=complaint) as caught:
        getattr(conformance, f"check_{check}")(Case(method, "classification"))
    assert not isinstance(caught.value, RunError)


# faults in a combination of a method and a plugin -------------------------------------------------------------------


def failing_checks(case: Case) -> set[str]:
    """The names of the combination's checks that do not pass."""
    failing = set()
    for check in COMBINATION_CHECKS:
        try:
            check(case)
        except Exception:
            failing.add(short_name(check))
    return failing


STRICT, SCARCE = "strict_in_reverse_order", "class_nobody_has_at_small_sites"


@pytest.mark.parametrize(
    ("method", "plugin", "failing"),
    [
        (FedAvg(), Prox(), set()),
        (HiddenOnModel(), Prox(), {STRICT, "resume"}),
        (EditsPayload(), Prox(), {STRICT, "replies"}),
        (WeighsByTurn(), Prox(), {STRICT}),
        (Leaks(what="images"), Prox(), {"replies"}),
        (Leaks(what="age"), Prox(), {STRICT, "resume", "replies", SCARCE}),
        (Explodes(), Prox(), {"replies", SCARCE}),
        (DividesByCounts(), Prox(), {SCARCE}),
        (WantsTwo(), Prox(), {SCARCE}),
        (FedAvg(), HiddenOnNetwork(), {STRICT, "resume"}),
        (FedAvg(), HiddenInProcess(), {STRICT, "resume"}),
        (FedAvg(), SendsMemory(), {STRICT, "resume"}),
        (FedAvg(), SendsImage(), {STRICT, "resume", "replies"}),
        (FedAvg(), TunesWithoutImages(), {SCARCE}),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Method | Plugin) else "",
)
def test_combination_checks_catch(method: Method, plugin: Plugin, failing: set[str]):
    assert failing_checks(Case(method, "classification", (plugin,))) == failing


# faults in the package itself ---------------------------------------------------------------------------------------


@pytest.fixture
def uncached() -> Iterator[None]:
    """Reference runs of a faulty package are not for others to see."""
    reference_run.cache_clear()
    yield
    reference_run.cache_clear()


def read_checkpoint_and(spoil: Callable[[Tree], object]) -> Callable[[bytes], Tree]:
    """Reads a checkpoint, and spoils the memory of every client in it."""

    def read(checkpoint: bytes) -> Tree:
        tree = decode(checkpoint)
        for memory in tree["memory"].values():
            spoil(memory)
        return tree

    return read


@pytest.mark.parametrize("plugins", [(), (Prox(),)], ids=["plain", "plugin"])
def test_a_resume_that_forgets_the_optimiser_is_caught(monkeypatch, plugins: tuple[Plugin, ...]):
    case = Case(FedAvg(), "classification", plugins)
    conformance.check_resume(case)
    monkeypatch.setattr(conformance, "decode", read_checkpoint_and(lambda memory: memory.pop(OPTIMISER)))
    with pytest.raises(AssertionError, match="resumed after round 1"):
        conformance.check_resume(case)


def test_a_resume_that_clears_the_memory_of_a_plugin_is_caught(monkeypatch):
    case = Case(FedAvg(), "classification", (Npr(),))
    conformance.check_resume(case)
    monkeypatch.setattr(conformance, "decode", read_checkpoint_and(lambda memory: memory["npr"].zero_()))
    with pytest.raises(AssertionError, match=r"resumed after round 1: .*tensors differ"):
        conformance.check_resume(case)


@pytest.mark.parametrize("item", ["npr", OPTIMISER])
def test_memory_that_slips_into_a_reply_is_caught(monkeypatch, uncached, item: str):
    def talkative(method: Method, site: Site, step: str, payload: Tree, seed: int) -> Tree:
        reply = answer(method, site, step, payload, seed)
        return reply | {item: site.memory[item]} if step == "train" else reply

    monkeypatch.setattr(core_engine, "answer", talkative)
    with pytest.raises(AssertionError, match="named as client memory is" if item == OPTIMISER else "sent: .*'npr'"):
        conformance.check_replies(Case(FedAvg(), "classification", (Npr(),)))


def test_a_buffer_policy_that_is_ignored_is_caught(monkeypatch, uncached):
    monkeypatch.setattr(Method, "returns", property(lambda method: method.shared))
    with pytest.raises(AssertionError, match=r"buffers='local', yet a client sends .*running_mean"):
        conformance.check_buffers(Case(FedAvg(), "classification"))


def test_a_case_says_what_it_is():
    assert str(Case(FedAvg(), "segmentation", (plugin_class("prox")(),))) == "fedavg+prox-segmentation"
