"""A worker process of the pool: holds the sites, carries out one job at a time, and ends with its parent.

Messages both ways are bytes over a socket pair. The sites come once, pickled by the parent that started this process;
payloads, memories and replies are encoded trees.
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

from crossward.core.engine import Job, Sites, carry_out
from crossward.core.tree import Tree, decode, encode


def serve(connection: Connection) -> None:
    sites: Sites | None = None
    unopened = ""  # why the sites could not be opened; told with the first job
    payloads: dict[str, Tree] = {}
    while True:
        message: dict[str, Any] = json.loads(connection.recv_bytes())
        match message["do"]:
            case "open":
                torch.set_num_threads(message["threads"])
                sys.path[:] = message["path"]  # so that a net or a method beside the user's script is found
                sites, payloads = None, {}
                try:
                    sites = pickle.loads(connection.recv_bytes())  # our own parent made it
                except Exception:
                    unopened = traceback.format_exc()
            case "payload":
                payloads = {message["key"]: decode(connection.recv_bytes())}
            case "job":
                memory = decode(connection.recv_bytes())
                if sites is None:
                    connection.send_bytes(json.dumps({"crash": unopened}).encode())
                else:
                    _reply(connection, sites, Job(**message["job"]), payloads[message["key"]], memory)


def _reply(connection: Connection, sites: Sites, job: Job, down: Tree, memory: Tree) -> None:
    try:
        outcome, memory = carry_out(sites, job, down, memory)
    except Exception:
        connection.send_bytes(json.dumps({"crash": traceback.format_exc()}).encode())
        return
    told = {"failure": outcome.failure, "losses": outcome.losses}
    connection.send_bytes(json.dumps(told).encode())
    connection.send_bytes(encode(outcome.reply))
    connection.send_bytes(encode(memory if job.keep else {}))


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    with suppress(EOFError, OSError):  # the parent has gone, perhaps in the middle of a message
        serve(Connection(int(sys.argv[1])))


if __name__ == "__main__":
    main()
