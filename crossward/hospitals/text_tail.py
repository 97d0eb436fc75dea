"""TextTail: the lines that a text file, such as a log, has got since it was looked at last."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

MAX_READ = 2**24  # bytes of new lines that are read at once: a round of a thousand sites is one


@dataclass
class TextTail:
    """The whole lines that a file has got since the last look."""

    file: Path
    offset: int = 0

    def skip(self) -> None:
        """Leave out what is there now."""
        self.offset = self.file.stat().st_size if self.file.exists() else 0

    def new_lines(self) -> list[str]:
        try:
            with self.file.open("rb") as text:
                if text.seek(0, 2) < self.offset:  # it was cut back, or begins anew
                    self.offset = 0
                text.seek(self.offset)
                content = text.read(MAX_READ)
        except FileNotFoundError:
            return []
        whole = content if len(content) == MAX_READ else content[: content.rfind(b"\n") + 1]
        self.offset += len(whole)
        return whole.decode(errors="replace").splitlines()
