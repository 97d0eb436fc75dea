"""Parcels as Flower's records: an ArrayRecord of one array that holds the tree, and a ConfigRecord about it.

One array for the whole tree, because Flower moves every array of a message by requests of its own.
"""

from __future__ import annotations

import json

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from crossward.engines.flower.parcel import Parcel
from crossward.errors import StorageError


def records(parcel: Parcel) -> RecordDict:
    about = ConfigRecord({"json": json.dumps(parcel.about)})
    held = {"tree": Array(np.frombuffer(parcel.tree, np.uint8))} if parcel.tree else {}
    return RecordDict({"about": about, "arrays": ArrayRecord(held)})


def parcel(content: RecordDict) -> Parcel:
    """What `records` made; anything else is refused."""
    try:
        about = json.loads(str(content.config_records["about"]["json"]))
        arrays = content.array_records["arrays"]
        tree = arrays["tree"].numpy().tobytes() if "tree" in arrays else b""
    except (KeyError, ValueError, TypeError) as error:
        raise StorageError(f"a message that is not crossward's: {error!r}") from None
    if not isinstance(about, dict):
        raise StorageError("a message that is not crossward's: it says nothing about itself")
    return Parcel(about, tree)
