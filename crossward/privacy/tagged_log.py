"""TaggedLog: lines that each hold a tag, and that nobody without the key can change unnoticed.

The tag of a line is its HMAC under a key that only the site has, and each line holds the tag of the one before. That
lines are missing at the end, a chain cannot tell: therefore the head file beside the log has the last tag, under the
same key.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import mmap
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from typing import Any, ClassVar

from crossward.disk import cannot_write, write_atomically
from crossward.errors import ConfigError, StorageError
from crossward.privacy.key_file import create_key, read_key

TAGGED_LINE = re.compile(rb'(\{.*), "tag": "([0-9a-f]{64})"\}', re.DOTALL)
NOT_WHOLE = "not whole, cut short by a crash or damaged"


@dataclass(frozen=True)
class LogLine:
    """A line of the log whose tag is right."""

    number: int  # among such lines, from 1
    previous: str  # tag of the line before
    tag: str
    alarm: str = ""  # what the site noticed about the lines before


NO_LINE = LogLine(0, "", "")


@dataclass(frozen=True)
class LogHead:
    """The content of the head file: the last line, and the last one that the coordinator has returned a receipt of."""

    number: int = 0
    tag: str = ""
    confirmed: str = ""

    def receipt(self) -> dict[str, Any]:
        """The last line, as the coordinator keeps it."""
        return {"number": self.number, "tag": self.tag}

    def seal(self, key: bytes) -> bytes:
        content = {"number": self.number, "tag": self.tag, "confirmed": self.confirmed}
        return json.dumps(content | {"mac": _mac(key, b"head" + json.dumps(content).encode())}).encode()

    @classmethod
    def unseal(cls, key: bytes, data: bytes) -> LogHead | None:
        """The head in a file; None if it was not written with this key."""
        try:
            content = json.loads(data)
            head = cls(int(content["number"]), str(content["tag"]), str(content["confirmed"]))
        except (ValueError, LookupError, TypeError, RecursionError):
            return None
        return head if hmac.compare_digest(head.seal(key), data) else None


@dataclass(frozen=True)
class TaggedLog:
    """A file of JSON lines that is only appended to. Its key, beside it, is made with the first line."""

    key_name: ClassVar[str] = "log.key"

    file: Path

    @property
    def key_file(self) -> Path:
        return self.file.with_name(self.key_name)

    @property
    def head_file(self) -> Path:
        return self.file.with_suffix(".head")

    def begin(self) -> None:
        """Make the key and the head, if there is none yet: from now on an empty log is known to be empty."""
        self._make_folder()
        with open(self.file, "a+b", buffering=0, opener=_open_private) as log:
            fcntl.flock(log, fcntl.LOCK_EX)
            self._key()

    def receipt(self) -> dict[str, Any]:
        """The last line, as the coordinator keeps it."""
        return self._read_head(self._key()).receipt()

    # verifying --------------------------------------------------------------------------------------------------------
    def verify(self) -> list[str]:
        """A line for each line that is not as it was written or does not follow the one before, and for each that is
        missing; empty if the log is intact."""
        with self._undisturbed():
            return self._problems()

    @contextmanager
    def _undisturbed(self) -> Iterator[None]:
        """Inside, no other process adds a line: lines and head are of the same moment."""
        try:
            log = self.file.open("rb")
        except OSError:  # reading it says what is wrong, or that it is empty
            yield
            return
        with log:
            fcntl.flock(log, fcntl.LOCK_SH)
            yield

    def _problems(self) -> list[str]:
        data = self._read()
        if not self.key_file.exists():
            has_more = bool(data) or self.head_file.exists()
            missing = f"{self.key_name} is missing: nobody can tell whether these lines are as they were"
            return [missing] if has_more else []
        key = read_key(self.key_file)
        problems, tags = _check_lines(key, data)
        try:
            head = LogHead.unseal(key, self.head_file.read_bytes())
        except OSError:
            return [*problems, f"the end: {self.head_file.name} is missing, so that nobody can tell whether lines are"]
        if head is None:
            return [*problems, f"the end: {self.head_file.name} was not written with this key: it was altered"]
        if head.tag and head.tag not in tags:
            problems.append(f"the end: line {head.number} is missing: the log was cut or rewritten there")
        return problems

    def entries(self) -> list[dict[str, Any]]:
        """The lines whose tags are right, alarms left out."""
        if not self.key_file.exists():
            return []
        key = read_key(self.key_file)
        lines = [line for line in self._read().split(b"\n") if isinstance(_parse_line(key, line), LogLine)]
        found = [json.loads(line) for line in lines]
        return [entry for entry in found if "alarm" not in entry]

    def _read(self) -> bytes:
        try:
            return self.file.read_bytes()
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise StorageError(f"cannot read {self.file}: {error.strerror}") from error

    def has_tag(self, tag: str) -> bool:
        """Whether a line has this tag."""
        return f', "tag": "{tag}"}}'.encode() in self._read()

    # writing ----------------------------------------------------------------------------------------------------------
    def append(self, entry: dict[str, Any]) -> LogLine:
        try:
            self._make_folder()
            with open(self.file, "a+b", buffering=0, opener=_open_private) as log:
                fcntl.flock(log, fcntl.LOCK_EX)  # two processes must not append after the same line
                key = self._key()
                alarm = self._missing_end(log, key)
                if alarm:
                    alarm_entry = {"run": "", "round": 0, "step": "alarm", "alarm": alarm}
                    self._write_line(log, key, alarm_entry)
                return self._write_line(log, key, entry)
        except OSError as error:
            raise cannot_write(self.file, error) from error

    def _make_folder(self) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)

    def _write_line(self, log: FileIO, key: bytes, entry: dict[str, Any]) -> LogLine:
        last, is_torn = _read_end(log, key)
        number = last.number + 1
        content = {"time": datetime.now(UTC).isoformat(), "number": number, **entry, "previous": last.tag}
        body = json.dumps(content).encode()
        tag = _mac(key, body)
        rest = memoryview((b"\n" if is_torn else b"") + body[:-1] + f', "tag": "{tag}"}}\n'.encode())
        while rest:
            rest = rest[log.write(rest) :]
        os.fsync(log.fileno())
        self._write_head(key, LogHead(number, tag, self._read_head(key).confirmed))
        return LogLine(number, last.tag, tag)

    def _missing_end(self, log: FileIO, key: bytes) -> str:
        """What is missing at the end of the log, by its head; empty if nothing is. A line that follows would wipe the
        trace of that."""
        try:
            head = LogHead.unseal(key, self.head_file.read_bytes())
        except OSError:
            return f"{self.head_file.name} was missing: nobody can tell whether lines were, too"
        if head is None:
            return f"{self.head_file.name} was not written with this key: it was altered"
        if not head.tag or _read_end(log, key)[0].tag == head.tag or self.has_tag(head.tag):
            return ""
        return f"line {head.number}, {head.tag}, was missing: the log was cut or rewritten"

    def _key(self) -> bytes:
        """The key of this log. When it is made, lines that were written without one are set aside. If there was a key
        before, the new one gets no head yet, so that the next line is an alarm."""
        if not self.key_file.exists():
            self._make_folder()
            old_lines = self._read()
            was_keyed = self.head_file.exists() or b'"tag": "' in old_lines
            if old_lines:
                self._set_aside(old_lines)
            try:
                create_key(self.key_file)
            except ConfigError:  # another process made it meanwhile
                return read_key(self.key_file)
            if not was_keyed:
                self._write_head(read_key(self.key_file), LogHead())
        return read_key(self.key_file)

    def _set_aside(self, lines: bytes) -> None:
        """Copy the lines to another file and empty this one, which another process may have open."""
        stamp = f"{datetime.now(UTC):%Y%m%dT%H%M%S%f}"
        write_atomically(self.file.with_name(f"{self.file.stem}.{stamp}.jsonl"), lines, mode=0o600)
        os.truncate(self.file, 0)

    def _read_head(self, key: bytes) -> LogHead:
        try:
            return LogHead.unseal(key, self.head_file.read_bytes()) or LogHead()
        except OSError:
            return LogHead()

    def _write_head(self, key: bytes, head: LogHead) -> None:
        write_atomically(self.head_file, head.seal(key), durable=False, mode=0o600)


def _open_private(file: str, flags: int) -> int:
    return os.open(file, flags, 0o600)


def _mac(key: bytes, data: bytes) -> str:
    return hmac.new(key, data, hashlib.sha256).hexdigest()


def _parse_line(key: bytes, line: bytes) -> LogLine | str:
    """A line; or what is wrong with it."""
    match = TAGGED_LINE.fullmatch(line)
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return NOT_WHOLE
    if match is None or not isinstance(entry, dict):
        return "altered, or put in: it has no tag"
    if not hmac.compare_digest(_mac(key, match[1] + b"}").encode(), match[2]):
        return "altered, or written with another key: its tag is wrong"
    return LogLine(int(entry["number"]), str(entry["previous"]), match[2].decode(), str(entry.get("alarm", "")))


def _check_lines(key: bytes, data: bytes) -> tuple[list[str], set[str]]:
    """What is wrong with the lines of a log, and the tags of those that are right."""
    lines = data.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    problems: list[str] = []
    tags: set[str] = set()
    last = NO_LINE
    last_place = 0
    for place, text in enumerate(lines, 1):
        line = _parse_line(key, text)
        if isinstance(line, str):
            problems.append(f"line {place}: {line}")
            continue
        if line.previous != last.tag:
            before = f"line {last_place}, the last that is right" if last_place else "the beginning"
            problems.append(f"line {place}: does not follow {before}: lines were removed, reordered or put in")
        if line.alarm:
            problems.append(f"line {place}: an alarm of this site: {line.alarm}")
        tags.add(line.tag)
        last, last_place = line, place
    return problems, tags


def _read_end(log: FileIO, key: bytes) -> tuple[LogLine, bool]:
    """The last line that is right, and whether the file ends within a line."""
    if not os.fstat(log.fileno()).st_size:
        return NO_LINE, False
    with mmap.mmap(log.fileno(), 0, access=mmap.ACCESS_READ) as text:
        is_torn = text[-1:] != b"\n"
        end = len(text) if is_torn else len(text) - 1
        while end >= 0:
            start = text.rfind(b"\n", 0, end) + 1
            line = _parse_line(key, text[start:end])
            if isinstance(line, LogLine):
                return line, is_torn
            end = start - 1
    return NO_LINE, is_torn
