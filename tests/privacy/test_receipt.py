"""Reading receipts: whatever is not exactly one is refused in words, and nothing of it is believed."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from crossward.foreign import ForeignError
from crossward.privacy.receipt import (
    MAX_RECEIPT,
    Head,
    Protection,
    Receipt,
    Rules,
    SentItem,
    Statement,
    canonical,
    parse_receipt,
    read_receipt,
    signed_form,
)

TAG = "ab" * 32
PRIVACY = Protection("image", 1e-5, 1.0, 1.0, "PLD", 0.5, 3.25, 4.5, 1e-5, 8.0, Head(3, TAG, True))
STATEMENT = Statement(
    run="a1b2",
    federation="blood",
    site="north",
    simulation=False,
    crossward="0.1.0",
    method="fedavg",
    config=f"sha256:{TAG}",
    signed="2026-03-01T12:00:00Z",
    nonce="",
    first="2026-03-01T11:00:00Z",
    last="2026-03-01T11:30:00Z",
    replies=2,
    bytes=204,
    refused=0,
    items=(SentItem("train", "model", "weights", 2, 200), SentItem("train", "n", "sample-count", 2, 4)),
    secure_aggregation=False,
    privacy=PRIVACY,
    rules=(Rules.of("2026-03-01T10:00:00Z", {"allow": ["weights"], "min_class_count": 5}, {"minutes": 60.0}, {}),),
    log=Head(17, TAG, True),
)
RECEIPT = Receipt(STATEMENT, "00ff", "-----BEGIN CERTIFICATE-----")


def changed(**changes):
    """The receipt as JSON, with keys of its statement changed."""
    document = json.loads(RECEIPT.encoded())
    document["statement"] |= changes
    return json.dumps(document).encode()


def test_a_receipt_is_read_as_it_was_written():
    assert parse_receipt(RECEIPT.encoded()) == RECEIPT
    unsigned = Receipt(replace(STATEMENT, privacy=None, log=None, rules=(), first="", last=""))
    assert parse_receipt(unsigned.encoded()) == unsigned


def test_the_form_that_is_signed_depends_on_nothing_but_the_content():
    shuffled = dict(reversed(json.loads(RECEIPT.encoded())["statement"].items()))
    assert canonical(shuffled) == canonical(STATEMENT.document())
    assert signed_form(parse_receipt(changed()).statement) == signed_form(STATEMENT)
    other = replace(STATEMENT, items=(replace(STATEMENT.items[0], masked=True), STATEMENT.items[1]))
    assert signed_form(other) != signed_form(STATEMENT)


@pytest.mark.parametrize("length", [0, 1, 40, 400, -2])
def test_one_that_was_cut_short(length):
    with pytest.raises(ForeignError, match="cut short"):
        parse_receipt(RECEIPT.encoded().rstrip()[:length])


def test_a_file_of_a_hundred_megabytes_is_not_read(tmp_path):
    file = tmp_path / "huge.json"
    with file.open("wb") as out:
        out.truncate(100 * 2**20)  # sparse
    with pytest.raises(ForeignError, match=f"longer than the {MAX_RECEIPT} bytes"):
        read_receipt(file)


WRONG = {
    "NaN": (RECEIPT.encoded().replace(b"3.25", b"NaN"), "NaN is no number"),
    "infinity": (RECEIPT.encoded().replace(b"3.25", b"Infinity"), "Infinity is no number"),
    "a float that overflows": (RECEIPT.encoded().replace(b"3.25", b"1e999"), "1e999 is no number"),
    "a key twice": (RECEIPT.encoded().replace(b'"site":', b'"site": "south", "site":'), "comes twice"),
    "deep": (b"[" * 500_000, "not JSON"),
    "not an object": (b"[]", "no JSON object"),
    "not UTF-8": (b"\xff\xfe", "not JSON"),
    "a digit too many": (b'{"statement": ' + b"9" * 5000 + b"}", "not JSON"),
    "an unknown key": (changed(patients=12), "does not know: \\['patients'\\]"),
    "a missing key": (RECEIPT.encoded().replace(b'"replies"', b'"answers"'), "lacks replies"),
    "another format": (changed(receipt=2), "format"),
    "a negative count": (changed(replies=-1), "replies is -1"),
    "truth for a count": (changed(replies=True), "whole number"),
    "text for truth": (changed(simulation="no"), "neither true nor false"),
    "bytes that do not add up": (changed(bytes=205), "its items have 204"),
    "a name with a line break": (changed(site="north\nright: signature"), "printable"),
    "a terminal escape": (changed(site="north\x1b[2J"), "printable"),
    "a time that cannot be": (changed(signed="2026-02-30T12:00:00Z"), "no time"),
    "an unknown kind": (changed(items=[{**STATEMENT.document()["items"][0], "kind": "x-rays"}], bytes=200), "kind"),
    "a negative epsilon": (changed(privacy={**STATEMENT.document()["privacy"], "epsilon": -1.0}), "epsilon"),
    "rules of another digest": (changed(rules=[{**STATEMENT.document()["rules"][0], "limits": {}}]), "digest"),
    "a tag that is none": (changed(log={"number": 1, "tag": "x", "in_order": True}), "tag of log"),
    "too many items": (changed(items=[STATEMENT.document()["items"][0]] * 1001), "1000 are allowed"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_not_a_receipt(name):
    data, why = WRONG[name]
    with pytest.raises(ForeignError, match=why):
        parse_receipt(data)


def test_a_signature_without_a_certificate():
    document = RECEIPT.document() | {"certificate": ""}
    with pytest.raises(ForeignError, match="without a certificate"):
        parse_receipt(json.dumps(document).encode())
