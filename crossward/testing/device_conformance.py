"""Conformance on a device: every method on the fake accelerator, or on real ones, however its run goes.

    python -m crossward.testing.device_conformance [METHOD …] [--device cuda:0 …]

Whatever has been through the codec (a checkpoint, a reply on disk, a worker process) comes back on the CPU. So each run
is done live, strict, resumed, with every tree on disk, and by two workers; with SGD and with Adam, both with kept
state; and in mixed precision, live and resumed. All of these end the same to the bit. With SGD they end as on the CPU
but for rounding (of which Adam makes whole steps). What a run goes on with is on the CPU. The process that leads
workers touches no device, but for methods that compute at the server.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch

from crossward.core.run import Progress
from crossward.core.store import TreeStore
from crossward.core.training import Training
from crossward.core.tree import Tree, decode, flatten, items
from crossward.engines.local import LocalEngine
from crossward.engines.pool import PoolEngine
from crossward.errors import ConfigError
from crossward.methods import METHODS, method_class
from crossward.runs.devices import chosen_devices
from crossward.runs.sites import RunSites
from crossward.testing import fake_accelerator
from crossward.testing.cases import TRAINING, Case, cases
from crossward.testing.fake_accelerator import device_name
from crossward.testing.short_runs import Records, assert_same, run_to_end, shared_pool

ADAM = Training(epochs=1, batch_size=4, lr=0.01, optimizer="adam", keep_state=True)
TRAININGS = {
    "sgd": TRAINING,
    "adam": ADAM,
    "bfloat16": replace(ADAM, amp="bfloat16"),
    "float16": replace(ADAM, amp="float16"),
}
COMPUTE_AT_SERVER = tuple(method_class(name) for name in ("creff", "fedbm", "feddf", "pfeddf"))
ABSOLUTE, RELATIVE = 2e-4, 2e-3  # how far rounding may lead from the CPU in two rounds

Devices = Sequence[str]
Way = Callable[[Case, Training, Devices], Tree]


def on_devices(case: Case, training: Training, devices: Devices) -> RunSites:
    """The sites of a case, spread over these devices."""
    run_sites = case.run_sites()
    run_sites.training = training
    run_sites.devices = tuple(device_name(name) for name in devices)
    run_sites.deterministic = True
    return run_sites


def live(case: Case, training: Training, devices: Devices) -> Tree:
    run_sites = on_devices(case, training, devices[:1])
    return run_to_end(run_sites, LocalEngine(run_sites))


def strict(case: Case, training: Training, devices: Devices) -> Tree:
    run_sites = on_devices(case, training, devices[:1])
    return run_to_end(run_sites, LocalEngine(run_sites, strict=True))


def resumed(case: Case, training: Training, devices: Devices) -> Tree:
    """A run that is cut off after its first round, and goes on from the checkpoint."""
    run_sites = on_devices(case, training, devices[:1])
    engine = LocalEngine(run_sites)
    records = Records(engine.memory)
    run_to_end(run_sites, engine, records)
    tree = decode(records.checkpoints[0])
    memory = TreeStore()
    memory.update({int(site): remembered for site, remembered in tree["memory"].items()})
    progress = Progress(tree["state"], 1, tree["best"]["round"], tree["best"].get("value"))
    again = on_devices(case, training, devices[:1])
    return run_to_end(again, LocalEngine(again, memory=memory), progress=progress)


def spilled(case: Case, training: Training, devices: Devices) -> Tree:
    """Every reply and memory goes to disk at once."""
    run_sites = on_devices(case, training, devices[:1])
    with _no_room():
        return run_to_end(run_sites, LocalEngine(run_sites))


def pooled(case: Case, training: Training, devices: Devices) -> Tree:
    """Two workers, each with a device of its own where there are two."""
    is_fake = devices[0] in fake_accelerator.DEVICES
    if is_fake:
        fake_accelerator.load().reset_counts()
    run_sites = on_devices(case, training, devices)
    run_sites.share_images()
    ended = run_to_end(run_sites, PoolEngine(run_sites, worker_pool=shared_pool(2)))
    if is_fake and not isinstance(case.method, COMPUTE_AT_SERVER):
        counts = fake_accelerator.load().counts()
        assert not counts.operations + counts.to_device, f"the process that leads the workers used a device: {counts}"
    return ended


WAYS: tuple[Way, ...] = (strict, resumed, spilled, pooled)
MIXED_PRECISION_WAYS: tuple[Way, ...] = (resumed,)


@contextmanager
def _no_room() -> Iterator[None]:
    usual = TreeStore.__init__.__defaults__
    TreeStore.__init__.__defaults__ = (None, 0)
    try:
        yield
    finally:
        TreeStore.__init__.__defaults__ = usual


def problems(case: Case, devices: Devices) -> Iterator[str]:
    """A line for each run of the case that fails on a device, or ends otherwise than it should."""
    for name, training in TRAININGS.items():
        if devices[0] in fake_accelerator.DEVICES:
            fake_accelerator.load().allow_float64(name == "float16")  # torch's loss scaler uses it but on mps
        try:
            expected = live(case, training, devices)
            _is_on_the_cpu(expected)
            if name == "sgd":
                _is_near(expected, _on_the_cpu(case, training))
        except Exception as error:
            yield f"{case}, {name}, live: {type(error).__name__}: {error}"
            continue
        for way in MIXED_PRECISION_WAYS if training.amp else WAYS:
            try:
                assert_same(way(case, training, devices), expected, way.__name__)
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


def check(names: Sequence[str], devices: Devices) -> int:
    """Print what is wrong with these methods, or with all, without plugins, case by case; how many things are."""
    torch.set_num_threads(1)
    wanted = {method_class(name) for name in names or METHODS}
    tried = [case for case in cases() if type(case.method) in wanted and not case.plugins]
    wrong = 0
    for number, case in enumerate(tried, 1):
        found = list(problems(case, devices))
        wrong += len(found)
        lines = [f"{case}: {'wrong' if found else 'right'} ({number} of {len(tried)})", *found]
        sys.stdout.write("\n".join(lines) + "\n")
        sys.stdout.flush()
    sys.stdout.write(f"{len(tried)} cases on {', '.join(devices)}: {wrong} problem(s)\n")
    return wrong


def main() -> int:
    """0 if nothing is wrong, 1 if something is, 75 if it cannot be tried."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("methods", nargs="*", metavar="METHOD")
    parser.add_argument("--device", action="append", help="a real device instead of the fake ones; may be repeated")
    chosen = parser.parse_args()
    try:
        if not chosen.device:
            fake_accelerator.load()
        devices = chosen_devices(chosen.device) if chosen.device else fake_accelerator.DEVICES
    except ConfigError as error:
        sys.stdout.write(f"{error}\n")
        return 75
    return 1 if check(chosen.methods, devices) else 0


if __name__ == "__main__":
    sys.exit(main())
