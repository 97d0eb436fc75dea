"""A process that decodes: it follows the commands of the process that started it, and ends with it.

Messages both ways are JSON over a socket pair. Decoded segments go into the cache folder, and only their keys back, so
that what was decoded is there even if the process that asked for it has gone.
"""

from __future__ import annotations

import json
import signal
import sys
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from crossward.core.image_size import as_size, sides
from crossward.data.archives import open_files
from crossward.data.decode import Frame
from crossward.data.segments import ImagePaths, decode_segment, key_of, store_segment

FAILED = 3  # exit code after an error: the parent decodes the segment itself, and meets it


def serve(connection: Connection) -> None:
    """Decode one segment after another until the parent closes the connection."""
    opening: dict[str, Any] = json.loads(connection.recv_bytes())
    settings = opening["frame"]
    size = as_size(*sides(settings["size"]))
    frame = Frame(**settings | {"prepare": tuple(settings["prepare"]), "size": size})
    cache = Path(opening["cache"])
    with open_files(Path(opening["root"])) as files:
        while True:
            rows = [ImagePaths(*row) for row in json.loads(connection.recv_bytes())]
            segment = decode_segment(files, frame, rows)
            key = key_of(segment, rows, frame)
            store_segment(cache, key, segment)
            connection.send_bytes(key.encode())


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    with suppress(EOFError, ConnectionError):  # the parent has gone, perhaps in the middle of a message
        try:
            serve(Connection(int(sys.argv[1])))
        except (EOFError, ConnectionError):
            raise
        except Exception:
            sys.exit(FAILED)


if __name__ == "__main__":
    main()
