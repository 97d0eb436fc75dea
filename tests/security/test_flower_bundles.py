"""Attacks by a bundle: whoever could hand one to the coordinator, or to a site, would have its code run there, or its
files unpacked. No bundle is unpacked anywhere, and a run that nobody started is not resumed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest

from crossward.config.reading import to_toml
from crossward.errors import ConfigError
from crossward.hospitals.flower import app_bundle, federation_runs, own_apps
from crossward.hospitals.flower.coordinator_up import FLOWER_RUN_FILE, resume_runs, unfinished_runs
from crossward.hospitals.flower.federation_runs import RunOptions, start_run
from crossward.hospitals.flower.processes import FlowerWorkspace
from crossward.hospitals.flower.run_register import enter_run, is_registered
from crossward.hospitals.flower.server_app import coordinate_own_run
from crossward.hospitals.kit import create_federation
from crossward.testing.loopback_federation import create_grid

EVIL_CODE = "from pathlib import Path\nPath({marker!r}).write_text('ran')\n\ndef app(**options):\n    pass\n"
RUN_SERVERAPP = """
import importlib, sys
from pathlib import Path
from types import SimpleNamespace as Box
from flwr.cli.build import build_fab_from_files
from flwr.common.serde import context_to_proto, fab_to_proto, run_to_proto
from flwr.proto.runtime_pb2 import PullTaskInputResponse
from flwr.app import Context, RecordDict
from flwr.supercore.fab import Fab
from flwr.supercore.run import Run
from crossward.hospitals.flower import app_processes
import hashlib

files = {{name: text.encode() for name, text in {files!r}.items()}}
content = build_fab_from_files(files)[0]
bundle = Fab(hashlib.sha256(content).hexdigest(), content, {{}})
context = Context(1, 1, {{}}, RecordDict(), {{}})
answer = PullTaskInputResponse(
    context=context_to_proto(context), run=run_to_proto(Run.create_empty(1)), fab=fab_to_proto(bundle), task_id=1
)
client = Box(
    PullTaskInput=lambda request: answer,
    PushTaskOutput=lambda request: print("details:", request.details),
    SendTaskHeartbeat=lambda request: Box(success=True),
    PushLogs=lambda request: None,
)
grid = Box(_runtime_client=client, _retry_invoker=Box(max_tries=1), set_run=lambda run: None, close=lambda: None)
module = importlib.import_module("flwr.superlink.runtime.run_serverapp")
module.HttpGrid = lambda **options: grid
app_processes.pull_waits = list  # flwr is imported already, for the bundle
sys.argv = ["flwr-serverapp", "--token", "x", "--insecure"]
app_processes.run_server_app()
"""


@pytest.fixture
def run_bundle(tmp_path):
    """Have a coordinator's process run a bundle; what it prints, and whether code of the bundle ran."""

    def run(files):
        marker = tmp_path / "marker"
        program = RUN_SERVERAPP.format(files=files).replace("MARKER", str(marker))
        environment = FlowerWorkspace(tmp_path).environment()
        process = subprocess.run(
            [sys.executable, "-c", program], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120
        )
        return process.stdout + process.stderr, marker.exists()

    return run


def test_the_code_of_an_uploaded_bundle_never_runs(run_bundle, tmp_path):
    evil = EVIL_CODE.format(marker="MARKER")
    output, ran = run_bundle(app_bundle.FILES | {"crossward_app/server.py": evil, "crossward_app/__init__.py": evil})
    assert not ran
    assert "a bundle that is not this Crossward's own" in output
    assert not (tmp_path / "flower" / "apps").exists()


def test_our_own_bundle_is_not_unpacked_either(run_bundle, tmp_path):
    output, _ = run_bundle(dict(app_bundle.FILES))
    assert "'folder'" in output  # our ServerApp ran, and missed the run's folder in its settings
    assert not (tmp_path / "flower" / "apps").exists()


def test_a_bundle_whose_version_is_a_path_plants_nothing(run_bundle, tmp_path):
    project = app_bundle.PROJECT.replace('version = "', 'version = "1/../../../runs/z')
    _, ran = run_bundle(app_bundle.FILES | {"pyproject.toml": project})
    assert not ran
    assert not list(tmp_path.rglob("runs"))


def test_what_flower_makes_of_our_project_is_the_bundle_that_is_accepted(tmp_path):
    from flwr.cli.build import build_fab_from_disk

    bundle = build_fab_from_disk(app_bundle.write_bundle(tmp_path / "app"))
    own_apps.require_own_bundle(bundle)
    with pytest.raises(ConfigError, match="not this Crossward's own"):
        own_apps.require_own_bundle(bundle + b" ")
    with pytest.raises(ConfigError, match="not this Crossward's own"):
        own_apps.require_own_bundle(tmp_path / "app")  # a folder, which Flower also takes


# runs that nobody started ---------------------------------------------------------------------------------------------
@pytest.fixture
def coordinator(tmp_path):
    return create_federation(
        tmp_path / "kit", name="blood", sites=["south", "north"], host="fl.example.org"
    ).coordinator  # fmt: skip


@pytest.fixture
def start(coordinator, tmp_path, monkeypatch):
    """Start a run with a network, as the operator does; its folder."""
    submit = lambda workspace, folder: (folder / FLOWER_RUN_FILE).write_text('{"run": "1"}')
    monkeypatch.setattr(federation_runs, "submit_run", submit)
    monkeypatch.setattr(federation_runs, "is_up", lambda workspace: True)

    def start_with(net, name="ours"):
        file = tmp_path / "run.toml"
        file.write_text(to_toml({"data": {"source": "phantom"}, "net": {"name": net}, "method": {"name": "fedavg"}}))
        return start_run(file, coordinator, [], RunOptions(name=name, wait=0.0))

    return start_with


def test_a_run_that_was_planted_is_not_resumed(coordinator, start, monkeypatch):
    run = start("cnn")
    shutil.copytree(run, run.with_name("planted"))
    resumed, lines = [], []
    monkeypatch.setattr(
        "crossward.hospitals.flower.coordinator_up.submit_run", lambda workspace, run: resumed.append(run.name)
    )
    resume_runs(unfinished_runs(coordinator), FlowerWorkspace(coordinator), lines.append)
    assert resumed == ["ours"]
    assert lines[1].startswith("planted was not started by this coordinator")


def test_terms_that_were_changed_are_noticed(coordinator, start):
    run, home = start("cnn"), coordinator / "flower"
    assert is_registered(home, run)
    terms = json.loads((run / "federation.json").read_text())
    (run / "federation.json").write_text(json.dumps(terms | {"own_data": True}))
    assert not is_registered(home, run)


def test_a_configuration_that_was_changed_is_noticed(coordinator, start):
    """Of a run that was interrupted: it would be resumed with another network, or other images of the coordinator."""
    run, home = start("cnn"), coordinator / "flower"
    file = run / "config.toml"
    file.write_text(file.read_text() + "\n# changed\n")
    assert not is_registered(home, run)
    file.unlink()
    assert not is_registered(home, run)


def test_an_entry_that_was_made_without_the_key_is_noticed(coordinator, start):
    run, home = start("cnn"), coordinator / "flower"
    assert (home / "runs.key").stat().st_mode & 0o777 == 0o600
    planted = shutil.copytree(run, run.with_name("planted"))
    shutil.copy(home / "runs" / "ours", home / "runs" / "planted")
    assert not is_registered(home, planted)
    (home / "runs.key").unlink()
    assert not is_registered(home, run)


def test_code_named_as_a_network_is_refused_unless_the_operator_allowed_it(coordinator, start, monkeypatch):
    monkeypatch.setenv("FLWR_HOME", str(coordinator / "flower"))
    with pytest.raises(ConfigError, match=r"networks from code of a person's own: torch\.hub:load") as error:
        start("torch.hub:load")
    assert "federation.toml" in error.value.hint
    run = start("cnn")
    file = run / "config.toml"
    file.write_text(file.read_text().replace('"cnn"', '"torch.hub:load"'))
    enter_run(coordinator / "flower", run)  # by an attacker who has its key
    with pytest.raises(ConfigError, match=r"torch\.hub:load"):
        coordinate_own_run(run, create_grid([]))
