"""TOML files with their lines: in which line each section, key and entry of a list is written, so that a mistake can be
shown where it is. Imports no torch: commands that only look at a file start at once."""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from crossward.errors import ConfigError

Key = tuple[str, ...]
Where = Mapping[Key, str]  # the line or the flag that a key was written in
KEY = re.compile(r"""[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'""")
SPACE = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
STRING = re.compile(
    r'"""(?:[^\\]|\\.)*?"""+|' r"'''.*?'''+|" r'"(?:[^"\\\n]|\\.)*"|' r"'[^'\n]*'",
    re.DOTALL,
)
BARE = re.compile(r"[^,\]}\n#]*")


def read_toml(file: Path) -> tuple[dict[str, Any], Where]:
    """What a TOML file says, and in which lines."""
    try:
        text = file.read_text()
    except IsADirectoryError:
        raise ConfigError(f"{file} is a folder, not a configuration", hint="Name the TOML file.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the configuration {file}: {error}") from None
    try:
        return tomllib.loads(text), line_places(text, file)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{file} is not valid TOML: {error}") from None


def place(key: Key, where: Where) -> str:
    """Where the key, or the nearest section around it, was written: " (blood.toml, line 7)"."""
    for length in range(len(key), 0, -1):
        if key[:length] in where:
            return f" ({where[key[:length]]})"
    return ""


def line_places(text: str, file: Path) -> dict[Key, str]:
    """The line of each section, key and entry of a list: ("site", "1", "net") is in the second [[site]]."""
    return {key: f"{file}, line {line}" for key, line in _Scanner(text).lines().items()}


def split_key(dotted: str) -> Key:
    """a."b.c".d -> ("a", "b.c", "d")"""
    return tuple(_unquoted(match) for match in KEY.findall(dotted))


def _unquoted(part: str) -> str:
    return part[1:-1] if part[:1] in ("'", '"') else part


class _Scanner:
    """Walks through text that is known to be valid TOML."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.starts = [0, *(match.end() for match in re.finditer("\n", text))]  # of lines
        self.found: dict[Key, int] = {}
        self.entries: Counter[Key] = Counter()  # of [[lists of tables]]

    def lines(self) -> dict[Key, int]:
        section: Key = ()
        while self._skip_space():
            if self.text[self.at] == "[":
                section = self._header()
            else:
                self._assignment(section)
        return self.found

    def _header(self) -> Key:
        listed = self.text.startswith("[[", self.at)
        here = self.at
        self.at += 2 if listed else 1
        section = self._within_lists(self._key())
        if listed:
            index = self.entries[section]
            self.entries[section] += 1
            self._note(section, here)
            section = (*section, str(index))
        self._note(section, here)
        self._skip_space()
        self.at += 2 if listed else 1
        return section

    def _within_lists(self, key: Key) -> Key:
        """[a.b] below [[a]] belongs to the last entry of a."""
        resolved: Key = ()
        for position, part in enumerate(key):
            resolved = (*resolved, part)
            if position < len(key) - 1 and self.entries[resolved]:
                resolved = (*resolved, str(self.entries[resolved] - 1))
        return resolved

    def _assignment(self, section: Key) -> None:
        here = self.at
        key = (*section, *self._key())
        self._note(key, here)
        self._skip_space()
        self.at += 1  # =
        self._value(key)

    def _value(self, key: Key) -> None:
        self._skip_space()
        match self.text[self.at]:
            case "[":
                self._items(key, "]")
            case "{":
                self._items(key, "}")
            case '"' | "'":
                self.at = _end(STRING, self.text, self.at)
            case _:
                self.at = _end(BARE, self.text, self.at)

    def _items(self, key: Key, closing: str) -> None:
        self.at += 1
        index = 0
        while self._skip_space() and self.text[self.at] != closing:
            if closing == "}":
                self._assignment(key)
            else:
                self._note((*key, str(index)), self.at)
                self._value((*key, str(index)))
                index += 1
            if self._skip_space() and self.text[self.at] == ",":
                self.at += 1
        self.at += 1

    def _key(self) -> Key:
        parts = []
        while True:
            self._skip_space()
            end = _end(KEY, self.text, self.at)
            parts.append(_unquoted(self.text[self.at : end]))
            self.at = end
            self._skip_space()
            if not self.text.startswith(".", self.at):
                return tuple(parts)
            self.at += 1

    def _skip_space(self) -> bool:
        """Whether anything follows."""
        self.at = _end(SPACE, self.text, self.at)
        return self.at < len(self.text)

    def _note(self, key: Key, at: int) -> None:
        self.found.setdefault(key, bisect_right(self.starts, at))


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    assert match is not None, f"valid TOML has {pattern.pattern} at {at}"
    return match.end()
