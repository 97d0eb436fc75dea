"""Parcels as Flower's records: an ArrayRecord of one array that holds the tree, and a ConfigRecord about it.

One array for the whole tree, because Flower moves every array of a message by requests of its own. Its bytes are the
tree's as they are, so that nothing has to be parsed in order to get at them.
"""

from __future__ import annotations

import json

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from crossward.errors import StorageError
from crossward.hospitals.messages import Parcel

STYPE = "crossward.tree"


def records(parcel: Parcel) -> RecordDict:
    about = ConfigRecord({"json": json.dumps(parcel.about)})
    held = {"tree": Array("uint8", (len(parcel.tree),), STYPE, parcel.tree)} if parcel.tree else {}
    return RecordDict({"about": about, "arrays": ArrayRecord(held)})


def parcel(content: RecordDict) -> Parcel:
    """What `records` made; anything else is refused."""
    try:
        about = json.loads(str(content.config_records["about"]["json"]))
        arrays = content.array_records["arrays"]
    except (KeyError, ValueError, RecursionError) as error:
        raise StorageError(f"a message that is not crossward's: {error!r}") from None
    if not isinstance(about, dict):
        raise StorageError("a message that is not crossward's: it says nothing about itself")
    if alien := [name for name, array in arrays.items() if name != "tree" or array.stype != STYPE]:
        raise StorageError(f"a message that is not crossward's: it holds {', '.join(alien)}")
    return Parcel(about, arrays["tree"].data if "tree" in arrays else b"")
