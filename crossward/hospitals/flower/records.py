"""Site messages as Flower's records: a ConfigRecord for the header, an ArrayRecord of one array for the payload.

Flower moves every record, every array and every piece of one by a request of its own, four times on the way to a site
and back. A small payload is therefore in the header's record. A larger one is one array, which Flower keeps once for
all sites that are sent the same. Either holds the bytes of the encoded tree unchanged, so that nothing has to be parsed
to get at them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from crossward.errors import StorageError
from crossward.foreign import MAX_NAME, printable
from crossward.hospitals.messages import SiteMessage

HEADER_RECORD = "about"
ARRAYS_RECORD = "arrays"
PAYLOAD_ARRAY = "tree"
STYPE = "crossward.tree"
SMALL_PAYLOAD = 2**18  # bytes; the SuperLink has it as many times as there are sites
MAX_HEADER = 2**22  # characters of a header: parsed, it takes many times as much memory


@dataclass
class SharedArrays:
    """The arrays of messages that are sent together: those with the same payload have the same array, so that Flower
    cuts, copies and hashes it once for all sites."""

    _arrays: dict[int, Array] = field(default_factory=dict)  # by the identity of the payload, which the array holds

    def of(self, payload: bytes) -> Array:
        if id(payload) not in self._arrays:
            self._arrays[id(payload)] = Array("uint8", (len(payload),), STYPE, payload)
        return self._arrays[id(payload)]


def to_records(message: SiteMessage, arrays: SharedArrays | None = None) -> RecordDict:
    """A message in the form that Flower sends."""
    text = json.dumps(message.header)
    if len(message.payload) <= SMALL_PAYLOAD:
        return RecordDict({HEADER_RECORD: ConfigRecord({"json": text, PAYLOAD_ARRAY: message.payload})})
    record = ArrayRecord()
    record[PAYLOAD_ARRAY] = (arrays or SharedArrays()).of(message.payload)  # its constructor would copy the array
    return RecordDict({HEADER_RECORD: ConfigRecord({"json": text}), ARRAYS_RECORD: record})


def from_records(content: RecordDict) -> SiteMessage:
    """The message that `to_records` was given; content of any other form is refused."""
    try:
        record = content.config_records[HEADER_RECORD]
        text = str(record["json"])
        if len(text) > MAX_HEADER:
            raise StorageError(f"a message whose header has {len(text)} characters, {MAX_HEADER} are allowed")
        header = json.loads(text)
        arrays = content.array_records[ARRAYS_RECORD] if ARRAYS_RECORD in content else {}
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise StorageError(f"a message that is not crossward's: {type(error).__name__}") from None
    if not isinstance(header, dict):
        raise StorageError("a message that is not crossward's: it says nothing about itself")
    unknown = [name for name, array in arrays.items() if name != PAYLOAD_ARRAY or array.stype != STYPE]
    if unknown:
        raise StorageError(f"a message that is not crossward's: it holds {printable(unknown, MAX_NAME)}")
    payload = arrays[PAYLOAD_ARRAY].data if PAYLOAD_ARRAY in arrays else record.get(PAYLOAD_ARRAY, b"")
    if not isinstance(payload, bytes):
        raise StorageError("a message that is not crossward's: its payload is not bytes")
    return SiteMessage(header, payload)
