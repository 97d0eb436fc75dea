"""Plain data out of a pickle, without running it.

A pickle is a program: what it names is imported and called by whoever loads it. Here its operations are followed one
by one, and all they can make is None, bool, int, float, str, bytes, tuple, list, dict and arrays of whole numbers as
numpy pickles them. The few names that this takes are compared as text; nothing is imported or called by name, and a
file that names anything else is refused with the name of what it wanted to run. Strings of Python 2 are bytes.
"""

from __future__ import annotations

import math
import pickletools
import reprlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossward.errors import DataError

STEPS = 4_000_000  # operations of one file, which bounds the memory: an empty dict takes one byte there and 64 here
LITERALS = frozenset({
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "UNICODE", "BINUNICODE",
    "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8",
})  # fmt: skip
OLD_STRINGS = frozenset({"STRING", "BINSTRING", "SHORT_BINSTRING"})
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
PUTS = frozenset({"PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"})
RECALLS = frozenset({"GET", "BINGET", "LONG_BINGET"})
ENCODE, ARRAY, DTYPE, REBUILD = "_codecs.encode", "numpy.ndarray", "numpy.dtype", "numpy.core.multiarray._reconstruct"
KNOWN = {  # name in the file -> what it means here
    ENCODE: ENCODE,  # how Python 3 writes bytes for Python 2
    "__builtin__.bytes": "bytes",
    "builtins.bytes": "bytes",
    ARRAY: ARRAY,
    DTYPE: DTYPE,
    REBUILD: REBUILD,
    "numpy._core.multiarray._reconstruct": REBUILD,  # since numpy 2
}
WHOLE = frozenset({"u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8"})
PLAIN = (type(None), bool, int, float, str, bytes, np.ndarray)


@dataclass(frozen=True)
class _Name:
    value: str


@dataclass(eq=False)
class _Dtype:
    code: str
    order: str = "="


@dataclass(eq=False)
class _Blank:
    """An array whose shape and values are still to come."""

    remembered: list[int] = field(default_factory=list)  # under these numbers


def loads(data: bytes, source: str) -> Any:
    """The plain data in a pickle; `source` is what errors call it."""
    machine = _Machine(len(data))
    try:
        for number, (opcode, argument, _) in enumerate(pickletools.genops(data)):
            if number == STEPS:
                raise ValueError(f"more than {STEPS} operations")
            machine.step(opcode.name, argument)
        return machine.result()
    except _Refused as error:
        raise DataError(
            f"{source} wants to run {error}.",
            hint="It was refused, and nothing of it was run: only plain data and arrays of whole numbers are read. "
            "Download the file from where it was published.",
        ) from None
    except ValueError as error:
        raise DataError(
            f"{source} ({len(data)} bytes) is not a whole pickle of plain data: {error}.", hint="Copy it again."
        ) from error


class _Refused(Exception):
    """The name of what a file wanted to run."""


class _Machine:
    def __init__(self, room: int) -> None:
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []  # the stacks under each mark
        self.memo: dict[int, Any] = {}
        self.room = room  # bytes that may still be encoded: an honest file holds each of them itself

    def step(self, name: str, argument: Any) -> None:
        if name in LITERALS:
            self.stack.append(argument)
        elif name in OLD_STRINGS:
            self.stack.append(argument.encode("latin-1"))
        elif name in CONSTANTS:
            self.stack.append(CONSTANTS[name])
        elif name in PUTS:
            self._remember(len(self.memo) if name == "MEMOIZE" else argument)
        elif name in RECALLS:
            if argument not in self.memo:
                raise ValueError(f"it recalls {argument}, which it has not remembered")
            self.stack.append(self.memo[argument])
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            self.stack.append(self._named(argument))
        elif name == "REDUCE":
            arguments, what = self._pop(), self._pop()
            self.stack.append(self._called(what, arguments))
        elif name == "BUILD":
            state = self._pop()
            self.stack.append(self._built(self._pop(), state))
        elif name not in ("PROTO", "FRAME", "STOP"):
            self._contain(name, argument)

    def result(self) -> Any:
        value = self._pop()
        todo, seen = [value], set[int]()
        while todo:
            part = todo.pop()
            if type(part) in (tuple, list, dict) and id(part) not in seen:
                seen.add(id(part))
                todo += part.values() if type(part) is dict else part
            elif type(part) not in (*PLAIN, tuple, list, dict):
                raise ValueError("it ends with an array that has no values, or with a name")
        return value

    def _contain(self, name: str, argument: Any) -> None:
        """Tuples, lists and dicts."""
        match name:
            case "MARK":
                self.below.append(self.stack)
                self.stack = []
            case "EMPTY_TUPLE":
                self.stack.append(())
            case "EMPTY_LIST":
                self.stack.append([])
            case "EMPTY_DICT":
                self.stack.append({})
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                self.stack.append(tuple([self._pop() for _ in range(TUPLES[name])][::-1]))
            case "TUPLE" | "LIST" | "DICT":
                items = self._since_mark()
                self.stack.append(_filled({}, items) if name == "DICT" else tuple(items) if name == "TUPLE" else items)
            case "APPEND" | "APPENDS":
                items = [self._pop()] if name == "APPEND" else self._since_mark()
                self._top(list).extend(items)
            case "SETITEM" | "SETITEMS":
                items = [self._pop(), self._pop()][::-1] if name == "SETITEM" else self._since_mark()
                _filled(self._top(dict), items)
            case _:  # INST, OBJ, NEWOBJ, PERSID, EXT1 … all end in an import or a call
                raise _Refused(" ".join([name, *([str(argument)] if argument is not None else [])]))

    def _pop(self) -> Any:
        if not self.stack:
            raise ValueError("it takes more from the stack than is there")
        return self.stack.pop()

    def _top(self, kind: type) -> Any:
        if not self.stack or type(self.stack[-1]) is not kind:
            raise ValueError(f"it adds to a {kind.__name__} that is not there")
        return self.stack[-1]

    def _since_mark(self) -> list[Any]:
        if not self.below:
            raise ValueError("it goes back to a mark that is not there")
        items, self.stack = self.stack, self.below.pop()
        return items

    def _remember(self, number: int) -> None:
        if not self.stack:
            raise ValueError("it remembers what is not there")
        if isinstance(self.stack[-1], _Blank):
            self.stack[-1].remembered.append(number)
        self.memo[number] = self.stack[-1]

    def _named(self, argument: Any) -> _Name:
        if argument is None:
            attribute, module = self._pop(), self._pop()
        else:
            module, _, attribute = str(argument).partition(" ")
        if (name := f"{module}.{attribute}") not in KNOWN:
            raise _Refused(name)
        return _Name(KNOWN[name])

    def _called(self, what: Any, arguments: Any) -> Any:
        match (what, arguments):
            case (_Name("_codecs.encode"), (str(text), "latin1" | "latin-1")):
                self.room -= len(text)
                if self.room < 0:
                    raise ValueError("it makes more bytes than it holds")
                return text.encode("latin-1")
            case (_Name("bytes"), ()):
                return b""
            case (_Name("numpy.dtype"), (str() | bytes() as code, 0 | False, 1 | True)) if _text(code) in WHOLE:
                return _Dtype(_text(code))
            case (_Name("numpy.core.multiarray._reconstruct"), (_Name("numpy.ndarray"), tuple(), _)):
                return _Blank()
        raise _Refused(
            f"{what.value if isinstance(what, _Name) else type(what).__name__} with {reprlib.repr(arguments)}"
        )

    def _built(self, target: Any, state: Any) -> Any:
        match (target, state):
            case (_Dtype(), (int(), str() | bytes() as order, None, None, None, *_)) if _text(order) in set("<>|="):
                target.order = _text(order)
                return target
            case (_Blank(), (int(), tuple(shape), _Dtype() as dtype, bool() | int() as fortran, bytes(raw))):
                array = _array(shape, dtype, bool(fortran), raw)
                self.memo |= dict.fromkeys(target.remembered, array)
                return array
        raise _Refused(f"a {type(target).__name__.strip('_').lower()} with the state {reprlib.repr(state)}")


def _filled(target: dict[Any, Any], items: list[Any]) -> dict[Any, Any]:
    keys, values = items[::2], items[1::2]
    if len(keys) != len(values):
        raise ValueError("a key has no value")
    if strange := [key for key in keys if type(key) not in (str, bytes, int)]:
        raise ValueError(f"a key is a {type(strange[0]).__name__}")
    target.update(zip(keys, values, strict=True))
    return target


def _array(shape: tuple[Any, ...], dtype: _Dtype, fortran: bool, raw: bytes) -> NDArray[np.generic]:
    """The array over `raw` itself, without a copy, whatever size the file claims."""
    kind = np.dtype(dtype.order + dtype.code)
    if len(shape) > 8 or any(type(side) is not int or not 0 <= side <= len(raw) for side in shape):
        raise ValueError(f"an array has the shape {reprlib.repr(shape)} and {len(raw)} bytes")
    if (needed := math.prod(shape) * kind.itemsize) != len(raw):
        raise ValueError(f"an array of the shape {shape} has {len(raw)} bytes, not {needed}")
    return np.ndarray(shape, kind, buffer=raw, order="F" if fortran else "C")


def _text(word: str | bytes) -> str:
    return word.decode("latin-1") if isinstance(word, bytes) else word
