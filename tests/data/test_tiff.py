"""TIFF as cameras and detectors write it: the bits that it says it stores, and the way up that it says it has."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from crossward.data.decode import Decoded, Frame, decode_parts

VALUES = np.array([[0, 1365], [2730, 4095]])  # of 12 bits
SHOWN = [[0, 85], [170, 255]]
ORIENTATIONS = {
    1: SHOWN,
    2: [[85, 0], [255, 170]],
    3: [[255, 170], [85, 0]],
    6: [[170, 0], [255, 85]],
    8: [[85, 255], [0, 170]],
}


def packed(row: np.ndarray) -> bytes:
    """Pairs of 12 bits in three bytes."""
    pairs = [(int(a) << 12) | int(b) for a, b in zip(row[::2], row[1::2], strict=True)]
    return b"".join(pair.to_bytes(3, "big") for pair in pairs)


def tiff(bits: int, *, orientation: int = 1, order: str = "<") -> bytes:
    """The values in a file of one strip."""
    data = b"".join(map(packed, VALUES)) if bits == 12 else VALUES.astype(f"{order}u2").tobytes()
    height, width = VALUES.shape
    tags = [(256, width), (257, height), (258, bits), (259, 1), (262, 1), (273, 8), (274, orientation), (277, 1),
            (278, height), (279, len(data))]  # fmt: skip
    start = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}I", 8 + len(data)) + data
    entries = b"".join(struct.pack(f"{order}HHIHH", tag, 3, 1, value, 0) for tag, value in tags)
    return start + struct.pack(f"{order}H", len(tags)) + entries + bytes(4)


def shown(data: bytes, *prepare: str) -> tuple[list[list[int]], str]:
    (result,) = decode_parts(data, "a.tif", Frame(2, 1, prepare=prepare), [""])
    assert isinstance(result, Decoded), result
    return result.pixels[..., 0].tolist(), result.habit


def test_bits_per_sample_are_the_range():
    assert shown(tiff(12)) == (SHOWN, "")


@pytest.mark.parametrize("order", ["<", ">"])
def test_twelve_bits_that_are_said_to_be_sixteen(order):
    dark, habit = shown(tiff(16, order=order))
    assert max(map(max, dark)) == 16
    assert habit == "dark"
    assert shown(tiff(16, order=order), "range:bits:12") == (SHOWN, "")


@pytest.mark.parametrize("bits", [12, 16])
@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_orientation(orientation, bits):
    assert shown(tiff(bits, orientation=orientation), "range:bits:12")[0] == ORIENTATIONS[orientation]
