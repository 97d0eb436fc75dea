"""Site messages as Flower's records: an ArrayRecord of one array that holds the payload, a ConfigRecord for the header.

The payload is one array, because Flower moves every array of a message by requests of its own. The array holds the
bytes of the encoded tree unchanged, so that nothing has to be parsed to get at them.
"""

from __future__ import annotations

import json

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from crossward.errors import StorageError
from crossward.foreign import MAX_NAME, printable
from crossward.hospitals.messages import SiteMessage

HEADER_RECORD = "about"
ARRAYS_RECORD = "arrays"
PAYLOAD_ARRAY = "tree"
STYPE = "crossward.tree"
MAX_HEADER = 2**22  # characters of a header: parsed, it takes many times as much memory


def to_records(message: SiteMessage) -> RecordDict:
    """A message in the form that Flower sends."""
    header = ConfigRecord({"json": json.dumps(message.header)})
    arrays = {}
    if message.payload:
        arrays[PAYLOAD_ARRAY] = Array("uint8", (len(message.payload),), STYPE, message.payload)
    return RecordDict({HEADER_RECORD: header, ARRAYS_RECORD: ArrayRecord(arrays)})


def from_records(content: RecordDict) -> SiteMessage:
    """The message that `to_records` was given; content of any other form is refused."""
    try:
        text = str(content.config_records[HEADER_RECORD]["json"])
        if len(text) > MAX_HEADER:
            raise StorageError(f"a message whose header has {len(text)} characters, {MAX_HEADER} are allowed")
        header = json.loads(text)
        arrays = content.array_records[ARRAYS_RECORD]
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise StorageError(f"a message that is not crossward's: {type(error).__name__}") from None
    if not isinstance(header, dict):
        raise StorageError("a message that is not crossward's: it says nothing about itself")
    unknown = [name for name, array in arrays.items() if name != PAYLOAD_ARRAY or array.stype != STYPE]
    if unknown:
        raise StorageError(f"a message that is not crossward's: it holds {printable(unknown, MAX_NAME)}")
    payload = arrays[PAYLOAD_ARRAY].data if PAYLOAD_ARRAY in arrays else b""
    if not isinstance(payload, bytes):
        raise StorageError("a message that is not crossward's: its array is not bytes")
    return SiteMessage(header, payload)
