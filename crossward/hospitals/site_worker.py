"""A site's worker: it holds torch and the images, and answers one parcel after another over a socket of this machine.

python -m crossward.hospitals.site_worker SITE_FOLDER SOCKET [OWN_SETTINGS_AS_JSON]
"""

from __future__ import annotations

import json
import os
import socket as sockets
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Listener
from pathlib import Path

from crossward.hospitals.messages import FAMILY, Parcel, hand_over, repeated, take_in

Answer = Callable[[Parcel], Parcel]


def serve(answer: Answer, socket: Path, *, once: Callable[[], bool] = lambda: False) -> None:
    """Until the process ends, or `once` says that it is enough."""
    socket.unlink(missing_ok=True)
    before = os.umask(0o177)  # nobody else on this machine may talk to it
    try:
        listener = Listener(str(socket), FAMILY)
    finally:
        os.umask(before)
    with listener:
        while not once():
            with suppress(OSError, EOFError), listener.accept() as connection:  # a client that died asks again
                hand_over(connection, _answered(answer, take_in(connection)))


def _answered(answer: Answer, asked: Parcel) -> Parcel:
    """What nobody foresaw is told here in full, and to the coordinator by its name alone: a traceback may quote what
    must not leave."""
    try:
        return answer(asked)
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        return Parcel(
            repeated(asked.about) | {"failure": f"an error in the site's worker: {type(error).__name__}; see its log"}
        )


def main() -> None:
    """Answer for the site of a folder; what is given after it goes before what its site.toml says."""
    from crossward.hospitals.kit import read_site
    from crossward.hospitals.memory import read_key
    from crossward.hospitals.policy import Policy
    from crossward.hospitals.service import Hospital, Service

    folder, socket, *own = sys.argv[1:]
    kit = read_site(Path(folder))
    said = dict(kit.own) | (json.loads(own[0]) if own else {})
    key = read_key(kit.memory_key) if kit.memory_key else None
    hospital = Hospital(kit.name, kit.folder, said, Policy.read(kit.folder / "site.toml"), key)
    serve(Service(hospital).answer, Path(socket))


def running(socket: Path) -> bool:
    """Whether somebody listens there."""
    with sockets.socket(sockets.AF_UNIX) as probe:
        return probe.connect_ex(str(socket)) == 0


if __name__ == "__main__":
    main()
