"""The pool engine: the local engine's results to the bit, whatever happens to the workers."""

from __future__ import annotations

import importlib
import os
import shutil
import signal
from collections.abc import Sequence

import pytest

from crossward.core.engine import Job, Outcome
from crossward.core.method import Method
from crossward.core.run import Observer
from crossward.core.training import Training
from crossward.core.tree import Tree
from crossward.core.weights import Weights
from crossward.engines.local import LocalEngine
from crossward.engines.pool import PoolEngine, Worker, WorkerPool
from crossward.errors import RunError
from crossward.methods.fedavg import FedAvg
from crossward.methods.local import Local
from crossward.methods.scaffold import Scaffold
from crossward.runs.sites import RunSites
from crossward.testing.engine_wrappers import DroppingEngine
from crossward.testing.faulty_methods import Faulty, HiddenInModule
from crossward.testing.short_runs import ROUNDS, Records, assert_same, run_to_end, shared_pool
from crossward.testing.toy import Toy

FOUR = Toy()  # training sets of 12, 20, 9 and 16
KEEPING = Training(epochs=1, batch_size=4, lr=0.05, momentum=0.5, keep_state=True)


def shared(method: Method) -> RunSites:
    run_sites = FOUR.run_sites(method, training=KEEPING)
    run_sites.share_images()
    return run_sites


def in_process(method: Method) -> Tree:
    run_sites = FOUR.run_sites(method, training=KEEPING)
    return run_to_end(run_sites, LocalEngine(run_sites))


def with_workers(method: Method, workers: int, observers: Sequence[Observer] = ()) -> Tree:
    run_sites = shared(method)
    return run_to_end(run_sites, PoolEngine(run_sites, worker_pool=shared_pool(workers)), *observers)


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("method", [Scaffold(), Local(), FedAvg(buffers="local")], ids=["scaffold", "local", "buffers"])
def test_the_result_is_the_local_engines_to_the_bit(method: Method, workers: int):
    assert_same(with_workers(method, workers), in_process(method))


@pytest.mark.parametrize("workers", [1, 3])
def test_a_client_may_be_sent_a_payload_of_its_own(workers: int):
    run_sites = shared(FedAvg())
    net = Weights.of(run_sites.server(0).new_net())
    jobs = [Job(i, "train", 0, 7, True) for i in run_sites.ids]
    replies = []
    for engine in (PoolEngine(run_sites, worker_pool=shared_pool(workers)), LocalEngine(run_sites)):
        outcomes = engine.perform(jobs, lambda i: {"model": net * (1.0 + i)})
        replies.append({str(o.job.site): o.reply for o in sorted(outcomes, key=lambda o: o.job.site)})
    assert_same(*replies)


def test_larger_jobs_go_first():
    run_sites = shared(FedAvg())
    engine = PoolEngine(run_sites, worker_pool=shared_pool(1))
    down = {"model": Weights.of(run_sites.server(0).new_net())}
    outcomes = engine.perform([Job(i, "train", 0, 7, True) for i in run_sites.ids], down)
    assert [outcome.job.site for outcome in outcomes] == [1, 3, 0, 2]


class KillsHeldWorker(Observer):
    """Once the first client has answered, kills a worker that was stopped before the run and so is in mid-job."""

    def __init__(self, worker: Worker) -> None:
        self.worker, self.job = worker, None

    def on_outcome(self, round: int, done: int, of: int, outcome: Outcome) -> None:
        if self.worker.process.poll() is None:
            self.job = self.worker.job
            os.kill(self.worker.process.pid, signal.SIGKILL)
            self.worker.process.wait()


def test_a_worker_killed_in_mid_round_is_replaced_and_its_client_tried_again():
    run_sites, records = shared(Scaffold()), Records()
    engine = PoolEngine(run_sites, worker_pool=shared_pool(2))
    victim = engine.worker_pool.workers[0]
    killer = KillsHeldWorker(victim)
    os.kill(victim.process.pid, signal.SIGSTOP)
    end = run_to_end(run_sites, engine, killer, records)
    assert killer.job is not None
    assert killer.job.site == 1  # the largest went to the first worker
    assert engine.worker_pool.workers[0] is not victim
    assert engine.worker_pool.workers[0].process.poll() is None
    assert [record.failures for record in records.rounds] == [{}] * ROUNDS
    assert_same(end, in_process(Scaffold()))


def test_a_worker_that_died_before_its_first_job_is_replaced():
    run_sites = shared(Scaffold())
    engine = PoolEngine(run_sites, worker_pool=shared_pool(1))
    victim = engine.worker_pool.workers[0]
    victim.process.kill()
    victim.process.wait()
    assert_same(run_to_end(run_sites, engine), in_process(Scaffold()))


def test_a_client_whose_worker_dies_twice_is_named_and_left_out():
    run_sites = shared(Faulty(fault="exit", site="site-2"))
    engine = PoolEngine(run_sites, worker_pool=shared_pool(2))
    down = {"model": Weights.of(run_sites.server(0).new_net())}
    jobs = [Job(i, "train", 0, 7, True) for i in run_sites.ids]
    outcomes = {o.job.site: o for o in engine.perform(jobs, down)}
    assert {run_sites.name(i): o.failure for i, o in outcomes.items() if o.failure} == {
        "site-2": "its worker process died twice"
    }
    expected = {o.job.site: o for o in LocalEngine(FOUR.run_sites(FedAvg(), training=KEEPING)).perform(jobs, down)}
    for i in (0, 1, 3):
        assert_same(outcomes[i].reply, expected[i].reply)
    assert list(engine.memory) == [0, 1, 3]


def test_an_exception_in_a_step_comes_with_the_workers_traceback():
    with pytest.raises(RuntimeError) as caught:
        with_workers(Faulty(fault="raise"), 2)
    message = str(caught.value)
    assert message.startswith("site-1, step 'train', failed in a worker:\nTraceback (most recent call last):")
    assert "faulty_methods.py" in message
    assert "ZeroDivisionError: site-1 has run out of film" in message
    assert_same(with_workers(FedAvg(), 2), in_process(FedAvg()))  # the workers are still good


def test_an_error_for_people_reaches_them_in_words():
    with pytest.raises(RunError) as caught:
        with_workers(Faulty(fault="words"), 2)
    assert caught.value.what == "site-1 has no film"
    assert caught.value.details == ("35 mm",)
    assert caught.value.hint == "Buy some."


def test_what_is_hidden_in_a_module_is_not_there_in_a_worker():
    with pytest.raises(RuntimeError, match="KeyError: 'c'"):
        with_workers(HiddenInModule(), 1)


def test_a_client_that_diverges_is_named_as_in_process():
    records = Records()
    end = with_workers(Faulty(fault="nan"), 2, [records])
    why = "its reply to 'train' holds NaN or infinity"
    assert [record.failures for record in records.rounds] == [{"site-1": why}] * ROUNDS
    other = FOUR.run_sites(FedAvg(), training=KEEPING)
    without = DroppingEngine(DroppingEngine(LocalEngine(other), 1, 0, "train"), 1, 1, "train")
    assert_same(end, run_to_end(other, without))


def test_closing_stops_only_workers_that_the_engine_started():
    lent = shared_pool(1)
    PoolEngine(shared(FedAvg()), worker_pool=lent).close()
    assert lent.workers[0].process.poll() is None
    engine = PoolEngine(shared(FedAvg()), workers=1)
    (own,) = engine.worker_pool.workers
    engine.close()
    assert own.process.poll() == -signal.SIGKILL


def test_a_worker_ends_with_its_parent():
    (worker,) = WorkerPool(1).workers
    worker.connection.close()
    assert worker.process.wait(timeout=60) == 0


def test_a_net_beside_the_users_script_is_found(tmp_path, monkeypatch):
    (tmp_path / "ours_alone.py").write_text(
        "from crossward.testing.toy import classifier as net\n\n\ndef mine():\n    return net()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    mine = importlib.import_module("ours_alone").mine
    run_sites = FOUR.run_sites(FedAvg(), net=mine)
    run_sites.share_images()
    local = FOUR.run_sites(FedAvg(), net=mine)
    assert_same(
        run_to_end(run_sites, PoolEngine(run_sites, worker_pool=shared_pool(1))), run_to_end(local, LocalEngine(local))
    )


def test_an_error_names_why_a_worker_cannot_open_the_sites(tmp_path, monkeypatch):
    (tmp_path / "gone_soon.py").write_text(
        "from crossward.testing.toy import classifier\n\n\ndef net():\n    return classifier()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    run_sites = FOUR.run_sites(FedAvg(), net=importlib.import_module("gone_soon").net)
    run_sites.share_images()
    (tmp_path / "gone_soon.py").unlink()
    shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
    with pytest.raises(RuntimeError, match="No module named 'gone_soon'"):
        run_to_end(run_sites, PoolEngine(run_sites, worker_pool=shared_pool(1)))
