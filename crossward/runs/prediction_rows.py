"""The rows that a prediction is written as: CSV that is safe to open in a spreadsheet, or JSON lines."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TextIO

Cells = list[tuple[str, Any]]  # column and value; not a dict, for a class may be called "image"
FORMULA = ("=", "+", "-", "@")  # what a spreadsheet takes for the beginning of a formula


@dataclass(frozen=True)
class ClassRow:
    """An image that was classified."""

    image: str
    predicted: str
    probabilities: Mapping[str, float]

    def cells(self) -> Cells:
        shares = [(name, f"{p:.6f}") for name, p in self.probabilities.items()]
        return [("image", self.image), ("predicted", self.predicted), *shares]

    def document(self) -> dict[str, Any]:
        shares = {name: round(p, 6) for name, p in self.probabilities.items()}
        return {"image": self.image, "predicted": self.predicted, "probabilities": shares}


@dataclass(frozen=True)
class MaskRow:
    """An image that was segmented: the pixels of each class in its mask, which has the image's own size."""

    image: str
    mask: str
    width: int
    height: int
    pixels: Mapping[str, int]

    def shares(self) -> dict[str, float]:
        return {name: count / (self.width * self.height) for name, count in self.pixels.items()}

    def cells(self) -> Cells:
        return [
            ("image", self.image),
            ("mask", self.mask),
            ("width", self.width),
            ("height", self.height),
            *((f"pixels of {name}", count) for name, count in self.pixels.items()),
            *((f"share of {name}", f"{share:.6f}") for name, share in self.shares().items()),
        ]

    def document(self) -> dict[str, Any]:
        size = {"width": self.width, "height": self.height}
        return {"image": self.image, "mask": self.mask, **size, "pixels": dict(self.pixels)}


@dataclass(frozen=True)
class GroupRow:
    """A patient, or whatever the images of a group have in common."""

    group: str
    images: int
    predicted: str
    agreement: float  # share of its images whose own prediction is the group's
    probabilities: Mapping[str, float]  # mean over its images

    def cells(self) -> Cells:
        return [
            ("group", self.group),
            ("images", self.images),
            ("predicted", self.predicted),
            ("agreement", f"{self.agreement:.6f}"),
            *((f"mean of {name}", f"{p:.6f}") for name, p in self.probabilities.items()),
        ]

    def document(self) -> dict[str, Any]:
        means = {name: round(p, 6) for name, p in self.probabilities.items()}
        found = {"predicted": self.predicted, "agreement": round(self.agreement, 6)}
        return {"group": self.group, "images": self.images, **found, "probabilities": means}


@dataclass(frozen=True)
class ProblemRow:
    """An image that could not be read."""

    image: str
    problem: str

    def cells(self) -> Cells:
        return [("image", self.image), ("problem", self.problem)]

    def document(self) -> dict[str, Any]:
        return dict(self.cells())


Row = ClassRow | MaskRow | GroupRow | ProblemRow


class Sheet(Protocol):
    def write(self, rows: Sequence[Row]) -> None:
        """Write the rows and flush: what is predicted is on the disk."""
        ...


class CsvSheet:
    """A header and a line for each row; control characters are escaped, and no cell begins a formula."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._writer = csv.writer(stream)
        self._has_header = False

    def write(self, rows: Sequence[Row]) -> None:
        for row in rows:
            columns, values = zip(*row.cells(), strict=True)
            if not self._has_header:
                self._writer.writerow(map(csv_cell, columns))
                self._has_header = True
            self._writer.writerow(csv_cell(value) if isinstance(value, str) else value for value in values)
        self._stream.flush()


class JsonLines:
    """A JSON object for each row, with names as they are."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, rows: Sequence[Row]) -> None:
        self._stream.writelines(json.dumps(row.document()) + "\n" for row in rows)
        self._stream.flush()


def csv_cell(text: str) -> str:
    r"""The text on one line: line breaks, control characters and bytes that are no text as \n, \x1b, \udcff; an
    apostrophe before what a spreadsheet would calculate."""
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return f"'{line}" if line.startswith(FORMULA) else line
