"""What is changed in Flower's processes, in processes of their own: it must be done before flwr is imported."""

from __future__ import annotations

import subprocess
import sys

SUPERLINK = """
from crossward.hospitals.flower.monkeypatches import BUFFER, hasten_superlink
hasten_superlink()
from flwr.superlink.config_loader import get_objectstore_linkstate_factories
from uvicorn.protocols.http import h11_impl
objects, links = get_objectstore_linkstate_factories("superlink.db", None)
print(type(objects.store()).__name__, links.database, h11_impl.HIGH_WATER_LIMIT == BUFFER)
"""
WAITS = """
import inspect
from crossward.hospitals.flower.monkeypatches import hasten
hasten()
from flwr.supercore.inflatable.inflatable_utils import pull_objects
given = inspect.signature(pull_objects).parameters
first, most, tries = (given[n].default for n in ("initial_backoff", "backoff_cap", "max_tries_per_object"))
print(first, most, tries * most >= given["max_time"].default - most)
"""
TOO_LATE = """
import flwr.supercore.inflatable.inflatable_utils
from crossward.hospitals.flower.monkeypatches import hasten
hasten()
"""


def said(program, cwd):
    done = subprocess.run([sys.executable, "-c", program], cwd=cwd, capture_output=True, text=True, timeout=120)
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


def test_a_superlink_keeps_messages_in_memory_and_nodes_on_disk(tmp_path):
    assert said(SUPERLINK, tmp_path) == "InMemoryObjectStore superlink.db True"


def test_contents_on_their_way_are_asked_for_sooner_and_for_as_long(tmp_path):
    assert said(WAITS, tmp_path) == "0.05 0.4 True"


def test_whoever_comes_too_late_is_told(tmp_path):
    assert said(TOO_LATE, tmp_path) == "AssertionError: too late: flwr has its waits already"
