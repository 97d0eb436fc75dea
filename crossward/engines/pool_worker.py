"""A worker process of the pool: holds the sites, runs one job at a time, and ends with its parent.

Messages both ways pass a socket pair: JSON, then trees as parcels. The sites come once, pickled by the parent that
started this process.
"""

from __future__ import annotations

import json
import pickle
import signal
import sys
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import torch

from crossward.core.engine import Job, Sites, run_job
from crossward.core.tree import Tree
from crossward.engines.parcel import Parcel, receive
from crossward.errors import CrosswardError, as_words
from crossward.freed_memory import keep_freed_memory


def serve(connection: Connection) -> None:
    """Follow the parent's commands until it closes the connection."""
    sites: Sites | None = None
    opening_error = ""  # why the sites could not be opened; reported with the first job
    payloads: dict[str, Tree] = {}
    while True:
        message: dict[str, Any] = json.loads(connection.recv_bytes())
        match message["command"]:
            case "open":
                torch.set_num_threads(message["threads"])
                sys.path[:] = message["path"]  # so that a net or a method beside the user's script is found
                sites = None
                payloads = {}
                try:
                    sites = pickle.loads(connection.recv_bytes())  # from the parent alone
                except Exception:
                    opening_error = traceback.format_exc()
            case "payload":
                payloads = {}  # the one before is given back first
                payloads = {message["key"]: receive(connection)}
            case "job":
                memory = receive(connection)
                if sites is None:
                    _send_json(connection, {"crash": opening_error})
                else:
                    _run(connection, sites, Job(**message["job"]), payloads[message["key"]], memory)


def _run(connection: Connection, sites: Sites, job: Job, down: Tree, memory: Tree) -> None:
    """Run a job and send its outcome and the memory to keep; or the error, in words where it is for people."""
    try:
        outcome, memory = run_job(sites, job, down, memory)
        trees = [Parcel(outcome.reply), Parcel(memory if job.keep else {})]
    except CrosswardError as error:
        _send_json(connection, {"error": as_words(error)})
        return
    except Exception:
        _send_json(connection, {"crash": traceback.format_exc()})
        return
    _send_json(connection, {"failure": outcome.failure, "losses": outcome.losses})
    for parcel in trees:
        parcel.send(connection)
        parcel.close()


def _send_json(connection: Connection, message: dict[str, Any]) -> None:
    connection.send_bytes(json.dumps(message).encode())


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    keep_freed_memory()
    with suppress(EOFError, OSError):  # the parent has gone, perhaps in the middle of a message
        serve(Connection(int(sys.argv[1])))


if __name__ == "__main__":
    main()
