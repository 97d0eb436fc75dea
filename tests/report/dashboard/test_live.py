"""Runs as pages see them: state, curves by increments, hospitals, messages, restarts; and what is read for it."""

from __future__ import annotations

import asyncio
import json
import os
import time

import pytest
from drawn_runs import Drawn, draw_runs
from open_dashboard import draw_running, opened, write_state

from crossward.report.dashboard import watch as watch_module
from crossward.report.dashboard.catalogue import FEDERATION_STATE, Catalogue
from crossward.report.dashboard.round_log import RoundLog
from crossward.report.dashboard.watch import Watch


@pytest.fixture
def running(root):
    return draw_running(root / "new")


def with_looking(watch, stream, count, between):
    """The first documents of a stream, while the folder is looked at; `between` is called after each."""

    async def both():
        looking = asyncio.create_task(watch.keep_looking())
        found = []
        async for document in stream:
            found.append(document)
            between(len(found))
            if len(found) == count:
                await stream.aclose()
                break
        looking.cancel()
        return found

    return asyncio.run(asyncio.wait_for(both(), 30))


def test_the_list_has_runs_studies_progress_and_time_left(root, running):
    with opened(root) as dashboard:
        document = dashboard.client.get("/api/runs").json()
    by_name = {run["name"]: run for run in document["runs"]}
    assert len(by_name) == 3
    under_way = by_name["new/fedavg-s0"]
    assert (under_way["status"], under_way["rounds"], under_way["planned"]) == ("running", 3, 12)
    assert 9 * 1.5 - 1.6 <= under_way["left"] <= 9 * 1.5  # rounds of 1.5 s
    assert not under_way["silent"]
    assert len(under_way["curve"]) == 3
    finished = by_name["blood/local-s0"]
    assert finished["status"] == "finished"
    assert finished["best"] == pytest.approx(finished["best"], abs=100)
    assert [study["name"] for study in document["studies"]] == ["blood"]
    assert finished["study"] == document["studies"][0]["id"]
    assert under_way["study"] is None


def test_a_run_that_has_been_silent_for_long_is_said_to_be(root, running):
    long_ago = time.time() - 3600
    for file in running.folder.iterdir():
        os.utime(file, (long_ago, long_ago))
    with opened(root) as dashboard:
        run = dashboard.client.get(f"/api/run/{dashboard.id('new/fedavg-s0')}").json()["run"]
    assert run["silent"]
    assert 3500 < run["quiet"] < 3700


def test_hospitals_have_losses_failures_with_reasons_and_the_cohort(root, running):
    with opened(root) as dashboard:
        document = dashboard.client.get(f"/api/run/{dashboard.id('new/fedavg-s0')}").json()
    north, south = document["sites"]
    assert (north["site"], north["state"], north["asked"], north["failures"]) == ("north", "took part", 3, 0)
    assert (south["failures"], south["failed_in"], south["reason"]) == (1, 2, "timed out after 30 s")
    assert north["loss"] == pytest.approx(1 / 3)
    assert 0 <= north["score"] <= 100
    assert document["messages"] == [{"kind": "left out", "when": "round 2", "text": "south: timed out after 30 s"}]


def test_a_stream_sends_the_rounds_that_are_new(root, running, monkeypatch):
    monkeypatch.setattr(watch_module, "OFTEN", 0.05)
    watch = Watch(Catalogue(root))
    watch.look()
    [id] = [id for id, run in watch.catalogue.runs.items() if run.live]
    found = with_looking(watch, watch.run_stream(id), 3, lambda number: running.go_on(2))
    assert [document["rounds"] for document in found] == [3, 5, 7]
    assert [document["again"] for document in found] == [True, False, False]
    assert [sorted({row["round"] for row in document["curves"]["losses"]}) for document in found] == [
        [1, 2, 3],
        [4, 5],
        [6, 7],
    ]


def test_the_list_stream_sends_the_runs_that_changed(root, running, monkeypatch):
    monkeypatch.setattr(watch_module, "OFTEN", 0.05)
    watch = Watch(Catalogue(root))
    first, second = with_looking(watch, watch.list_stream(), 2, lambda number: running.go_on())
    assert len(first["runs"]) == 3
    assert "gone" not in first
    assert [run["name"] for run in second["runs"]] == ["new/fedavg-s0"]
    assert second["runs"][0]["rounds"] == 4
    assert second["gone"] == []


def test_runs_that_begin_end_and_go_are_seen(root, running):
    watch = Watch(Catalogue(root))
    watch.look()
    version = watch.version
    draw_runs(root / "later", Drawn(methods=("fedavg",), seeds=(0,), rounds=1))
    about = json.loads((running.folder / "run.json").read_text())
    (running.folder / "run.json").write_text(json.dumps(about | {"status": "failed", "error": "no space left"}))
    (root / "blood" / "local-s0").rename(root.parent / "away")
    assert watch.look(whole=True)
    document = watch.list_document(version)
    states = {run["name"]: run["status"] for run in document["runs"]}
    assert states == {"later/fedavg-s0": "finished", "new/fedavg-s0": "failed"}
    assert len(document["gone"]) == 1
    assert not watch.look(whole=True)


def test_a_run_that_is_resumed_begins_its_curves_anew(root, running):
    log = RoundLog(running.folder)
    assert log.look()
    rewritten = running.folder / "new"
    rewritten.write_text("".join(running.lines[:2]))
    rewritten.rename(running.folder / "metrics.jsonl")  # as a resumed run drops what came after its checkpoint
    assert log.look()
    assert (log.generation, len(log.rows)) == (1, 2)
    watch = Watch(Catalogue(root))
    watch.look()
    [id] = [id for id, run in watch.catalogue.runs.items() if run.live]
    assert watch.run_document(id, seen=(5, 9))["again"]


def test_a_line_that_is_being_written_waits_for_its_end(running):
    log = RoundLog(running.folder)
    log.look()
    line = running.lines[3]
    with (running.folder / "metrics.jsonl").open("a") as file:
        file.write(line[:100])
        file.flush()
        assert not log.look()
        file.write(line[100:])
        file.flush()
        assert log.look()
    assert [row["round"] for row in log.rows] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "line",
    [
        "{}",
        "7",
        '{"round": "x"}',
        '{"round": 1, "loss": 3}',
        '{"round": 1, "metrics": [1]}',
        "\x00",
        "{" * 10_000,
        '{"round": 1, "metrics": {"test": {"local": {"sites": {"north": 3}}}}}',
        '{"round": 1e400}',
    ],
)
def test_a_damaged_line_is_reported_and_the_page_goes_on(root, running, line):
    with (running.folder / "metrics.jsonl").open("a") as file:
        file.write(line + "\n" + running.lines[3])
    with opened(root) as dashboard:
        document = dashboard.client.get(f"/api/run/{dashboard.id('new/fedavg-s0')}").json()
    assert document["rounds"] == 4
    assert "not as crossward writes it" in document["messages"][0]["text"]


def test_numbers_that_are_none_are_left_out(running):
    line = json.loads(running.lines[3]) | {"seconds": float("nan"), "loss": {"north": float("inf"), "south": 1e400}}
    running.lines[3] = json.dumps(line) + "\n"
    running.go_on()
    log = RoundLog(running.folder)
    log.look()
    assert log.rows[-1]["losses"] == {}
    assert log.rows[-1]["seconds"] is None
    json.dumps(log.rows, allow_nan=False)


def test_nothing_is_read_while_nobody_looks(root, running, monkeypatch):
    watch = Watch(Catalogue(root))
    looks = []
    monkeypatch.setattr(watch, "look", lambda **_: looks.append(1))

    async def idle():
        looking = asyncio.create_task(watch.keep_looking())
        await asyncio.sleep(0.2)
        looking.cancel()

    asyncio.run(idle())
    assert looks == []


def test_a_run_across_hospitals_that_waits_shows_its_terms_and_its_sites(root):
    place = root / "across"
    place.mkdir()
    (place / "federation.json").write_text(
        json.dumps({"federation": "alps", "sites": ["north", "south"], "wait": 600.0})
    )
    (place / "events.jsonl").write_text(
        json.dumps({"time": "2026-01-02T03:04:05Z", "event": "came", "site": "north"})
        + "\n"
        + json.dumps({"event": "log", "site": "north", "tag": "0" * 64})
        + "\n"
    )
    with opened(root) as dashboard:
        id = dashboard.id("across")
        waiting = dashboard.client.get(f"/api/run/{id}").json()
        write_state(place)
        known = dashboard.client.get(f"/api/run/{id}").json()
        page = dashboard.client.get(f"/run/{id}/federation").text
    assert waiting["run"]["status"] == "waiting"
    assert waiting["federation"]["sites"] == [{"site": "north"}, {"site": "south"}]
    assert waiting["federation"]["terms"] == {"federation": "alps", "wait": 600.0}
    assert waiting["federation"]["state"] is None
    assert waiting["messages"][1]["kind"] == "came"
    assert waiting["messages"][1]["text"] == "site: north"
    assert known["federation"]["state"]["round"] == 6
    assert known["federation"]["state"]["waiting"] == ["south"]
    assert known["federation"]["state"]["bytes"] == 1_500_000
    north, south = known["federation"]["sites"]
    assert (north["activity"], north["connected"], north["seconds"]) == ("done", True, 12.0)
    assert (south["activity"], south["connected"], south["why"]) == ("lost", False, "not connected")
    assert 11 < south["for"] < 60
    assert south["left"] < 19
    assert f'data-run="{id}"' in page


def test_two_runs_are_compared_setting_by_setting(dashboard):
    one, other = dashboard.id("blood/local-s0"), dashboard.id("blood/fedrep-s0")
    text = dashboard.client.get(f"/differences?run={one}&run={other}").text
    assert "method.name" in text
    assert "fedrep" in text
    assert "configured alike" in dashboard.client.get(f"/differences?run={one}&run={one}").text
    assert dashboard.client.get(f"/differences?run={one}").status_code == 404


def test_an_empty_folder_has_no_runs(tmp_path):
    with opened(tmp_path) as dashboard:
        assert dashboard.client.get("/api/runs").json()["runs"] == []


def test_numbers_beyond_all_bounds_break_no_page(root, running):
    line = json.loads(running.lines[3]) | {"seconds": 1e308, "loss": {"north": 1e308, "south": 1.7e308}}
    line["metrics"]["test"]["local"]["mean"]["f1"] = 1.7e308
    running.lines[3:5] = [json.dumps(line) + "\n", json.dumps(line | {"round": 5}) + "\n"]
    running.go_on(2)
    summary = root / "blood" / "local-s0" / "summary.json"
    document = json.loads(summary.read_text())
    document["best"]["metrics"]["val"]["local"]["mean"]["f1"] = float("nan")
    summary.write_text(json.dumps(document))
    with opened(root) as dashboard:
        [known] = [run for run in dashboard.client.get("/api/runs").json()["runs"] if run["name"] == "blood/local-s0"]
        found = dashboard.client.get(f"/api/run/{dashboard.id('new/fedavg-s0')}").json()
    assert known["best"] is None
    assert found["rounds"] == 5
    assert found["run"]["left"] is None


@pytest.mark.parametrize("key", ["sites", "config", "method", "task", "warnings", "images", "created", "status"])
@pytest.mark.parametrize("value", [7, "x", [1, {"a": 2}], {"a": None}])
def test_a_run_json_of_other_shapes_breaks_no_page(root, running, key, value):
    file = running.folder / "run.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {key: value}))
    with opened(root) as dashboard:
        id, other = dashboard.id("new/fedavg-s0"), dashboard.id("blood/local-s0")
        assert dashboard.client.get(f"/run/{id}").status_code == 200
        assert dashboard.client.get(f"/api/run/{id}").status_code == 200
        assert dashboard.client.get(f"/differences?run={id}&run={other}").status_code in (200, 409)


@pytest.mark.parametrize("content", ["7", "{", '{"sites": 7}', '{"sites": {"a": 1}}', '{"sites": [1, null, "<b>"]}'])
def test_federation_files_of_other_shapes_break_no_page(root, running, content):
    for name in ("federation.json", "federation-state.json"):
        (running.folder / name).write_text(content)
    with opened(root) as dashboard:
        document = dashboard.client.get(f"/api/run/{dashboard.id('new/fedavg-s0')}").json()
    assert document["rounds"] == 3
    assert document["federation"]["problem"]
    assert document["federation"]["state"] is None


def test_a_change_of_the_coordinators_state_is_news(root, running):
    watch = Watch(Catalogue(root))
    watch.look()
    assert not watch.look()
    (running.folder / FEDERATION_STATE).write_text(json.dumps({"sites": {}}))
    assert watch.look()
