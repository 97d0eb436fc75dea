"""The section on privacy: what bounds what left, the receipts with what was checked of them, and what audit.json says,
with its intervals."""

from __future__ import annotations

import json

import pytest
from drawn_runs import Drawn, draw_runs

from crossward.audits.audit_file import write_findings
from crossward.audits.finding import Finding, Measurement
from crossward.errors import StorageError
from crossward.report.assembly import make_page
from crossward.report.content import DataTable, Details, Figure, Listing, Note
from crossward.report.render import render_page
from crossward.report.sections.checklist import limitations, run_facts
from crossward.report.sections.method import method_section
from crossward.report.sections.privacy import privacy_section
from crossward.report.source import read_report_source
from crossward.runs.run_directory import RunDir

MEMBERSHIP = Finding(
    "membership",
    "Membership inference",
    "measured",
    "an attacker tells trained images from others a little better than by guessing",
    "two networks are asked",
    (Measurement("AUC", 0.6, 0.55, 0.65, 0.95, "bootstrap", 120, 0.5, "guessing", site="north"),),
)
GENERATOR = Finding("generator", "Generated images", "does not apply", "fedavg has no <b>generator</b>")


@pytest.fixture
def run(tmp_path, cache):
    [folder] = draw_runs(tmp_path / "runs", Drawn(methods=("fedavg",), seeds=(0,), rounds=2))
    return RunDir(folder)


def section(run):
    return privacy_section(read_report_source([run.folder], resamples=100))


def audit_blocks(run):
    """The blocks after those of the protection, of a run without receipts."""
    note, protection, *blocks = section(run).blocks
    assert isinstance(note, Note)
    assert protection.id == "privacy-protection"
    return blocks


def test_a_run_without_noise_says_so_in_plain_words(run):
    note, table = section(run).blocks
    assert note.text == "fedavg: no differential privacy: nothing bounds what the weights tell."
    [row] = table.rows
    assert row[1] == "nothing: no noise"
    source = read_report_source([run.folder], resamples=100)
    assert "nothing bounds what the weights tell" in run_facts(source)["privacy"]
    assert any("without differential privacy" in line for line in limitations(source))
    settings = next(block for block in method_section(source).blocks if getattr(block, "id", "") == "method-settings")
    assert settings.rows[0][[column.title for column in settings.columns].index("privacy")] == "no noise"


def with_noise(run, epsilon):
    """The run as if it had had noise, with what its sites have spent."""
    about = run.about
    asked = {"unit": "patient", "noise": 1.5, "delta": 1e-5, "clip": 0.5, "secure_aggregation": True}
    run.write("run.json", about | {"config": about["config"] | {"privacy": asked}})
    site = {"noise": 1.5, "planned_epsilon": 9.0}
    sites = {"north": site | {"epsilon": epsilon}, "south": site | {"epsilon": epsilon / 2}}
    facts = {"unit": "patient", "delta": 1e-5, "clip": 0.5, "accountant": "PLD", "sites": sites}
    run.write("privacy.json", facts)


def test_noise_is_stated_with_the_site_that_has_spent_the_most(run):
    with_noise(run, 4.0)
    [table] = section(run).blocks
    [row] = table.rows
    assert (row[1], row[2].value, row[3], row[4], row[5], row[6], row[8]) == (
        "patient", 4.0, "1e-05", "1.5", "0.5", "PLD", "yes",
    )  # fmt: skip
    words = run_facts(read_report_source([run.folder], resamples=100))["privacy"]
    assert "each patient: ε = 4 at δ = 1e-05, noise 1.5, clip 0.5; secure aggregation" in words


def test_runs_that_differ_in_epsilon_are_marked(run, tmp_path, cache):
    [other] = draw_runs(tmp_path / "others", Drawn(methods=("fedprox",), seeds=(0,), rounds=2))
    with_noise(run, 4.0)
    with_noise(RunDir(other), 2.0)
    source = read_report_source([run.folder, other], resamples=100)
    notes = [block.text for block in privacy_section(source).blocks if isinstance(block, Note)]
    assert any("differ in unit or ε" in note for note in notes)


def test_receipts_are_printed_with_what_was_checked(run):
    (run.folder / "receipts").mkdir()
    (run.folder / "receipts" / "north.json").write_text('{"statement": {}}')
    details = section(run).blocks[-1]
    assert isinstance(details, Details)
    [row] = details.blocks[0].rows
    assert row[0] == "north"
    assert row[1].word == "wrong"
    assert "it cannot be read: the receipt lacks signature" in row[2]


def test_findings_stand_in_a_table_with_their_intervals_and_in_words(run):
    write_findings(run, [MEMBERSHIP, GENERATOR])
    table, lines, tried = audit_blocks(run)
    assert isinstance(table, DataTable)
    assert isinstance(lines, Listing)
    assert isinstance(tried, Details)
    [row] = table.rows
    assert row[:3] == ("Membership inference", "AUC", "north")
    assert (row[3].value, row[3].low, row[3].high) == (0.6, 0.55, 0.65)
    assert (row[4].value, row[5], row[6]) == (0.5, "guessing", 120)
    assert isinstance(row[3], Figure)
    assert lines.items[1][1] == "does not apply: fedavg has no <b>generator</b>"
    html = render_page(make_page(read_report_source([run.folder], resamples=100)))
    assert "fedavg has no &lt;b&gt;generator" in html


def test_an_audit_file_that_cannot_be_read_is_said(run):
    (run.folder / "audit.json").write_text('{"format": 1, "attacks": [{"attack": "membership"}]}')
    [note] = audit_blocks(run)
    assert isinstance(note, Note)
    assert "audit.json cannot be read" in note.text


def test_a_new_audit_replaces_the_attacks_that_it_repeats(run):
    write_findings(run, [MEMBERSHIP, GENERATOR])
    again = Finding("membership", "Membership inference", "not measured", "the images are gone")
    write_findings(run, [again])
    stored = json.loads((run.folder / "audit.json").read_text())
    assert [(each["attack"], each["status"]) for each in stored["attacks"]] == [
        ("membership", "not measured"),
        ("generator", "does not apply"),
    ]
    assert {"crossward", "torch"} <= set(stored["attacks"][0]["versions"])


def test_an_audit_file_of_another_format_is_not_written_over(run):
    (run.folder / "audit.json").write_text('{"format": 2}')
    with pytest.raises(StorageError, match="format 2"):
        write_findings(run, [MEMBERSHIP])


def test_numbers_that_are_not_finite_are_undefined_in_the_file():
    endless = Finding("canary", "Canaries", "measured", "", measurements=(Measurement("epsilon", float("inf")),))
    assert endless.document()["measurements"][0]["value"] is None
