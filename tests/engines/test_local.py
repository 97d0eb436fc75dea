"""The in-process engine: what strict mode catches, what is kept, and what a failure leaves behind."""

from __future__ import annotations

import pytest
import torch

from crossward.core.cohort import Cohort
from crossward.core.engine import Job
from crossward.core.method import Method, RoundContext
from crossward.core.run import Plan, run
from crossward.core.seeds import derive
from crossward.core.store import TreeStore
from crossward.core.training import Training
from crossward.core.tree import Tree
from crossward.core.weights import Weights
from crossward.engines.local import LocalEngine
from crossward.methods.fedavg import FedAvg
from crossward.methods.local import Local
from crossward.methods.scaffold import Scaffold
from crossward.testing.by_hand import regression_per_site, weight_matrix
from crossward.testing.engine_wrappers import DroppingEngine
from crossward.testing.faulty_methods import EditsPayload, Faulty, HiddenInModule, HiddenOnModel
from crossward.testing.short_runs import ROUNDS, Records, assert_same, run_to_end
from crossward.testing.toy import Toy, linear

THREE = Toy(sizes=((6, 2, 2), (9, 2, 2), (5, 2, 2)))
KEEPING = Training(epochs=2, batch_size=4, lr=0.05, momentum=0.5, keep_state=True)


def ends(method: Method) -> tuple[Tree, Tree]:
    """By reference and strict."""
    both = []
    for strict in (False, True):
        run_sites = THREE.run_sites(method, training=KEEPING)
        both.append(run_to_end(run_sites, LocalEngine(run_sites, strict=strict)))
    return both[0], both[1]


@pytest.mark.parametrize("method", [Scaffold(), Local(), FedAvg(buffers="local")], ids=["scaffold", "local", "buffers"])
def test_strict_is_by_reference_to_the_bit(method: Method):
    assert_same(*ends(method))


@pytest.mark.parametrize("method", [HiddenOnModel(), EditsPayload()], ids=lambda method: type(method).__name__)
def test_strict_catches(method: Method):
    with pytest.raises(AssertionError, match="tensors differ"):
        assert_same(*ends(method))


def test_strict_does_not_catch_what_is_hidden_in_a_module():
    """Which is why mutable globals are banned (test_architecture), and why the pool runs every method (test_pool)."""
    assert_same(*ends(HiddenInModule()))


@pytest.mark.parametrize("method", [FedAvg(buffers="local"), Scaffold()])
def test_the_order_of_clients_does_not_matter(method):
    results = []
    for turn in (1, -1):
        run_sites = Toy().run_sites(method)
        start = method.start(RoundContext(0, 1, 4, run_sites.task, run_sites.server(0)))
        jobs = [Job(i, "train", 0, derive(0, "train", i), True) for i in run_sites.ids][::turn]
        engine = LocalEngine(run_sites)
        outcomes = {outcome.job.site: outcome for outcome in engine.perform(jobs, start)}
        assert list(outcomes) == [0, 1, 2, 3][::turn]
        sent = {(i, k, n): t for i in range(4) for k, w in outcomes[i].reply.items() if k != "n" for n, t in w.items()}
        held = {(i, k, n): t for i in range(4) for k, w in engine.memory[i].items() for n, t in w.items()}
        results.append(sent | held)
    assert results[0].keys() == results[1].keys()
    assert all(torch.equal(results[0][key], results[1][key]) for key in results[0])


@pytest.mark.parametrize("strict", [False, True])
def test_memory_is_kept_for_jobs_that_say_so(strict: bool):
    run_sites = THREE.run_sites(Scaffold())
    engine = LocalEngine(run_sites, strict=strict)
    down = Scaffold().start(RoundContext(0, 1, 3, run_sites.task, run_sites.server(0)))
    for keep, known in ((False, []), (True, [1])):
        list(engine.perform([Job(1, "train", 0, 7, keep)], down))
        assert list(engine.memory) == known
    assert list(engine.memory[1]) == ["c"]


def test_memory_it_is_given_is_where_it_goes_on():
    run_sites, memory = THREE.run_sites(Local()), TreeStore()
    net = Weights.of(run_sites.server(0).new_net())
    memory[1] = {"_personal": net}
    engine = LocalEngine(run_sites, memory=memory)
    (outcome,) = engine.perform([Job(1, "predict", 0, 7, False)], {})
    site = run_sites.open(1, 0, {}, fresh=True)
    net.into(site.model)
    assert torch.equal(outcome.reply["test"], site.predict(site.model, site.test))


def test_a_client_may_be_sent_a_payload_of_its_own():
    run_sites = THREE.run_sites(FedAvg(), training=Training(epochs=1, batch_size=64, lr=0.1), net=linear)
    net = Weights.of(run_sites.server(0).new_net())
    cohort = Cohort(run_sites, LocalEngine(run_sites), 0, run_sites.ids)
    replies = cohort.ask("train", lambda i: {"model": net * (1.0 + i)})
    for i, site in enumerate(regression_per_site(run_sites)):
        w = (1 + i) * weight_matrix(net)
        torch.testing.assert_close(weight_matrix(replies[i]["model"]), w - 0.1 * site.gradient(w), atol=1e-6, rtol=0)


@pytest.mark.parametrize("strict", [False, True])
def test_a_client_that_diverges_is_named_and_leaves_nothing_behind(strict: bool):
    """The others end as if it had not answered: not even its NaN in the shared network reaches them."""
    run_sites, records = THREE.run_sites(Faulty(fault="nan"), training=KEEPING), Records()
    engine = LocalEngine(run_sites, strict=strict)
    end = run_to_end(run_sites, engine, records)
    why = "its reply to 'train' holds NaN or infinity"
    assert [record.failures for record in records.rounds] == [{"site-1": why}] * ROUNDS
    assert list(end["memory"]) == ["0", "2"]
    other = THREE.run_sites(FedAvg(), training=KEEPING)
    lost = DroppingEngine(DroppingEngine(LocalEngine(other), 1, 0, "train"), 1, 1, "train")
    assert_same(end, run_to_end(other, lost))


def test_a_client_that_diverges_keeps_the_memory_it_had():
    run_sites = THREE.run_sites(Faulty(fault="nan", buffers="local"))
    memory = TreeStore()
    memory[1] = {"_personal": Weights.of(run_sites.server(0).new_net(), ~run_sites.method.travels), "age": 4}
    engine = LocalEngine(run_sites, memory=memory)
    run(run_sites, engine, Plan(1))
    assert set(engine.memory[1]) == {"_personal", "age"}
    assert all(bool(torch.isfinite(t).all()) for t in engine.memory[1]["_personal"].values())


def test_a_programming_error_stops_the_run():
    run_sites = THREE.run_sites(Faulty(fault="raise"))
    with pytest.raises(ZeroDivisionError, match="site-1 has run out of film"):
        run(run_sites, LocalEngine(run_sites), Plan(1))


def test_a_step_that_the_method_lacks_is_refused():
    run_sites = THREE.run_sites(FedAvg())
    with pytest.raises(ValueError, match="FedAvg has no client step 'polish'"):
        list(LocalEngine(run_sites).perform([Job(0, "polish", 0, 7, True)], {}))
