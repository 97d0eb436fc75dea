"""What comes from outside, such as a site's reply, its name or its errors, is converted and escaped here.

Nothing that another machine sent reaches a log, a terminal, an exception, a file or a sum before it has passed one of
these functions. A value that does not fit raises ForeignError, which says what is wrong in words that can be printed.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from reprlib import Repr
from typing import Any

MAX_TEXT = 2000  # characters of a text that are shown
MAX_NAME = 120  # characters of a name that are shown
MAX_WHOLE = 2**53  # up to here a float counts exactly
MAX_NUMBER = 1e9  # absolute value of a number that is measured, such as a loss
MAX_ITEMS = 10_000  # of a list, or of an object in a log
MAX_DEPTH = 8  # of what is written to a log
SHORTENED = "…"
LINE_BREAK = " | "


class ForeignError(ValueError):
    """A value from outside is not what it should be."""


def printable(value: object, most: int = MAX_TEXT) -> str:
    """Any value as one line of text without control characters, escapes of terminals or marks that turn the direction
    of writing; at most `most` characters of it."""
    text = value if isinstance(value, str) else _described(value)
    parts = [line.strip() for line in text[: 2 * most].splitlines()]
    escaped = "".join(map(_visible, LINE_BREAK.join(part for part in parts if part)))
    if len(escaped) > most or len(text) > 2 * most:
        return escaped[: most - len(SHORTENED)] + SHORTENED
    return escaped


def quoted(value: object, most: int = MAX_NAME) -> str:
    """A value within a sentence: text in quotes, anything else as it is."""
    shown = printable(value, most)
    return f"'{shown}'" if isinstance(value, str) else shown


def whole_number(value: object, what: str, *, least: int = 0, most: int = MAX_WHOLE) -> int:
    """The value, if it is a whole number within its range; True and 3.0 are none."""
    if type(value) is not int:
        raise ForeignError(f"{what} is {_of_type(value)}, a whole number is expected")
    if not least <= value <= most:
        raise ForeignError(f"{what} is {quoted(value)}, from {least} to {most} is allowed")
    return value


def finite_number(value: object, what: str, *, least: float = -MAX_NUMBER, most: float = MAX_NUMBER) -> float:
    """The value as a float, if it is a number within its range; -0.0 becomes 0.0."""
    if type(value) not in (int, float):
        raise ForeignError(f"{what} is {_of_type(value)}, a number is expected")
    assert isinstance(value, int | float)
    if not least <= value <= most:  # compares without converting: a float cannot hold 10**400
        raise ForeignError(f"{what} is {quoted(value)}, from {least:g} to {most:g} is allowed")
    return float(value) + 0.0


def finite_numbers(value: object, what: str, most: int = MAX_ITEMS) -> list[float]:
    """A list of at most so many numbers."""
    return [finite_number(number, f"one of {what}") for number in listing(value, what, most)]


def listing(value: object, what: str, most: int = MAX_ITEMS) -> list[Any]:
    """The value, if it is a list that is not too long."""
    if not isinstance(value, list):
        raise ForeignError(f"{what} is {_of_type(value)}, a list is expected")
    if len(value) > most:
        raise ForeignError(f"{what} has {len(value)} entries, {most} are allowed")
    return value


def name(value: object, what: str, most: int = MAX_NAME) -> str:
    """The value, if it is text that can be printed as it is."""
    if not isinstance(value, str):
        raise ForeignError(f"{what} is {_of_type(value)}, text is expected")
    if not value or printable(value, most) != value:
        raise ForeignError(
            f"{what} is {quoted(value, most)}: a name is one line of at most {most} printable characters"
        )
    return value


def choice(value: object, what: str, known: Collection[str]) -> str:
    """The value, if it is one of the known."""
    if not isinstance(value, str) or value not in known:
        raise ForeignError(f"{what} is {quoted(value)}, one of {', '.join(known)} is expected")
    return value


def plain(value: object, depth: int = MAX_DEPTH) -> Any:
    """The value as JSON that can be written and printed: text is printable, numbers are finite, nothing is deep or
    long."""
    match value:
        case None | bool():
            return value
        case int() if abs(value) <= MAX_WHOLE:
            return value
        case float() if math.isfinite(value):
            return value
        case Mapping() if depth and len(value) <= MAX_ITEMS:
            return {printable(key, MAX_NAME): plain(inner, depth - 1) for key, inner in value.items()}
        case list() | tuple() if depth and len(value) <= MAX_ITEMS:
            return [plain(inner, depth - 1) for inner in value]
    return printable(value)


def _visible(character: str) -> str:
    if character.isprintable():
        return character
    if character == "\t" or unicodedata.category(character) == "Zs":
        return " "
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _of_type(value: object) -> str:
    kind = type(value).__name__
    return f"{'an' if kind[:1] in 'aeiou' else 'a'} {printable(kind, MAX_NAME)}"


def _described(value: object) -> str:
    """A value that is not text; neither long nor deep ones take long."""
    brief = Repr()
    brief.maxlevel, brief.maxstring, brief.maxother, brief.maxlong = 4, MAX_NAME, MAX_NAME, MAX_NAME
    brief.maxlist = brief.maxtuple = brief.maxdict = 20
    try:
        if isinstance(value, BaseException):
            return str(value)
        if isinstance(value, int | float) or not isinstance(value, Mapping | Sequence):
            return brief.repr(value) if isinstance(value, int) else str(value)
        return brief.repr(value)
    except Exception:  # an int of more digits than Python writes, or an object that cannot describe itself
        return _of_type(value)
