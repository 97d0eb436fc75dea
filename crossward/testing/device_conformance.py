"""Conformance on a device: every method on the fake accelerator, however its run goes.

    python -m crossward.testing.device_conformance [METHOD …]

Whatever has been through the codec (a checkpoint, a reply on disk, a worker process) comes back on the CPU. So each run
is done live, strict, resumed, with every tree on disk, and by workers on two devices; with SGD and with Adam, both with
kept state. All of these end the same to the bit. With SGD they end as on the CPU but for rounding (of which Adam makes
whole steps). What a run goes on with is on the CPU.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from crossward.core.run import Progress
from crossward.core.store import TreeStore
from crossward.core.training import Training
from crossward.core.tree import Tree, decode, flatten, items
from crossward.engines.local import LocalEngine
from crossward.engines.pool import PoolEngine
from crossward.errors import ConfigError
from crossward.methods import METHODS, method_class
from crossward.runs.sites import RunSites
from crossward.testing import fake_accelerator
from crossward.testing.cases import TRAINING, Case, cases
from crossward.testing.fake_accelerator import DEVICES, device_name
from crossward.testing.short_runs import Records, assert_same, run_to_end, shared_pool

ADAM = Training(epochs=1, batch_size=4, lr=0.01, optimizer="adam", keep_state=True)
TRAININGS = {"sgd": TRAINING, "adam": ADAM}
ABSOLUTE, RELATIVE = 2e-4, 2e-3  # how far rounding may lead from the CPU in two rounds

Way = Callable[[Case, Training], Tree]


def on_devices(case: Case, training: Training, *names: str) -> RunSites:
    """The sites of a case, spread over these devices."""
    run_sites = case.run_sites()
    run_sites.training = training
    run_sites.devices = tuple(device_name(name) for name in names)
    return run_sites


def live(case: Case, training: Training) -> Tree:
    run_sites = on_devices(case, training, DEVICES[0])
    return run_to_end(run_sites, LocalEngine(run_sites))


def strict(case: Case, training: Training) -> Tree:
    run_sites = on_devices(case, training, DEVICES[0])
    return run_to_end(run_sites, LocalEngine(run_sites, strict=True))


def resumed(case: Case, training: Training) -> Tree:
    """A run that is cut off after its first round, and goes on from the checkpoint."""
    run_sites = on_devices(case, training, DEVICES[0])
    engine = LocalEngine(run_sites)
    records = Records(engine.memory)
    run_to_end(run_sites, engine, records)
    tree = decode(records.checkpoints[0])
    memory = TreeStore()
    memory.update({int(site): remembered for site, remembered in tree["memory"].items()})
    progress = Progress(tree["state"], 1, tree["best"]["round"], tree["best"].get("value"))
    again = on_devices(case, training, DEVICES[0])
    return run_to_end(again, LocalEngine(again, memory=memory), progress=progress)


def spilled(case: Case, training: Training) -> Tree:
    """Every reply and memory goes to disk at once."""
    run_sites = on_devices(case, training, DEVICES[0])
    with _no_room():
        return run_to_end(run_sites, LocalEngine(run_sites))


def pooled(case: Case, training: Training) -> Tree:
    """Two workers, each with a device of its own."""
    run_sites = on_devices(case, training, *DEVICES)
    run_sites.share_images()
    return run_to_end(run_sites, PoolEngine(run_sites, worker_pool=shared_pool(2)))


WAYS: tuple[Way, ...] = (strict, resumed, spilled, pooled)


@contextmanager
def _no_room() -> Iterator[None]:
    usual = TreeStore.__init__.__defaults__
    TreeStore.__init__.__defaults__ = (None, 0)
    try:
        yield
    finally:
        TreeStore.__init__.__defaults__ = usual


def problems(case: Case, ways: tuple[Way, ...] = WAYS) -> Iterator[str]:
    """A line for each run of the case that fails on a device, or ends otherwise than it should."""
    for name, training in TRAININGS.items():
        try:
            expected = live(case, training)
            _is_on_the_cpu(expected)
            if name == "sgd":
                _is_near(expected, _on_the_cpu(case, training))
        except Exception as error:
            yield f"{case}, {name}, live: {type(error).__name__}: {error}"
            continue
        for way in ways:
            try:
                assert_same(way(case, training), expected, way.__name__)
            except Exception as error:
                yield f"{case}, {name}, {way.__name__}: {type(error).__name__}: {error}"


def _on_the_cpu(case: Case, training: Training) -> Tree:
    run_sites = case.run_sites()
    run_sites.training = training
    return run_to_end(run_sites, LocalEngine(run_sites))


def _is_on_the_cpu(tree: Tree) -> None:
    elsewhere = [path for path, tensor in items(tree) if tensor.device.type != "cpu"]
    assert not elsewhere, f"left on the device: {elsewhere[:8]}"


def _is_near(tree: Tree, expected: Tree) -> None:
    tensors, others = flatten(tree)[0], flatten(expected)[0]
    assert tensors.keys() == others.keys()
    pairs = {path: (tensors[path].double(), others[path].double()) for path in tensors}
    far = [path for path, (a, b) in pairs.items() if not torch.allclose(a, b, RELATIVE, ABSOLUTE)]
    assert not far, f"not as on the CPU: {far[:8]}"


def main(names: list[str]) -> int:
    """Check these methods, or all, without plugins. Prints what is wrong; 0 if nothing is, 75 if it cannot be tried."""
    try:
        fake_accelerator.load()
    except ConfigError as error:
        sys.stdout.write(f"{error}\n")
        return 75
    torch.set_num_threads(1)
    wanted = {method_class(name) for name in names or METHODS}
    wrong = 0
    tried = [case for case in cases() if type(case.method) in wanted and not case.plugins]
    for case in tried:
        for line in problems(case):
            wrong += 1
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{len(tried)} cases on {', '.join(DEVICES)}: {wrong} problem(s)\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
