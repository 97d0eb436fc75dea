"""Receipts that somebody tampered with: `crossward verify` says what is wrong, and ends with 6."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta

import pytest

from crossward.hospitals import certificates, pem
from crossward.hospitals.receipts import SigningKey
from crossward.privacy.receipt import read_receipt
from crossward.runs.receipt_files import receipt_file
from crossward.testing.attacked_site import tiny_config
from crossward.testing.signed_federation import SITES, SignedFederation

CONFIG = tiny_config(data={"train": 8, "val": 4, "test": 4}, train={"batch_size": 4}, run={"rounds": 1})


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    return SignedFederation(tmp_path_factory.mktemp("blood") / "blood")


@pytest.fixture(scope="module")
def runs(federation):
    return [federation.run(CONFIG, name) for name in ("one", "two")]


@pytest.fixture
def receipt(runs, tmp_path):
    """A copy of a right one, outside its run."""
    return shutil.copy(receipt_file(runs[0], SITES[0]), tmp_path / "receipt.json")


def forge(file, **changes):
    """Change the statement of a receipt."""
    document = json.loads(file.read_text())
    document["statement"] |= changes
    file.write_text(json.dumps(document))


def resign(federation, file, site, name=None, **changes):
    """Sign a changed statement with the key of a site of a federation, which has every right to its own key."""
    from dataclasses import replace

    from crossward.hospitals.kit import read_site

    key = SigningKey.of_kit(read_site(federation.kit.site(site)))
    statement = replace(read_receipt(file).statement, **changes)
    file.write_bytes(key.sign(statement).encoded())


def test_a_right_one(cli, federation, runs, receipt):
    by_run = cli("verify", receipt_file(runs[0], SITES[0]))
    assert by_run.code == 0
    assert "right: bytes" in by_run.out
    assert "not checked: log" in by_run.out
    everything = cli(
        "verify",
        receipt,
        "--federation",
        federation.kit.folder,
        "--run",
        runs[0],
        "--site",
        federation.kit.site(SITES[0]),
    )
    assert everything.code == 0
    assert "not checked" not in everything.out
    for subject in ("signature", "certificate", "key", "run", "configuration", "bytes", "log", "ledger"):
        assert f"right: {subject}" in everything.out
    document = json.loads(cli("verify", receipt, "--ca", federation.kit.coordinator / "ca.crt", "--json").out)
    assert document["right"]


def test_without_anybody_to_believe_nothing_is_right(cli, receipt):
    output = cli("verify", receipt)
    assert output.code == 2
    assert "whose signature" in output.err
    assert cli("verify", receipt.with_name("none.json")).code == 2
    assert cli("verify", receipt, "--federation", receipt.parent).code == 2
    assert cli("verify", receipt, "--ca", receipt.parent / "none.crt").code == 2


def test_of_another_run(cli, runs, receipt):
    output = cli("verify", receipt, "--run", runs[1])
    assert output.code == 6
    assert "WRONG: run: it is of the run" in output.out


def test_of_another_federation(cli, receipt, tmp_path):
    other = SignedFederation(tmp_path / "other", name="blood")  # of the same name, by another authority
    output = cli("verify", receipt, "--federation", other.kit.folder)
    assert output.code == 6
    assert "not of the authority" in output.out


def test_signed_by_an_unknown_key_of_the_same_authority(cli, federation, receipt, tmp_path):
    """Somebody has a certificate of this federation's authority for this site's name, and another key."""
    folder = tmp_path / "stolen"
    folder.mkdir()
    certificates.create_site_key(folder, SITES[0])
    certificate = certificates.create_site_certificate(
        folder / f"{SITES[0]}.pub", federation.kit.authority, SITES[0], 10, folder / "site.crt"
    )
    key = SigningKey(folder / SITES[0], certificate.read_text(), "blood")
    receipt.write_bytes(key.sign(read_receipt(receipt).statement).encoded())
    assert (
        cli("verify", receipt, "--ca", federation.kit.coordinator / "ca.crt").code == 0
    )  # the authority vouches for it
    output = cli("verify", receipt, "--federation", federation.kit.folder)
    assert output.code == 6
    assert "not the key by which the coordinator knows" in output.out


def test_signed_by_another_hospital(cli, federation, receipt):
    resign(federation, receipt, SITES[1])
    output = cli("verify", receipt, "--ca", federation.kit.coordinator / "ca.crt")
    assert output.code == 6
    assert f"not one of the site {SITES[0]}" in output.out


def test_a_statement_that_was_changed(cli, federation, receipt):
    forge(receipt, refused=3)
    output = cli("verify", receipt, "--ca", federation.kit.coordinator / "ca.crt")
    assert output.code == 6
    assert "changed after it was signed" in output.out


def test_marked_as_a_simulation_to_do_without_a_signature(cli, federation, runs, receipt):
    forge(receipt, simulation=True)
    document = json.loads(receipt.read_text())
    receipt.write_text(json.dumps(document | {"signature": "", "certificate": ""}))
    assert cli("verify", receipt, "--run", runs[0]).code == 6
    assert cli("verify", receipt, "--ca", federation.kit.coordinator / "ca.crt").code == 6
    assert cli("verify", receipt).code == 2


def test_a_site_that_leaves_something_out(cli, federation, runs, receipt):
    """The site itself signs less than came: its key is right, the coordinator's ledger and its own log are not."""
    statement = read_receipt(receipt).statement
    items = tuple(item for item in statement.items if item.item != "model")
    resign(federation, receipt, SITES[0], items=items, bytes=sum(item.bytes for item in items))
    assert cli("verify", receipt, "--ca", federation.kit.coordinator / "ca.crt").code == 0
    by_run = cli("verify", receipt, "--run", runs[0])
    assert by_run.code == 6
    assert "more came than it says" in by_run.out
    by_site = cli("verify", receipt, "--site", federation.kit.site(SITES[0]))
    assert by_site.code == 6
    assert "log says something else: items, bytes" in by_site.out


def test_another_configuration(cli, federation, runs, receipt):
    resign(federation, receipt, SITES[0], config=f"sha256:{'0' * 64}")
    output = cli("verify", receipt, "--run", runs[0])
    assert output.code == 6
    assert "WRONG: configuration" in output.out


def test_signed_when_the_certificate_was_not_valid(cli, federation, receipt):
    certificate = pem.load_certificate(read_receipt(receipt).certificate.encode())
    late = certificate.not_valid_after_utc + timedelta(days=1)
    resign(federation, receipt, SITES[0], signed=f"{late.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}")
    output = cli("verify", receipt, "--ca", federation.kit.coordinator / "ca.crt")
    assert output.code == 6
    assert "the certificate is valid from" in output.out
    assert late > datetime.now(UTC)


def test_a_log_that_was_cut_after_the_receipt(cli, federation, receipt, tmp_path):
    folder = shutil.copytree(federation.kit.site(SITES[0]), tmp_path / "site")
    lines = (folder / "sent.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "sent.jsonl").write_bytes(b"".join(lines[:2]))
    output = cli("verify", receipt, "--site", folder)
    assert output.code == 6
    assert "not as it was written" in output.out


def test_damaged_files(cli, federation, receipt, tmp_path):
    whole = receipt.read_bytes()
    for damaged in (whole[:100], b"", whole.replace(b'"bytes"', b'"bytes": 1, "bytes"', 1), whole + b"x" * 2**21):
        receipt.write_bytes(damaged)
        output = cli("verify", receipt, "--ca", federation.kit.coordinator / "ca.crt")
        assert output.code == 6
        assert "is no receipt" in output.out


def test_the_hospitals_own_list(cli, federation, runs):
    folder = federation.kit.site(SITES[2])
    rows = json.loads(cli("site", "receipts", folder, "--json").out)
    assert [row["site"] for row in rows] == [SITES[2]] * 2
    kept = {row["run"]: row["file"] for row in rows}
    before = {file: read_receipt(folder / "receipts" / f"{run}.json") for run, file in kept.items()}
    text = cli("site", "receipts", folder)
    assert text.code == 0
    assert "nothing bounds what the weights tell" in text.out
    assert all(read_receipt(folder / "receipts" / f"{run}.json") == before[file] for run, file in kept.items())
    shutil.rmtree(folder / "receipts")  # of a run that was stopped there is none yet
    again = json.loads(cli("site", "receipts", folder, "--json").out)
    assert [row["items"] for row in again] == [row["items"] for row in rows]
    assert cli("verify", again[0]["file"], "--site", folder).code == 0
    assert cli("site", "receipts", federation.kit.coordinator).code == 2
