"""The changes to Flower's processes, each in a process of its own: they must be made before flwr is imported."""

from __future__ import annotations

import subprocess
import sys

SUPERLINK = """
from crossward.hospitals.flower.monkeypatches import REQUEST_BUFFER, patch_superlink
patch_superlink()
from flwr.superlink.config_loader import get_objectstore_linkstate_factories
from uvicorn.protocols.http import h11_impl
objects, links = get_objectstore_linkstate_factories("superlink.db", None)
print(type(objects.store()).__name__, links.database, h11_impl.HIGH_WATER_LIMIT == REQUEST_BUFFER)
"""
WAITS = """
import inspect
from crossward.hospitals.flower.monkeypatches import shorten_pull_waits
shorten_pull_waits()
from flwr.supercore.inflatable.inflatable_utils import pull_objects
options = {name: each.default for name, each in inspect.signature(pull_objects).parameters.items()}
longest = options["max_tries_per_object"] * options["backoff_cap"]
as_long = longest >= options["max_time"] - options["backoff_cap"]
print(options["initial_backoff"], options["backoff_cap"], as_long)
"""
TOO_LATE = """
import flwr.supercore.inflatable.inflatable_utils
from crossward.hospitals.flower.monkeypatches import shorten_pull_waits
shorten_pull_waits()
"""


def run_program(program, cwd):
    """What a program prints, or the last line of its error."""
    process = subprocess.run([sys.executable, "-c", program], cwd=cwd, capture_output=True, text=True, timeout=120)
    return process.stdout.strip() or process.stderr.strip().splitlines()[-1]


def test_a_superlink_keeps_messages_in_memory_and_nodes_on_disk(tmp_path):
    assert run_program(SUPERLINK, tmp_path) == "InMemoryObjectStore superlink.db True"


def test_contents_on_their_way_are_asked_for_sooner_and_for_as_long(tmp_path):
    assert run_program(WAITS, tmp_path) == "0.05 0.4 True"


def test_a_patch_that_comes_too_late_fails(tmp_path):
    assert run_program(TOO_LATE, tmp_path) == "AssertionError: too late: flwr has its waits already"
