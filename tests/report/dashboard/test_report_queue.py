"""Reports on demand: made in a process of their own, kept until a file changes, refused in words."""

from __future__ import annotations

import json
import time
from concurrent.futures import Future

import pytest
from open_dashboard import opened

from crossward.report.dashboard import report_queue
from crossward.report.dashboard.contained import check_folder
from crossward.report.dashboard.report_queue import MadeReport, ReportQueue


@pytest.fixture
def queue(monkeypatch):
    """A queue whose reports a test makes."""
    made = ReportQueue()
    futures: list[Future] = []

    def start(place):
        futures.append(Future())
        return futures[-1]

    monkeypatch.setattr(made, "_start", start)
    return made, futures


def test_the_report_of_a_run_and_of_a_study_come_when_they_are_made(root):
    before = check_folder(root)
    with opened(root) as dashboard:
        study = dashboard.client.get("/api/runs").json()["studies"][0]["id"]
        for path in (f"/run/{dashboard.id('blood/fedrep-s0')}/report", f"/study/{study}/report"):
            response = dashboard.client.get(path)
            assert response.status_code == 202
            assert 'http-equiv="refresh"' in response.text
            end = time.monotonic() + 120
            while response.status_code == 202:
                assert time.monotonic() < end
                time.sleep(0.3)
                response = dashboard.client.get(path)
            assert response.status_code == 200
            assert 'id="verdict"' in response.text
            assert "connect-src &#39;none&#39;" in response.text
            assert "frame-ancestors 'none'" in response.headers["content-security-policy"]
            assert dashboard.client.get(path).text == response.text
    assert check_folder(root) == before


def test_a_report_is_kept_until_a_file_changes(queue, root):
    reports, futures = queue
    place = root / "blood" / "local-s0"
    assert reports.report([place]) is None
    assert reports.report([place]) is None
    assert len(futures) == 1
    futures[0].set_result(MadeReport("one"))
    assert reports.report([place]) == reports.report([place]) == MadeReport("one")
    (place / "summary.json").write_text(json.dumps({}))
    assert reports.report([place]) is None
    assert len(futures) == 2


def test_the_report_of_a_run_that_went_on_meanwhile_is_shown_once(queue, root):
    reports, futures = queue
    place = root / "blood" / "local-s0"
    reports.report([place])
    (place / "metrics.jsonl").write_text("")
    futures[0].set_result(MadeReport("as of then"))
    assert reports.report([place]) == MadeReport("as of then")
    assert reports.report([place]) is None


def test_a_process_that_dies_and_a_defect_are_said(queue, root):
    reports, futures = queue
    for number, (error, words) in enumerate(
        ((report_queue.BrokenExecutor(), "out of memory"), (KeyError("x"), "KeyError"))
    ):
        place = [root / "blood" / "local-s0", root / "blood" / "fedrep-s0"][: number + 1]
        reports.report(place)
        futures[number].set_exception(error)
        assert words in reports.report(place).problem


def test_reports_do_not_pile_up(queue, root):
    reports, futures = queue
    for number in range(report_queue.WAITING):
        reports.report([root / "blood" / "local-s0"] * (number + 1))
    assert "try again later" in reports.report([root / "blood" / "fedrep-s0"]).problem
    assert len(futures) == report_queue.WAITING
