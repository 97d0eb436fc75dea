"""The lines that a site writes for its own people: one for each run and each step. What the coordinator sent forges
none."""

from __future__ import annotations

import pytest

from crossward.hospitals.messages import SiteMessage
from crossward.hospitals.site_activity import size_words, with_activity


@pytest.fixture
def lines(tmp_path):
    """lines(request, reply) are the lines about one message, without the time."""
    file = tmp_path / "activity.log"

    def answer(header, reply=None, payload=b""):
        times = iter([10.0, 22.5])
        given = SiteMessage(reply or {}, payload)
        answering = with_activity(lambda request: given, file, lambda: next(times))
        assert answering(SiteMessage(header)) is given
        return [line.partition(" ")[2] for line in file.read_text().splitlines()] if file.exists() else []

    return answer


def test_a_run_that_is_opened(lines):
    opening = {"do": "open", "run": "a1", "method": "fedavg", "sites": ["north", "south"]}
    assert lines(opening) == ["run a1 (fedavg) of 2 sites: this site takes part"]


def test_a_run_that_is_refused(lines):
    opening = {"do": "open", "run": "a1", "method": "fedbm", "sites": ["north"]}
    [line] = lines(opening, {"failure": "fedbm sends a generator"})
    assert line == "run a1 (fedbm) of 1 sites refused or failed after 12.5 s: fedbm sends a generator"


def test_steps(lines):
    job = {"do": "job", "step": "train", "round": 2}
    assert lines(job, payload=b"x" * 1500) == [
        "round 3, training begins",
        "round 3, training done in 12.5 s, 1.5 kB to be sent",
    ]
    assert lines(job | {"step": "judge"})[2:] == ["round 3, evaluating done in 12.5 s, 0 bytes to be sent"]


def test_probes_are_no_news(lines):
    assert lines({"do": "hello"}) == []
    assert lines({}) == []


def test_what_the_coordinator_sent_forges_no_line(lines):
    found = lines({"do": "job", "step": "x\n00:00:00 all is well\x1b[2J", "round": [1, "\n"]})
    assert len(found) == 2
    assert not any("\x1b" in line for line in found)


def test_the_file_is_the_sites_own(lines, tmp_path):
    lines({"do": "job", "step": "train", "round": 0})
    assert (tmp_path / "activity.log").stat().st_mode & 0o777 == 0o600


def test_sizes():
    assert [size_words(count) for count in (12, 1500, 44_000_000, 3e9)] == ["12 bytes", "1.5 kB", "44.0 MB", "3.0 GB"]
