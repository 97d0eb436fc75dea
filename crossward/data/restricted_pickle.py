"""Plain data and arrays of whole numbers out of a pickle, without importing or running what it names.

A pickle is a program that names functions and has them called. This unpickler knows six names, which numpy and Python 2
write around arrays and bytes, and answers each with a stand-in of this file; a pickle that names anything else is
refused. It is Python's own unpickler in Python, since the one in C can be made to fill the memory by a few bytes.
"""

from __future__ import annotations

import math
import pickle
import reprlib
from collections.abc import Callable
from io import BytesIO
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from crossward.errors import DataError

DTYPES = frozenset({"u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8"})
BYTE_ORDERS = frozenset("<>|=")


def load_dict(data: bytes) -> dict[str, Any]:
    """The pickled dict, with str for its keys and numpy arrays among its values. Strings of Python 2 are bytes."""
    try:
        if not data.endswith(pickle.STOP):
            raise EOFError("it is cut short")
        content = _Unpickler(data).load()
        if isinstance(content, dict):
            return {_text(key): value.array() if isinstance(value, _Array) else value for key, value in content.items()}
    except _Refused as error:
        raise DataError(
            f"the pickle wants to run {error}.",
            hint="It was refused, and nothing of it was run: only plain data and arrays of whole numbers are read. "
            "Download the file from where it was published.",
        ) from None
    except Exception as error:  # a damaged pickle may raise anything
        reason = str(error) or type(error).__name__
        raise DataError(
            f"the pickle ({len(data)} bytes) is not a whole pickle of plain data: {reason}.", hint="Copy it again."
        ) from error
    raise DataError(f"holds a {type(content).__name__.strip('_').lower()}, not a dict")


class _Refused(Exception):
    """The name of what a pickle wants to run."""


class _Unpickler(pickle._Unpickler):
    def __init__(self, data: bytes) -> None:
        super().__init__(BytesIO(data), encoding="bytes")
        self.encodable = len(data)  # an honest pickle holds each byte that it encodes

    def find_class(self, module: str, name: str) -> Any:
        match f"{module}.{name}":
            case "numpy.core.multiarray._reconstruct" | "numpy._core.multiarray._reconstruct":
                return _Array
            case "numpy.ndarray":
                return "numpy.ndarray"  # the argument of _reconstruct
            case "numpy.dtype":
                return _Dtype
            case "_codecs.encode":  # how Python 3 writes bytes for Python 2
                return _Function(self._encode)
            case "__builtin__.bytes" | "builtins.bytes":
                return _Function(self._empty_bytes)
            case refused:
                raise _Refused(refused)

    def get_extension(self, code: int) -> NoReturn:
        raise _Refused(f"extension {code}")

    def _encode(self, text: str, encoding: str) -> bytes:
        if encoding not in ("latin1", "latin-1"):
            raise _Refused(f"_codecs.encode with {encoding!r}")
        self.encodable -= len(text)
        if self.encodable < 0:
            raise ValueError("it makes more bytes than it holds")
        return text.encode("latin-1")

    def _empty_bytes(self) -> bytes:
        return b""


class _Function:
    """A function that a pickle may call but not change."""

    def __init__(self, function: Callable[..., bytes]) -> None:
        self.function = function

    def __call__(self, *arguments: Any) -> bytes:
        return self.function(*arguments)

    def __setstate__(self, state: Any) -> NoReturn:
        raise ValueError("it changes a function")


class _Dtype:
    """Stands in for numpy.dtype."""

    def __init__(self, code: str | bytes, align: bool, copy: bool) -> None:
        self.code = _text(code)
        self.order = "="
        if self.code not in DTYPES:
            raise _Refused(f"numpy.dtype with {self.code!r}")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, order, *_ = state
        self.order = _text(order)
        if self.order not in BYTE_ORDERS:
            raise ValueError(f"an array has the byte order {self.order!r}")


class _Array:
    """Stands in for an array, which numpy first makes and then fills."""

    def __init__(self, subtype: str, shape: tuple[int, ...], code: bytes) -> None:
        self.state: tuple[Any, ...] | None = None
        if subtype != "numpy.ndarray":
            raise ValueError("an array of another class")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.state = state

    def array(self) -> NDArray[np.generic]:
        """The array over the pickled bytes themselves, without a copy, whatever size the pickle claims."""
        if self.state is None:
            raise ValueError("an array has no values")
        _, shape, dtype, fortran, raw = self.state
        if not isinstance(dtype, _Dtype) or not isinstance(raw, bytes) or not isinstance(shape, tuple):
            raise ValueError(f"an array has the state {reprlib.repr(self.state)}")
        if len(shape) > 8 or any(type(side) is not int or not 0 <= side <= len(raw) for side in shape):
            raise ValueError(f"an array has the shape {reprlib.repr(shape)} and {len(raw)} bytes")
        number = np.dtype(dtype.order + dtype.code)
        needed = math.prod(shape) * number.itemsize
        if needed != len(raw):
            raise ValueError(f"an array of the shape {shape} has {len(raw)} bytes, not {needed}")
        return np.ndarray(shape, number, buffer=raw, order="F" if fortran else "C")


def _text(word: str | bytes | int) -> str:
    return word.decode("latin-1") if isinstance(word, bytes) else str(word)
