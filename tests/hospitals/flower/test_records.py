"""Site messages as Flower's records, through the bytes that Flower moves; and content that is no site message."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from crossward.errors import StorageError
from crossward.hospitals.flower.records import SMALL_PAYLOAD, STYPE, from_records, to_records
from crossward.hospitals.messages import SiteMessage

HEADER = ConfigRecord({"json": "{}"})
NO_ARRAYS = ArrayRecord({})


def transferred(content):
    """The content as it arrives at the other end of a network: object by object, each by its hash."""
    sent = {id: part.deflate() for id, part in get_all_nested_objects(content).items()}
    return inflate_object_from_contents(content.object_id, sent)


@pytest.mark.parametrize(
    "payload",
    [b"", b"\0", b"tree", bytes(SMALL_PAYLOAD), bytes(10 * 2**20), np.random.default_rng(0).bytes(11 * 2**20)],
    ids=["empty", "one zero", "small", "the largest small one", "zeros", "large"],
)
def test_round_trip(payload):
    """Zeros as well, because Flower sends equal chunks of an array once."""
    header = {"site": "Zürich", "round": 3, "seed": 2**62 + 1, "loss": 0.1, "none": None, "deep": {"a": [1, True]}}
    message = SiteMessage(header, payload)
    content = to_records(message)
    assert from_records(content) == message
    assert from_records(transferred(content)) == message


def test_a_large_payload_travels_as_one_array_of_its_own_size():
    payload = bytes(SMALL_PAYLOAD + 1)
    (array,) = to_records(SiteMessage({}, payload)).array_records["arrays"].values()
    assert array.dtype == "uint8"
    assert array.shape == (SMALL_PAYLOAD + 1,)
    assert array.data == payload


def test_a_small_payload_makes_no_more_objects_than_the_header():
    """Each object is a request, four times on the way to a site and back."""
    assert len(get_all_nested_objects(to_records(SiteMessage({}, bytes(SMALL_PAYLOAD))))) == 2
    assert len(get_all_nested_objects(to_records(SiteMessage({}, bytes(SMALL_PAYLOAD + 1))))) == 5


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"about": ConfigRecord({"json": "{}", "tree": "text"})},
        {"arrays": NO_ARRAYS},
        {"about": MetricRecord({"json": 1}), "arrays": NO_ARRAYS},
        {"about": ConfigRecord({"text": "{}"}), "arrays": NO_ARRAYS},
        {"about": ConfigRecord({"json": "{"}), "arrays": NO_ARRAYS},
        {"about": ConfigRecord({"json": b"\xff"}), "arrays": NO_ARRAYS},
        {"about": ConfigRecord({"json": "[" * 100_000}), "arrays": NO_ARRAYS},
        {"about": ConfigRecord({"json": 7}), "arrays": NO_ARRAYS},
        {"about": ConfigRecord({"json": '"do"'}), "arrays": NO_ARRAYS},
        {"about": HEADER, "arrays": HEADER},
        {"about": HEADER, "arrays": ArrayRecord({"weights": Array("uint8", (1,), STYPE, b"x")})},
        {"about": HEADER, "arrays": ArrayRecord({"tree": Array(np.zeros(3, np.uint8))})},
        {"about": HEADER, "arrays": ArrayRecord([np.zeros(3, np.float32)])},
    ],
    ids=["nothing", "a payload in words", "no header", "metrics", "another key", "cut short", "no text", "nested",
         "a number", "a word", "header twice", "another array", "an array of numpy's", "an ordinary model"],
)  # fmt: skip
def test_a_message_that_is_not_ours_is_refused(content):
    with pytest.raises(StorageError, match=r"a message that is not crossward's: \S"):
        from_records(RecordDict(content))
