"""RunDir: the folder of one run, described in docs/run-directory.md. Reports and tools read this and nothing else."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from glob import escape
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock, Timeout
from pydantic_core import from_json
from torch import Tensor

from crossward.core.store import read_tree
from crossward.core.tree import Tree, encode
from crossward.data.shown_pixels import shown_pixels
from crossward.disk import cannot_write, present, write_atomically
from crossward.errors import StorageError
from crossward.runs import pictures
from crossward.runs.run_files import FAILURE

FORMAT = 1
LOOK = 0.5  # seconds between two looks at a lock
FAST = 1  # how hard to compress: masks become small anyway


class RunDir:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def create(cls, folder: Path) -> RunDir:
        """A new run directory; a folder that cannot be written, or holds a run, is refused now."""
        if present(folder / "run.json"):
            raise StorageError(
                f"{folder} already holds a run",
                hint=f"Go on with it by `crossward resume {folder}`, or choose another run.name.",
            )
        try:
            for sub in ("predictions", "weights", "checkpoint/memory"):
                (folder / sub).mkdir(parents=True, exist_ok=True)
            (folder / "metrics.jsonl").touch()
            (folder / "traffic.jsonl").touch()
        except OSError as error:
            raise cannot_write(folder, error) from error
        return cls(folder)

    @classmethod
    def open(cls, folder: Path) -> RunDir:
        """An existing run directory of a format that this version reads."""
        self = cls(folder)
        if not (folder / "run.json").is_file():
            raise StorageError(f"{folder} is not a run directory: it has no run.json")
        stored_format = self.about.get("format")
        if stored_format != FORMAT:
            raise StorageError(f"{folder} is of format {stored_format}; this crossward reads format {FORMAT}")
        return self

    @contextmanager
    def locked(self, wait: float = 0.0) -> Iterator[None]:
        """Keep other processes from running in this folder; the system releases the lock when we end, however we end.
        Another process that holds it is given `wait` seconds to end."""
        file = self.folder / "checkpoint" / "lock"
        lock = FileLock(file, timeout=wait, poll_interval=LOOK)
        try:
            lock.acquire()
        except Timeout:
            raise StorageError(
                f"another process is running {self.folder}", hint="Wait for it to end, or stop it."
            ) from None
        except OSError as error:
            raise cannot_write(file, error) from error
        try:
            yield
        finally:
            lock.release()

    # single documents ------------------------------------------------------------------------------------------------
    @property
    def about(self) -> dict[str, Any]:
        """run.json: format, versions, status, configuration."""
        return self.read("run.json")

    def read(self, name: str) -> dict[str, Any]:
        try:
            document = json.loads((self.folder / name).read_text())
        except (OSError, ValueError) as error:
            raise StorageError(f"cannot read {self.folder / name}: {error}") from None
        if not isinstance(document, dict):
            raise StorageError(f"{self.folder / name} is damaged: it holds no JSON object")
        return document

    def write(self, name: str, document: Mapping[str, Any], indent: int | None = 1) -> None:
        """`indent` is for people; without it, what is large is written ten times as fast."""
        write_atomically(self.folder / name, (json.dumps(document, indent=indent) + "\n").encode())

    @property
    def described(self) -> bool:
        """Whether run.json is there: a run across hospitals has none until its sites are gathered."""
        return (self.folder / "run.json").exists()

    def mark(self, status: str, **more: Any) -> None:
        self.write("run.json", self.about | {"status": status} | more)

    def fail(self, why: str) -> None:
        """Say that the run failed, also of one that failed before it had a run.json."""
        if self.described:
            self.mark("failed", error=why)
        else:
            self.write(FAILURE, {"error": why})

    # one line a round ------------------------------------------------------------------------------------------------
    def append(self, name: str, lines: Iterable[Mapping[str, Any]]) -> None:
        file = self.folder / name
        try:
            with file.open("a") as out:
                out.writelines(json.dumps(line) + "\n" for line in lines)
                out.flush()
                os.fsync(out.fileno())
        except OSError as error:
            raise cannot_write(file, error) from error

    def lines(self, name: str) -> list[dict[str, Any]]:
        """Whole lines only: a last line that a crash cut short is not there."""
        return list(self.each_line(name))

    def each_line(self, name: str) -> Iterator[dict[str, Any]]:
        """The same lines one by one, for files that would fill the memory: metrics.jsonl of a long run."""
        try:
            with (self.folder / name).open("rb") as file:
                for line in file:
                    if line.endswith(b"\n"):
                        yield from_json(line)  # three times as fast as json.loads
        except (OSError, ValueError) as error:
            raise StorageError(f"cannot read {self.folder / name}: {error}") from None

    def forget_after(self, round: int) -> None:
        """Drop what was written after the last checkpoint: those rounds run again."""
        for name in ("metrics.jsonl", "traffic.jsonl"):
            kept = [line for line in self.lines(name) if line["round"] <= round]
            write_atomically(self.folder / name, "".join(json.dumps(line) + "\n" for line in kept).encode())
        for number in self.predicted_rounds():
            if number > round:
                self.forget_predictions(number)
        for file in (self.folder / "pictures").glob("*-round-*.png"):
            if int(file.stem.rpartition("-round-")[2]) > round:
                file.unlink()

    # trees -----------------------------------------------------------------------------------------------------------
    def keep(self, name: str, tree: Tree) -> None:
        write_atomically(self.folder / name, encode(tree))

    def tree(self, name: str) -> Tree:
        return read_tree(self.folder / name)

    def keep_picture(self, name: str, images: Tensor, classes: Sequence[str]) -> None:
        """(K, n, H, W, C) bytes as a PNG, a row for each class."""
        pictures.write(self.folder / "pictures" / f"{name}.png", pictures.grid(shown_pixels(images), classes))

    def keep_overlay(self, site: str, round: int, images: Tensor, labels: Sequence[str]) -> None:
        """(n, columns, H, W, C) bytes as a PNG, in place of the site's last one."""
        place = self.folder / "pictures"
        before = [*place.glob(f"{escape(f'overlay-{site}')}-round-*.png")]
        pictures.write(place / f"overlay-{site}-round-{round:04d}.png", pictures.grid(images, labels))
        for file in before:
            if not file.stem.endswith(f"-{round:04d}"):
                file.unlink()

    def keep_predictions(self, name: str, predictions: Mapping[str, Tree]) -> None:
        packed = {site: {part: pack(t) for part, t in parts.items()} for site, parts in predictions.items()}
        self.keep(f"predictions/{name}.safetensors", packed)

    def predicted_rounds(self) -> list[int]:
        """The rounds whose predictions are here."""
        files = (self.folder / "predictions").glob("round-*.safetensors")
        return sorted(int(file.stem.removeprefix("round-")) for file in files)

    def forget_predictions(self, round: int) -> None:
        (self.folder / "predictions" / f"round-{round:04d}.safetensors").unlink(missing_ok=True)

    def predictions(self, name: str) -> dict[str, dict[str, Tensor]]:
        """By site and set: a round ("round-0003") or the truth ("targets")."""
        tree = self.tree(f"predictions/{name}.safetensors")
        return {site: {part: unpack(t) for part, t in parts.items()} for site, parts in tree.items()}


def pack(values: Tensor) -> Tensor | Tree:
    """Masks: of two classes at one bit a pixel, of several compressed. Everything else as it is."""
    if values.dtype != torch.uint8 or values.ndim < 3:
        return values
    shape = torch.tensor(values.shape)
    if values.numel() and int(values.max()) > 1:
        squeezed = zlib.compress(values.contiguous().numpy().tobytes(), FAST)
        return {"zlib": torch.from_numpy(np.frombuffer(bytearray(squeezed), np.uint8)), "shape": shape}
    bits = torch.from_numpy(np.packbits(values.numpy().reshape(-1)))
    return {"bits": bits, "shape": shape}


def unpack(stored: Tensor | Tree) -> Tensor:
    if isinstance(stored, Tensor):
        return stored
    shape = stored["shape"].tolist()
    count = int(np.prod(shape))
    if "zlib" in stored:
        pixels = zlib.decompressobj().decompress(stored["zlib"].numpy().tobytes(), count)
        return torch.from_numpy(np.frombuffer(bytearray(pixels), np.uint8)).view(shape)
    return torch.from_numpy(np.unpackbits(stored["bits"].numpy(), count=count)).view(shape)
