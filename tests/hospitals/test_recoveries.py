"""What a site has recovered from: counted at the site, told with its replies, and in the log of the run."""

from __future__ import annotations

import pytest

from crossward.foreign import ForeignError
from crossward.hospitals.recoveries import (
    FILE,
    NETWORK,
    SITE,
    WORKER,
    checked_recoveries,
    count_recovery,
    read_recoveries,
    recovery_words,
)


def test_counts(tmp_path):
    assert read_recoveries(tmp_path) == {}
    for what in (SITE, WORKER, SITE):
        count_recovery(tmp_path, what)
    assert read_recoveries(tmp_path) == {SITE: 2, WORKER: 1}
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600
    (tmp_path / FILE).write_text("{")
    assert read_recoveries(tmp_path) == {}
    count_recovery(tmp_path, NETWORK)
    assert read_recoveries(tmp_path) == {NETWORK: 1}


def test_what_has_happened_since():
    assert recovery_words({}, {}) == []
    assert recovery_words({SITE: 1}, {SITE: 1, NETWORK: 0}) == []
    assert recovery_words({SITE: 1}, {SITE: 2, WORKER: 3}) == [
        "the site was started anew",
        "its worker was started anew",
    ]
    assert recovery_words({SITE: 2}, {}) == []


@pytest.mark.parametrize(
    "told",
    [
        None, [], "worker", {"worker": -1}, {"worker": 0.5}, {"worker": True}, {"worker": "1"}, {"patient": 1},
        {"worker": 10**10}, {1: 1},
    ],
)  # fmt: skip
def test_what_is_no_table_of_counts(told):
    with pytest.raises(ForeignError):
        checked_recoveries(told)
