"""The programs that compare engines run from end to end, on next to no work; and so do the peers."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
import torch

from crossward.engines.local import LocalEngine
from crossward.hospitals.flower.loopback_grid import LoopbackGrid
from crossward.runs.architectures import architecture_of

PEER = Path(__file__).parent / "bare_peer.py"


@pytest.fixture
def overhead():
    import overhead

    return overhead


@pytest.fixture(autouse=True)
def one_thread():
    """The programs set how many threads torch has."""
    yield
    torch.set_num_threads(1)


def test_engines_are_compared(overhead, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    overhead.main(["--smoke", "--only", "bare", "pool", "payload", "--json", str(tmp_path / "overhead.json")])
    measured = json.loads((tmp_path / "overhead.json").read_text())
    titles = [comparison["what"] for comparison in measured]
    assert titles == [
        "local engine / bare loop, cnn",
        "speed-up of the pool over 1 thread, cnn",
        "speed-up of the pool over 2 threads, cnn",
        "pool / two bare loops side by side, cnn",
        "processor time of the pool / local, 44 MB to 8 clients",
    ]
    assert all(comparison["ratio"] >= 0 for comparison in measured)
    printed = capsys.readouterr().out
    assert all(title in printed for title in titles)


def test_the_smallest_bare_loop_learns_the_same_to_the_bit(overhead):
    sites = overhead.run_sites(overhead.SMOKE_CNN)
    by_crossward = overhead.train(sites, LocalEngine(sites), 2)
    by_hand = overhead.train_bare(overhead.SMOKE_CNN, 2)
    assert by_hand.keys() == by_crossward.keys()
    assert all(torch.equal(by_hand[name], by_crossward[name]) for name in by_hand)


def test_other_work_is_refused(overhead):
    ours = {"w": torch.zeros(2)}
    with pytest.raises(SystemExit, match=r"pfl did other work: its weights are 0.5 from crossward's"):
        overhead.check_same("pfl", {"w": torch.tensor([0.0, 0.5])}, ours)


def test_a_partial_function_is_an_architecture(overhead):
    """`functools.partial` has no __qualname__: the benchmark ended in an AttributeError."""
    work = overhead.SMOKE_CNN
    assert architecture_of(work.make) == "build 'cnn' channels=3 classes=8 size=28"
    assert list(overhead.run_sites(work).architectures) == [architecture_of(work.make)]


def test_peers_that_are_not_installed_are_left_out(overhead, monkeypatch, capsys):
    monkeypatch.setattr(overhead, "PYTHON", Path("nowhere"))
    overhead.main(["--smoke", "--only", "flower", "pfl"])
    printed = capsys.readouterr().out
    assert printed.startswith("Left out: flower, pfl.")
    assert "pip install -r benchmarks/requirements-peers.txt" in printed


@pytest.mark.parametrize("section", ["flower", "pfl"])
def test_crossward_is_compared_with_a_peer(overhead, section: str, capsys):
    if not overhead.PYTHON.exists():
        pytest.skip(f"{section} is not installed: {overhead.INSTALL_PEERS}")
    overhead.main(["--smoke", "--only", section])
    assert "local engine" in capsys.readouterr().out


# what can be tested of the peers without their environment ------------------------------------------------------------


def test_a_peer_takes_its_turn(overhead):
    from peers.process import Peer

    peer = Peer(PEER, 1, 2, 2, python=Path(sys.executable))
    sites = overhead.run_sites(overhead.TINY)
    overhead.check_same("the peer", peer.weights_after_warm_up(), overhead.train(sites, LocalEngine(sites), 1))
    assert peer.lap() > 0
    assert peer.lap() > 0
    peer.finish()


def test_a_peer_that_fails_ends_the_program_with_its_error(overhead):
    from peers.process import Peer

    with pytest.raises(SystemExit, match=r"(?s)bare_peer.py failed:.*no such word"):
        Peer(PEER, 1, 1, 1, "fail", python=Path(sys.executable))


def test_the_peer_of_flower_learns_what_crossward_learns(overhead, monkeypatch, tmp_path: Path, capsys):
    """Without Ray: its apps on a grid in this process."""
    pytest.importorskip("flwr")
    from flwr.app import Context, RecordDict
    from peers import flower_ray

    weights = tmp_path / "weights.pt"
    monkeypatch.setattr(sys, "argv", ["flower_ray.py", "2", "1", "1", str(weights), "evaluate"])
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n\n"))
    clients = {node: {"partition-id": node} for node in range(overhead.TINY.clients)}
    flower_ray.main(LoopbackGrid(flower_ray.client_app, clients), Context(1, 0, {}, RecordDict(), {}))
    messages = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert messages[0] == {"ready": True}
    assert messages[1]["seconds"] > 0
    sites = overhead.run_sites(overhead.TINY)
    overhead.check_same("Flower", torch.load(weights), overhead.train(sites, LocalEngine(sites), 2))
