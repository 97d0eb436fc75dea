"""The changes to Flower's processes, against the version that is installed. Each list is applied in a process of its
own, as Flower's processes do it: some must be made before flwr is imported."""

from __future__ import annotations

import subprocess
import sys

import pytest

from crossward.hospitals.flower import monkeypatches
from crossward.hospitals.flower.fleet_guard import GUARDED_HANDLERS

APPLY = """
from crossward.hospitals.flower import monkeypatches as m
from crossward.hospitals.flower.fleet_guard import FleetGuard
check = m.apply_patches({lists})
{imports}
check()
print("in force")
"""
PROCESSES = {  # lists of patches, and what the process imports
    "superlink": (
        "m.pull_waits, m.request_buffer, lambda: m.superlink(FleetGuard())",
        "from flwr.superlink.main import create_app",
    ),
    "server app": ("m.pull_waits, m.clients, m.server_app", "from flwr.superlink.cli import flwr_serverapp"),
    "supernode": (
        "m.pull_waits, m.clients, m.supernode",
        "from flwr.supernode.cli import flower_supernode",
    ),
    "executor": ("m.clients, m.executor", "from flwr.supercore.cli import flower_superexec"),
    "flwr": ("m.clients", "from flwr.cli.app import app"),
}
STORE = """
from crossward.hospitals.flower import monkeypatches as m
from crossward.hospitals.flower.fleet_guard import FleetGuard
m.apply_patches(m.pull_waits, m.request_buffer, lambda: m.superlink(FleetGuard()))
from flwr.superlink.config_loader import get_objectstore_linkstate_factories
objects, links = get_objectstore_linkstate_factories("superlink.db", None)
print(type(objects.store()).__name__, links.database)
"""
TOO_LATE = """
import flwr.supercore.inflatable.inflatable_utils
from crossward.hospitals.flower.monkeypatches import apply_patches, pull_waits
apply_patches(pull_waits)
"""
TOO_LATE_FOR_DEFAULTS = """
from crossward.hospitals.flower import monkeypatches as m
patches = m.pull_waits()
import flwr.supercore.inflatable.inflatable_utils
m.apply_patches(lambda: patches)()
"""


def run_program(program, cwd):
    """What a program prints, or the last line of its error."""
    process = subprocess.run([sys.executable, "-c", program], cwd=cwd, capture_output=True, text=True, timeout=120)
    return process.stdout.strip() or process.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize("process", PROCESSES)
def test_all_patches_of_a_process_are_in_force(process, tmp_path):
    lists, imports = PROCESSES[process]
    assert run_program(APPLY.format(lists=lists, imports=imports), tmp_path) == "in force"


def test_a_superlink_keeps_messages_in_memory_and_nodes_on_disk(tmp_path):
    assert run_program(STORE, tmp_path) == "InMemoryObjectStore superlink.db"


def test_a_patch_that_comes_too_late_fails(tmp_path):
    assert run_program(TOO_LATE, tmp_path) == "AssertionError: too late: flwr has its waits already"
    assert "does not have Crossward's value" in run_program(TOO_LATE_FOR_DEFAULTS, tmp_path)


def test_a_function_where_a_module_is_meant_is_noticed():
    patch = monkeypatches.Patch("flwr.superlink.runtime", "run_serverapp.run_", "as it was once patched", None)
    with pytest.raises(AssertionError, match=r"run_serverapp in flwr\.superlink\.runtime is not a class"):
        patch.apply()


def test_a_name_that_flower_does_not_have_is_noticed():
    patch = monkeypatches.Patch("flwr.supercore.constant", "PULL_SOONER", "a name of another version", 1)
    with pytest.raises(AssertionError, match="another version of Flower"):
        patch.apply()


def test_a_patch_that_was_undone_is_noticed(monkeypatch):
    import flwr.supercore.constant

    patch = monkeypatches.Patch("flwr.supercore.constant", "PULL_MAX_TIME", "for this test", 1)
    monkeypatch.setattr(flwr.supercore.constant, "PULL_MAX_TIME", flwr.supercore.constant.PULL_MAX_TIME)
    patch.apply()
    patch.assert_in_force()
    flwr.supercore.constant.PULL_MAX_TIME = 2
    with pytest.raises(AssertionError, match="not in force"):
        patch.assert_in_force()


def test_every_patch_has_a_reason_and_their_number_is_known(monkeypatch):
    monkeypatch.delitem(sys.modules, monkeypatches.PULL_MODULE, raising=False)
    lists = [monkeypatches.pull_waits(), monkeypatches.request_buffer(), monkeypatches.clients()]
    lists += [monkeypatches.superlink(monkeypatches.FleetGuard()), monkeypatches.server_app()]
    lists += [monkeypatches.supernode(), monkeypatches.executor()]
    patches = [patch for each in lists for patch in each]
    assert all(patch.reason for patch in patches)
    assert len(patches) == 3 + 1 + 1 + (5 + len(GUARDED_HANDLERS)) + 4 + 4 + 1
