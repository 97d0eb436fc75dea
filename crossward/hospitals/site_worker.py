"""The worker of a site: a process that holds torch and the images, and answers messages over a Unix socket.

python -m crossward.hospitals.site_worker SITE_FOLDER SOCKET [SITE_SETTINGS_AS_JSON]

A step that takes more minutes or more main memory than the site's limits allow is ended: the coordinator is told so,
and the whole process ends with it, because nothing less stops a computation. `crossward site up` starts it again.
"""

from __future__ import annotations

import json
import os
import socket as sockets
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import TYPE_CHECKING

from crossward.freed_memory import return_freed_memory
from crossward.hospitals.messages import SOCKET_FAMILY, SiteMessage, echoed_header, receive_message, send_message

if TYPE_CHECKING:
    from crossward.hospitals.site_limits import SiteLimits  # imports torch

Answer = Callable[[SiteMessage], SiteMessage]
WATCH_INTERVAL = 0.25  # seconds between two looks at a step that runs
OVER_LIMIT_EXIT = 75  # exit code of a worker that ended a step
STATUS_FILE = Path("/proc/self/status")  # of this process, where the system has it


def serve(
    answer: Answer,
    socket: Path,
    *,
    limits: SiteLimits | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> None:
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
                request = receive_message(connection)
                with _watched(connection, request, limits):
                    reply = _answer_or_failure(answer, request)
                send_message(connection, reply)


def _answer_or_failure(answer: Answer, request: SiteMessage) -> SiteMessage:
    """The answer. If an unexpected error occurs, this site's log gets the traceback and the coordinator gets only the
    type of the error: a traceback may quote what must not leave the hospital."""
    try:
        return answer(request)
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        failure = f"an error in the site's worker: {type(error).__name__}; see its log"
        return SiteMessage(echoed_header(request.header) | {"failure": failure})


@contextmanager
def _watched(connection: Connection, request: SiteMessage, limits: SiteLimits | None) -> Iterator[None]:
    """End this process, with an answer that says why, if the block exceeds the limits."""
    if limits is None:
        yield
        return
    is_over = threading.Event()
    handover = threading.Lock()  # either the watch answers, or the block goes on
    end = time.monotonic() + limits.minutes * 60

    def watch() -> None:
        while not is_over.wait(WATCH_INTERVAL):
            reason = _exceeded(limits, end)
            if reason:
                with handover:
                    if not is_over.is_set():
                        _end_step(connection, request, reason)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        with handover:
            is_over.set()
        watcher.join()


def _exceeded(limits: SiteLimits, end: float) -> str:
    """Which limit the step that runs exceeds; empty if none."""
    if time.monotonic() > end:
        return f"the step took longer than this site allows, limits.minutes = {limits.minutes:g}"
    if main_memory_mib() > limits.memory_mib:
        return_freed_memory()  # which the step does not need
    if main_memory_mib() > limits.memory_mib:
        return f"the step took more main memory than this site allows, limits.memory_mib = {limits.memory_mib}"
    return ""


def _end_step(connection: Connection, request: SiteMessage, reason: str) -> None:
    sys.stderr.write(f"a step was ended, and the worker with it: {reason}\n")
    sys.stderr.flush()
    with suppress(OSError):
        send_message(connection, SiteMessage(echoed_header(request.header) | {"failure": f"{reason}: it was ended"}))
    os._exit(OVER_LIMIT_EXIT)


def main_memory_mib() -> float:
    """Main memory that this process takes. Images that are mapped from files do not count: the system takes those pages
    back when it needs them. 0 where the system does not say."""
    try:
        lines = STATUS_FILE.read_text().splitlines()
    except OSError:
        return 0.0
    kib = {name: value for name, _, value in (line.partition(":") for line in lines)}
    return sum(int(kib.get(name, "0 kB").split()[0]) for name in ("RssAnon", "RssShmem")) / 1024


def main() -> None:
    """Answer for the site of a folder; settings given after it override those of its site.toml."""
    from crossward.data.reading_progress import ReadingLines, shown_by
    from crossward.freed_memory import return_memory_in_rests
    from crossward.hospitals.kit import read_site
    from crossward.hospitals.kit_files import SITE_FILE
    from crossward.hospitals.peers import read_identity
    from crossward.hospitals.policy import Policy
    from crossward.hospitals.receipts import SigningKey
    from crossward.hospitals.secure_demand import SecureDemand
    from crossward.hospitals.service import Hospital, Service
    from crossward.hospitals.site_activity import ACTIVITY_FILE, with_activity
    from crossward.hospitals.site_limits import SiteLimits
    from crossward.hospitals.site_privacy import read_budget
    from crossward.privacy.key_file import read_key

    folder, socket, *overrides = sys.argv[1:]
    kit = read_site(Path(folder))
    settings = dict(kit.settings)
    if overrides:
        settings |= json.loads(overrides[0])
    key = read_key(kit.memory_key) if kit.memory_key else None
    file = kit.folder / SITE_FILE
    limits = SiteLimits.read(file)
    hospital = Hospital(
        kit.name,
        kit.folder,
        settings,
        Policy.read(file),
        key,
        limits,
        read_budget(file),
        SigningKey.of_kit(kit),
        identity=read_identity(kit),
        secure=SecureDemand.read(file),
    )
    service = Service(hospital)
    service.log.begin()
    return_memory_in_rests()
    with shown_by(ReadingLines()):
        serve(with_activity(service.answer, kit.folder / ACTIVITY_FILE), Path(socket), limits=limits)


def is_listening(socket: Path) -> bool:
    """Whether a process accepts connections at a Unix socket."""
    with sockets.socket(sockets.AF_UNIX) as probe:
        return probe.connect_ex(str(socket)) == 0


if __name__ == "__main__":
    main()
