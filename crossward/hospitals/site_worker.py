"""The worker of a site: a process that holds torch and the images, and answers messages over a Unix socket.

python -m crossward.hospitals.site_worker SITE_FOLDER SOCKET [SITE_SETTINGS_AS_JSON]
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

from crossward.hospitals.messages import SOCKET_FAMILY, SiteMessage, echoed_header, receive_message, send_message

Answer = Callable[[SiteMessage], SiteMessage]


def serve(answer: Answer, socket: Path, *, should_stop: Callable[[], bool] = lambda: False) -> None:
    """Answer one message after another until the process ends, or `should_stop` returns true."""
    socket.unlink(missing_ok=True)
    previous_umask = os.umask(0o177)  # no other user of this machine may connect
    try:
        listener = Listener(str(socket), SOCKET_FAMILY)
    finally:
        os.umask(previous_umask)
    with listener:
        while not should_stop():
            with suppress(OSError, EOFError), listener.accept() as connection:  # a client that died asks again
                send_message(connection, _answer_or_failure(answer, receive_message(connection)))


def _answer_or_failure(answer: Answer, request: SiteMessage) -> SiteMessage:
    """The answer. If an unexpected error occurs, this site's log gets the traceback and the coordinator gets only the
    type of the error: a traceback may quote what must not leave the hospital."""
    try:
        return answer(request)
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        failure = f"an error in the site's worker: {type(error).__name__}; see its log"
        return SiteMessage(echoed_header(request.header) | {"failure": failure})


def main() -> None:
    """Answer for the site of a folder; settings given after it override those of its site.toml."""
    from crossward.hospitals.kit import read_site
    from crossward.hospitals.memory import read_memory_key
    from crossward.hospitals.policy import Policy
    from crossward.hospitals.service import Hospital, Service

    folder, socket, *overrides = sys.argv[1:]
    kit = read_site(Path(folder))
    settings = dict(kit.settings)
    if overrides:
        settings |= json.loads(overrides[0])
    key = read_memory_key(kit.memory_key) if kit.memory_key else None
    hospital = Hospital(kit.name, kit.folder, settings, Policy.read(kit.folder / "site.toml"), key)
    serve(Service(hospital).answer, Path(socket))


def is_listening(socket: Path) -> bool:
    """Whether a process accepts connections at a Unix socket."""
    with sockets.socket(sockets.AF_UNIX) as probe:
        return probe.connect_ex(str(socket)) == 0


if __name__ == "__main__":
    main()
