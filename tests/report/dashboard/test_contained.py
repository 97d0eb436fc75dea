"""Nothing outside the folder is read: no path in an address, no link, no pipe, no file of any size."""

from __future__ import annotations

import json
import os
import shutil

import pytest
from drawn_runs import Drawn, draw_runs
from open_dashboard import opened

from crossward.errors import StorageError
from crossward.report.dashboard import contained
from crossward.report.dashboard.contained import check_folder, read_bytes, read_document

SECRET = "a secret outside the folder"
HOSTILE = (
    "<script>alert(1)</script>", "\"onmouseover=\"x", "'><img src=x>", "\u202egnp.exe", "a\nb\x1b[31m",
    "x" * 180, "%2e%2e%2f", "&lt;b&gt;",
)  # fmt: skip


@pytest.mark.parametrize(
    "address",
    [
        "/run/../../secret", "/run/..%2f..%2fsecret", "/run/%2e%2e/secret", "/run/%252e%252e%252fsecret",
        "/run//etc/passwd",
        "/assets/..%2f..%2fapp.py", "/assets/../app.py", "/assets/%2e%2e/app.py", "/assets/style.css%00", "/run/blood",
        "/run/0123456789abcdeg", "/run/0123456789abcdef0", "/api/run/..", "/study/..%2f/report",
        "/report?run=../../secret",
        "/differences?run=..&run=..", "/report", "/report?run=" + "&run=0".join("0" * 150),
    ],
)  # fmt: skip
def test_addresses_that_name_files_find_nothing(dashboard, root, address):
    (root.parent / "secret").write_text(SECRET)
    response = dashboard.client.get(address)
    assert response.status_code in (404, 422)
    assert SECRET not in response.text
    assert "import" not in response.text


def test_a_run_behind_a_link_is_not_shown_but_named(root, tmp_path):
    draw_runs(tmp_path / "elsewhere", Drawn(methods=("fedavg",), seeds=(0,), rounds=1))
    (root / "link").symlink_to(tmp_path / "elsewhere")
    with opened(root) as dashboard:
        document = dashboard.client.get("/api/runs").json()
    assert {run["name"] for run in document["runs"]} == {"blood/local-s0", "blood/fedrep-s0"}
    assert document["notes"] == ["link is a link: the dashboard follows none"]


@pytest.mark.parametrize("name", ["run.json", "summary.json", "metrics.jsonl", "events.jsonl"])
def test_a_file_that_is_a_link_is_not_read(root, tmp_path, name):
    place = root / "blood" / "local-s0"
    secret = tmp_path / "secret.json"
    secret.write_text(json.dumps({"error": SECRET, "status": SECRET, "event": SECRET}) + "\n")
    (place / name).unlink(missing_ok=True)
    (place / name).symlink_to(secret)
    with opened(root) as dashboard:
        id = dashboard.id("blood/local-s0")
        answers = [
            dashboard.client.get(path).text
            for path in ("/api/runs", f"/api/run/{id}", f"/run/{id}", f"/run/{id}/report")
        ]
    assert SECRET not in "".join(answers)
    assert f"{name} is a link" in answers[0]
    assert f"{name} is a link" in answers[3]


def test_a_link_deep_in_a_run_keeps_it_from_being_reported_on(root, tmp_path):
    (root / "blood" / "local-s0" / "predictions" / "more.safetensors").symlink_to(tmp_path)
    with opened(root) as dashboard:
        response = dashboard.client.get(f"/run/{dashboard.id('blood/local-s0')}/report")
    assert response.status_code == 409
    assert "predictions/more.safetensors is a link" in response.text


def test_a_run_that_is_replaced_by_a_link_while_the_dashboard_runs_is_gone(root, tmp_path):
    with opened(root) as dashboard:
        id = dashboard.id("blood/local-s0")
        (root / "blood" / "local-s0").rename(tmp_path / "moved")
        (root / "blood" / "local-s0").symlink_to(tmp_path / "moved")
        dashboard.watch.look(whole=True)
        assert dashboard.client.get(f"/run/{id}").status_code == 404


def test_a_pipe_does_not_block(tmp_path):
    os.mkfifo(tmp_path / "run.json")
    with pytest.raises(StorageError, match="not a file"):
        read_bytes(tmp_path / "run.json")
    with pytest.raises(StorageError, match="not a file"):
        check_folder(tmp_path)


def test_a_huge_file_is_not_read(root, monkeypatch):
    monkeypatch.setattr(contained, "MAX_DOCUMENT", 1000)
    (root / "blood" / "local-s0" / "run.json").write_bytes(b" " * 5000)
    with opened(root) as dashboard:
        [run] = [run for run in dashboard.client.get("/api/runs").json()["runs"] if run["name"] == "blood/local-s0"]
    assert run["status"] == "broken"
    assert "the dashboard reads up to" in run["reason"]


def test_a_deep_document_is_damaged(tmp_path):
    (tmp_path / "run.json").write_text("[" * 100_000)
    with pytest.raises(StorageError, match="damaged"):
        read_document(tmp_path / "run.json")


@pytest.mark.parametrize(
    "content", ["", "[]", "null", "{", '{"format": 2}', '{"format": 1}', '{"format": 1, "config": 7}']
)
def test_a_damaged_run_is_listed_with_the_reason(root, content):
    (root / "blood" / "local-s0" / "run.json").write_text(content)
    with opened(root) as dashboard:
        id = dashboard.id("blood/local-s0")
        run = dashboard.client.get(f"/api/run/{id}").json()["run"]
        assert dashboard.client.get(f"/run/{id}").status_code == 200
    assert run["status"] == "broken"
    assert run["reason"]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_text(root, name):
    place = root / name.replace("/", "_")
    shutil.copytree(root / "blood" / "local-s0", place)
    about = json.loads((place / "run.json").read_text())
    about["method"]["name"] = about["sites"][0] = about["error"] = about["config"]["data"]["source"] = name
    about["warnings"] = [name]
    (place / "run.json").write_text(json.dumps(about))
    with opened(root) as dashboard:
        [run] = [run for run in dashboard.client.get("/api/runs").json()["runs"] if "blood/" not in run["name"]]
        page = dashboard.client.get(f"/run/{run['id']}").text
        other = dashboard.id("blood/local-s0")
        differences = dashboard.client.get(f"/differences?run={run['id']}&run={other}").text
    for text in (page, differences):
        assert "<script>alert" not in text
        assert "<img" not in text
        assert 'onmouseover="x' not in text
    assert all(character not in run["name"] for character in "\n\x1b\u202e")


def test_nothing_in_the_folder_is_changed(root):
    before = check_folder(root)
    with opened(root) as dashboard:
        id = dashboard.id("blood/local-s0")
        for path in ("/", f"/run/{id}", f"/api/run/{id}"):
            assert dashboard.client.get(path).status_code == 200
    assert check_folder(root) == before
