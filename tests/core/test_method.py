"""Method: the base is FedAvg; `answer` keeps what is personal, seeds what is random and refuses what is not finite."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError, dataclass
from typing import ClassVar

import pytest
import torch

from crossward.core import select
from crossward.core.cohort import Cohort
from crossward.core.disclosure import WEIGHTS, ReplyRefused
from crossward.core.loop import Diverged
from crossward.core.method import (
    PERSONAL,
    Method,
    RoundContext,
    answer,
    export_predictor,
    predictions,
    restore_predictor,
)
from crossward.core.select import Select
from crossward.core.training import Training
from crossward.core.weights import Weights
from crossward.engines.local import LocalEngine
from crossward.methods.fedavg import FedAvg
from crossward.methods.local import Local
from crossward.testing.toy import Toy

STATISTICS = ["body.1.running_mean", "body.1.running_var"]

# The line with two layers: logit = b a x; x = 1, 2; y = 3, 1; a = 1, b = 2: gradients 5 and 2.5, see test_site.py.


def of(**values):
    return Weights({name.replace("_", "."): torch.tensor(value) for name, value in values.items()})


def sent(a=1.0, b=2.0):
    return Weights({"body.1.weight": torch.tensor([[a]]), "head.weight": torch.tensor([[b]])})


def listed(weights):
    return {name: tensor.item() for name, tensor in weights.items()}


@dataclass(frozen=True)
class HeadStays(Method):
    shared: ClassVar[Select] = ~select.head


def context(run_sites, round=0):
    return RoundContext(round, 3, len(run_sites.ids), run_sites.task, run_sites.server(round))


def test_train_by_hand(line):
    site = line(weights=[9.0, 9.0])
    reply = answer(Method(), site, "train", {"model": sent()}, 0)
    assert listed(reply["model"]) == pytest.approx({"body.1.weight": 0.5, "head.weight": 1.75})
    assert reply["n"] == 2
    assert set(reply) == set(Method.discloses)
    assert site.memory == {}


def test_aggregate_weighs_by_samples(line):
    state = {"model": of(w=[0.0, 0.0], kept=[7.0]), "other": 5}
    replies = {0: {"model": of(w=[1.0, 2.0]), "n": 30}, 3: {"model": of(w=[5.0, 10.0]), "n": 10}}
    after = Method().aggregate(state, replies, None)
    assert after["model"]["w"].tolist() == [2.0, 4.0]
    assert after["model"]["kept"].tolist() == [7.0]  # what nobody sent stays
    assert after["other"] == 5
    assert state["model"]["w"].tolist() == [0.0, 0.0]


def test_personal_weights_are_kept_and_restored(line):
    site = line(weights=[1.0, 2.0])
    down = {"model": sent().only(["body.1.weight"])}
    reply = answer(HeadStays(), site, "train", down, 0)
    assert listed(reply["model"]) == pytest.approx({"body.1.weight": 0.5})
    assert listed(site.memory[PERSONAL]) == pytest.approx({"head.weight": 1.75})
    other = line(weights=[-8.0, -8.0], memory=dict(site.memory))  # the next round, in another process
    answer(HeadStays(), other, "train", down, 0)
    # a = 1, b = 1.75: residuals -1.25 and 2.5; d/db = (-1.25 * 1 + 2.5 * 2) / 2
    assert listed(other.memory[PERSONAL]) == pytest.approx({"head.weight": 1.75 - 0.1 * 1.875})


def test_personal_weights_serve_to_predict_and_are_not_renewed_by_it(line, pixels):
    kept = {PERSONAL: sent(b=5.0).only(["head.weight"])}
    site = line(weights=[1.0, 2.0], val=pixels([1, 2], [0, 0]), memory=dict(kept))
    reply = answer(HeadStays(), site, "predict", {"model": sent(a=3.0).only(["body.1.weight"])}, 0)
    assert reply["val"].tolist() == [[15.0], [30.0]]
    assert set(reply) == {"val"}  # its test set is empty
    assert site.memory[PERSONAL] is kept[PERSONAL]


@pytest.mark.parametrize("step", ["unknown", "aggregate", "predictor", "__init__", ""])
def test_unknown_steps_are_refused(line, step):
    with pytest.raises(ValueError, match=f"Method has no client step '{step}'"):
        answer(Method(), line(), step, {}, 0)


@dataclass(frozen=True)
class Random(Method):
    discloses: ClassVar = dict.fromkeys(("own", "global", "marks", "fits"), WEIGHTS)

    def train(self, site, down):
        site.scratch["mark"] = site.scratch.get("mark", 0) + 1
        own = torch.rand(1, generator=site.rng)
        return {"own": own, "global": torch.rand(1), "marks": site.scratch["mark"], "fits": len(site.fits)}


def test_answers_depend_on_the_seed_alone(line):
    site = line()
    torch.manual_seed(4)
    expected = torch.rand(1)
    torch.manual_seed(4)
    first, second, other = (answer(Random(), site, "train", {}, seed) for seed in (1, 1, 2))
    assert torch.equal(torch.rand(1), expected)  # the world outside noticed nothing
    for name in ("own", "global"):
        assert torch.equal(first[name], second[name])
        assert not torch.equal(first[name], other[name])
    site.fit()
    assert answer(Random(), site, "train", {}, 1)["marks"] == 1  # scratch is cleared
    assert answer(Random(), site, "train", {}, 1)["fits"] == 0


@dataclass(frozen=True)
class Says(Method):
    discloses: ClassVar = {"deep": WEIGHTS}

    reply: float = 0.0
    memory: float = 0.0

    def train(self, site, down):
        site.memory["m"] = torch.tensor(self.memory)
        return {"deep": {"r": torch.tensor([1.0, self.reply])}}


@pytest.mark.parametrize("method", [Says(reply=math.nan), Says(reply=-math.inf), Says(memory=math.nan)])
def test_what_is_not_finite_is_not_sent(line, method):
    with pytest.raises(Diverged, match="its reply to 'train' holds NaN or infinity"):
        answer(method, line(), "train", {}, 0)
    assert answer(Says(), line(), "train", {}, 0)["deep"]["r"].tolist() == [1, 0]


@dataclass(frozen=True)
class Undeclared(Method):
    def train(self, site, down):
        return {"ages": torch.tensor([71])}


def test_what_is_not_declared_is_not_sent(line):
    with pytest.raises(ReplyRefused, match="Undeclared answers 'train' with what it does not declare: ages"):
        answer(Undeclared(), line(), "train", {}, 0)


def test_a_method_is_frozen():
    with pytest.raises(FrozenInstanceError):
        FedAvg().buffers = "local"


def one_round(buffers):
    run_sites = Toy().run_sites(FedAvg(buffers=buffers), training=Training(batch_size=4, lr=0.05))
    engine, ctx = LocalEngine(run_sites), context(run_sites)
    before = run_sites.method.start(ctx)
    replies = Cohort(run_sites, engine, 0, run_sites.ids).ask("train", before)
    return run_sites, engine, before, replies, run_sites.method.aggregate(before, replies, ctx)


def test_buffers_averaged():
    run_sites, engine, before, replies, after = one_round("average")
    assert set(STATISTICS) < set(before["model"])
    by_hand = sum(n * replies[i]["model"][STATISTICS[0]] for i, n in enumerate((12, 20, 9, 16))) / 57
    assert torch.allclose(after["model"][STATISTICS[0]], by_hand)
    assert not torch.equal(by_hand, before["model"][STATISTICS[0]])
    assert list(engine.memory) == []
    assert not run_sites.personal


def test_buffers_local():
    run_sites, engine, before, replies, after = one_round("local")
    assert not set(STATISTICS) & {*before["model"], *replies[0]["model"], *after["model"]}
    assert [list(engine.memory[i][PERSONAL]) for i in run_sites.ids] == [STATISTICS] * 4
    assert len({tuple(engine.memory[i][PERSONAL][STATISTICS[0]].tolist()) for i in run_sites.ids}) == 4
    assert run_sites.personal


def test_buffers_at_the_server():
    _, engine, before, replies, after = one_round("server")
    assert not set(STATISTICS) & set(replies[0]["model"])
    assert after["model"][STATISTICS[0]].tolist() == [0.0] * 4
    assert after["model"][STATISTICS[1]].tolist() == [1.0] * 4
    assert not torch.equal(after["model"]["head.weight"], before["model"]["head.weight"])
    assert list(engine.memory) == []


def test_start_is_the_same_every_time_and_what_travels():
    run_sites = Toy().run_sites(HeadStays())
    first, second = (HeadStays().start(context(run_sites))["model"] for _ in range(2))
    assert all(torch.equal(first[n], second[n]) for n in first)
    assert [n for n in first if n.startswith("head")] == []


def test_predictions_on_own_and_common_sets():
    run_sites = Toy().run_sites(Local())
    site = run_sites.open(2, 0, {})
    reply = predictions(Local(), site, {})
    assert {name: tuple(p.shape) for name, p in reply.items()} == {"val": (3, 3), "test": (5, 3), "common_test": (6, 3)}
    shared = Toy().run_sites(FedAvg())
    assert set(predictions(FedAvg(), shared.open(2, 0, {}), {})) == {"val", "test"}


@dataclass(frozen=True)
class Adds(HeadStays):
    """Predicts with an offset from the server and another from memory."""

    def predictor(self, site, down, view="local"):
        base, offset = super().predictor(site, down, view), down["offset"] + site.memory["offset"]
        return lambda x: base(x) + offset


def test_deploy_and_restore(line, pixels):
    memory = {PERSONAL: sent(b=5.0).only(["head.weight"]), "offset": 100}
    site = line(weights=[0.0, 0.0], val=pixels([1, 2], [0, 0]), memory=memory)
    down = {"model": sent(a=3.0).only(["body.1.weight"]), "offset": 1000}
    predicted = answer(Adds(), site, "predict", down, 0)["val"]
    assert predicted.tolist() == [[1115.0], [1130.0]]
    exported = answer(Adds(), site, "deploy", down, 0)
    assert listed(exported["model"]) == {"body.1.weight": 3.0, "head.weight": 5.0}
    assert exported["down"] == {"offset": 1000}
    elsewhere = line(weights=[7.0, 7.0])
    predictor = restore_predictor(Adds(), elsewhere, exported)
    assert elsewhere.predict(predictor, site.val).tolist() == predicted.tolist()
    assert not elsewhere.model.training
    assert set(export_predictor(Adds(), site, down)) == {"model", "down", "memory"}


def test_what_is_deployed_holds_no_weights_twice_and_no_moments(line):
    site = line(weights=[1.0, 2.0])
    site.memory = {"_personal": Weights.of(site.model), "_optimiser": {"0": {}}, "prototypes": torch.ones(2)}
    exported = export_predictor(Local(), site, {})
    assert list(exported["memory"]) == ["prototypes"]
    assert {*site.memory} == {"_personal", "_optimiser", "prototypes"}
