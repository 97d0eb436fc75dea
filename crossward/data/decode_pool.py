"""Decoding by worker processes: as many as the machine has processors and memory for, where the work pays for them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path

from crossward.core.cores import usable_cores
from crossward.core.machine_memory import available_bytes
from crossward.data.archives import Files, FolderFiles, ZipFiles
from crossward.data.decode import Frame
from crossward.data.sealed_files import digest
from crossward.data.segments import (
    ImagePaths,
    Segment,
    by_file,
    decode_segment,
    joined_segments,
    key_of,
    paths_of,
    segment_file,
    store_segment,
    stored_segment,
)

PROBED = 0.4  # s of decoding here, by which the time of all is judged
PAYS = 2.0  # s of work that is left: for less, starting processes takes longer than it saves
MEMORY = 512 << 20  # bytes for each process: itself, and a large image while it is decoded
PACKAGE = str(Path(__file__).parents[2])  # the folder that holds the package
KILLS = "cannot be decoded: the library that decodes it crashes, or takes more memory than there is"


@dataclass(frozen=True)
class Piece:
    """Rows that are decoded together, and the key of the segment by what their files held when they were listed."""

    rows: Sequence[ImagePaths]
    key: str


class DecodeProcess:
    """A process that decodes, as its parent sees it. It is a program of its own, so that a user's script needs no
    `if __name__ == "__main__"`."""

    def __init__(self, root: Path, frame: Frame, cache: Path) -> None:
        ours, theirs = socket.socketpair()
        # -P: not the crossward that may lie in the working folder, but this one
        command = [sys.executable, "-P", "-m", "crossward.data.decode_worker", str(theirs.fileno())]
        places = [PACKAGE, *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(places)}
        # what libraries write of an image while they decode it is not for our terminal, nor for a log
        self.process = subprocess.Popen(
            command,
            pass_fds=[theirs.fileno()],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        theirs.close()
        self.connection = Connection(ours.detach())
        self.piece: int | None = None  # that it decodes
        self._send({"root": str(root), "frame": asdict(frame), "cache": str(cache)})

    def start(self, piece: int, rows: Sequence[ImagePaths]) -> None:
        """Hand it a piece. If it has died, reading the reply will raise."""
        self.piece = piece
        self._send([astuple(row) for row in rows])

    def receive(self) -> str:
        """The key of the segment that it stored; afterwards it is free."""
        key = self.connection.recv_bytes().decode()
        self.piece = None
        return key

    def ended_by(self) -> int:
        """The signal that ended it, a crash or the system for want of memory; 0 if it ended by itself."""
        return max(0, -self.process.wait())

    def stop(self) -> None:
        self.connection.close()
        self.process.kill()
        self.process.wait()

    def _send(self, message: object) -> None:
        with suppress(OSError):
            self.connection.send_bytes(json.dumps(message).encode())


def worker_count() -> int:
    """How many processes help here."""
    available = available_bytes()
    return usable_cores() if available is None else max(1, min(usable_cores(), available // MEMORY))


def decoded_segments(files: Files, pieces: Sequence[Piece], frame: Frame, cache: Path) -> Generator[Segment]:
    """The segments in order: those that an earlier reading stored, the others decoded. The first are decoded here; if
    the rest will take long, by processes, each stored as soon as it is decoded."""
    spent = 0.0
    rows = 0
    left = sum(len(piece.rows) for piece in pieces)
    for place, piece in enumerate(pieces):
        left -= len(piece.rows)
        if (stored := stored_segment(cache, piece.key)) is not None:
            yield stored
            continue
        if rows and spent > PROBED and spent / rows * left > PAYS:
            yield from _stored_as_they_come(files, pieces[place:], frame, cache)
            return
        start = time.perf_counter()
        segment = decode_segment(files, frame, piece.rows)
        spent += time.perf_counter() - start
        rows += len(piece.rows)
        yield segment


def _stored_as_they_come(files: Files, pieces: Sequence[Piece], frame: Frame, cache: Path) -> Generator[Segment]:
    workers = worker_count() if isinstance(files, FolderFiles | ZipFiles) else 1
    if workers > 1:
        with_processes = _DecodePool(files, pieces, frame, cache)
        try:
            yield from with_processes.segments(min(workers, len(pieces)))
        finally:
            with_processes.stop()
        return
    for piece in pieces:
        segment = stored_segment(cache, piece.key)
        if segment is None:
            segment = decode_segment(files, frame, piece.rows)
            store_segment(cache, key_of(segment, piece.rows, frame), segment)
        yield segment


class _DecodePool:
    """Processes that decode the pieces of one reading."""

    def __init__(self, files: Files, pieces: Sequence[Piece], frame: Frame, cache: Path) -> None:
        self.files = files
        self.pieces = pieces
        self.frame = frame
        self.cache = cache
        self.processes: list[DecodeProcess] = []
        self.keys: dict[int, str] = {}  # of pieces that are decoded
        self.met: dict[int, Segment] = {}  # of pieces that a process could not decode

    def segments(self, workers: int) -> Generator[Segment]:
        """The segments in order, while the processes go ahead."""
        waiting = deque(place for place, piece in enumerate(self.pieces) if not self._is_stored(place, piece))
        self.processes = [self._new_process() for _ in range(min(workers, len(waiting)))]
        for place, piece in enumerate(self.pieces):
            self._hand_out(waiting)
            while place not in self.keys and place not in self.met and self.processes:
                self._receive()
                self._hand_out(waiting)
            key = self.keys.get(place, piece.key)
            segment = self.met.pop(place, None) or stored_segment(self.cache, key)
            # None: no process could be started, or another reading of these files has ended and removed its segments
            yield decode_segment(self.files, self.frame, piece.rows) if segment is None else segment

    def stop(self) -> None:
        for process in self.processes:
            process.stop()

    def _new_process(self) -> DecodeProcess:
        return DecodeProcess(self.files.root, self.frame, self.cache)

    def _is_stored(self, place: int, piece: Piece) -> bool:
        if not segment_file(self.cache, piece.key).exists():
            return False
        self.keys[place] = piece.key
        return True

    def _hand_out(self, waiting: deque[int]) -> None:
        free = [process for process in self.processes if process.piece is None]
        for process in free[: len(waiting)]:
            place = waiting.popleft()
            process.start(place, self.pieces[place].rows)

    def _receive(self) -> None:
        """Wait for a process. One that was killed is replaced, one that ended by itself is not."""
        busy = {process.connection: process for process in self.processes if process.piece is not None}
        for connection in wait(list(busy)):
            process = busy[connection]  # type: ignore[index]
            place = process.piece
            assert place is not None
            try:
                self.keys[place] = process.receive()
            except (EOFError, OSError):
                killed = process.ended_by()
                process.stop()
                self.processes.remove(process)
                rows = self.pieces[place].rows
                if killed:
                    self.processes.append(self._new_process())
                    self.met[place] = self._one_by_one(rows)
                else:  # an error of ours or of the machine's: it is met again here, where it can be reported
                    self.met[place] = decode_segment(self.files, self.frame, rows)

    def _one_by_one(self, rows: Sequence[ImagePaths]) -> Segment:
        """The rows of a piece that killed its process, each file by itself: those that do so again are bad."""
        process = self._new_process()
        pieces = []
        for some in by_file(rows):
            process.start(0, some)
            try:
                segment = stored_segment(self.cache, process.receive())
            except (EOFError, OSError):
                killed = process.ended_by()
                process.stop()
                process = self._new_process()
                segment = self._unusable(some, killed) if killed else None
            pieces.append((some, segment or decode_segment(self.files, self.frame, some)))
        process.stop()
        return joined_segments(pieces)

    def _unusable(self, rows: Sequence[ImagePaths], killed: int) -> Segment:
        """Rows of a file that no process survives. After a crash its digest is noted, so that it is not tried again;
        what the system has killed for want of memory is, at the next reading."""
        bad = [[place, KILLS] for place in range(len(rows))]
        known = ["" if killed == signal.SIGKILL else digest(self.files.read(path)) for path in paths_of(rows)]
        return Segment([], bad, [], known, b"")
