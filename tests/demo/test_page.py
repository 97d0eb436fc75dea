"""The demo's page says in its title how many of the papers' methods are ahead, and whether that may be chance."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from crossward.comparison.study_spec import parse_column
from crossward.demo.page import SituationReport, _title, is_ahead, leads, situation_verdict
from crossward.demo.situations import Situation


def report(
    alone: tuple[float, str], fedavg: tuple[float, str] | None = None, methods: tuple[str, ...] = ("fedbm",)
) -> SituationReport:
    """A situation whose methods are this far from training alone and from FedAvg, with these verdicts."""
    rows = {"local": alone, "fedavg": fedavg}
    made = SituationReport(
        Situation("few", "Few", "Few", "Why.", methods),
        SimpleNamespace(headline=parse_column("best.mean.f1")),
        SimpleNamespace(title="what the report says"),
    )
    found = {
        name: SimpleNamespace(
            reference=name,
            value=row[0],
            verdict=row[1],
            drawn_verdict=row[1],
            has_interval=True,
            gain=lambda _, value=row[0]: value,
        )
        for name, row in rows.items()
        if row
    }
    object.__setattr__(made, "against", lambda method, reference: found.get(reference))
    return made


BETTER = report((0.2, "better"), (0.1, "better"))
LEADS = report((0.2, "better"), (0.1, "not distinguishable"))
BEHIND = report((0.2, "better"), (-0.1, "not distinguishable"))
ALONE_ONLY = report((0.2, "better"))


@pytest.mark.parametrize(
    ("made", "ahead", "leading"),
    [(BETTER, True, True), (LEADS, False, True), (BEHIND, False, False), (ALONE_ONLY, True, True)],
)
def test_ahead_is_better_than_every_reference(made, ahead, leading):
    assert is_ahead(made, "fedbm") is ahead
    assert leads(made, "fedbm") is leading


@pytest.mark.parametrize(
    ("reports", "title"),
    [
        ([BETTER, BETTER], "In every situation, a method that was made for it is ahead of training alone and FedAvg"),
        ([BETTER, LEADS], "In 1 of 2 situations, a method that was made for it is ahead of training alone and FedAvg"),
        (
            [LEADS, BEHIND],
            "In 1 of 2 situations, a method that was made for it leads, but that may be chance",
        ),
        ([BEHIND], "In no situation does a paper's method lead"),
    ],
)
def test_the_title_claims_no_more_than_the_verdicts(reports, title):
    assert _title(reports) == title


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (BETTER, "fedbm is ahead of training alone and FedAvg"),
        (LEADS, "fedbm is ahead of training alone, not distinguishable from FedAvg"),
        (report((-0.2, "worse"), (0.1, "better")), "fedbm is ahead of FedAvg, behind training alone"),
        (ALONE_ONLY, "fedbm is ahead of training alone"),
        (report((0.2, "better"), methods=("fedcb", "fedbm")), "fedcb and fedbm are ahead of training alone"),
        (report((0.2, "better"), methods=()), "what the report says"),
    ],
)
def test_a_situation_has_a_verdict_in_words(made, words):
    assert situation_verdict(made) == words
