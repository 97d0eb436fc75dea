"""Parcel: a tree on its way between the pool and one of its workers, without a codec.

The tensors lie one after another in memory that both processes map: it is written once and not copied again, and all
workers map the same payload. The memory has no name (memfd), so that nothing is left behind however a process ends, and
the size of /dev/shm does not bound it. Small trees, and all where the system has no such memory or none left, pass
through the socket instead. Whoever receives a tree may write to it: what is written stays in that process.
"""

from __future__ import annotations

import json
import math
import os
import socket
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch
from torch import Tensor

from crossward.core.tree import Tree, flatten, unflatten

SMALL = 1 << 18  # bytes, that pass through the socket as quickly
ALIGNED = 64  # bytes
MARK = b"m"  # goes with the handle of the memory: a message must have a byte


class Place(NamedTuple):
    """Where a tensor lies in the memory."""

    path: str
    dtype: str
    shape: list[int]
    offset: int
    size: int  # bytes


class Parcel:
    """A tree that is packed. It may be sent to several workers, and is to be closed by whoever packed it."""

    def __init__(self, tree: Tree) -> None:
        self._memory: int | None = None
        tensors, outline = flatten(tree)
        self._tensors = {path: tensor.detach().cpu().contiguous() for path, tensor in tensors.items()}
        self._places = list(_places(self._tensors))
        self._size = self._places[-1].offset + self._places[-1].size if self._places else 0
        self._memory = self._in_memory() if self._size > SMALL else None
        label = {"outline": outline, "places": self._places, "size": self._size, "shared": self._memory is not None}
        self._label = json.dumps(label).encode()
        self._bytes = b"" if self._memory is not None else self._joined()
        self._tensors = {}

    def send(self, connection: Connection) -> None:
        connection.send_bytes(self._label)
        if self._memory is not None:
            with socket.socket(fileno=os.dup(connection.fileno())) as link:
                socket.send_fds(link, [MARK], [self._memory])
        elif self._size:
            connection.send_bytes(self._bytes)

    def close(self) -> None:
        """Give up this process's hold of the memory; those who have received it keep theirs."""
        if self._memory is not None:
            os.close(self._memory)
            self._memory = None

    def __enter__(self) -> Parcel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def _in_memory(self) -> int | None:
        """The handle of shared memory that holds the tensors; None where there is none to be had."""
        if not hasattr(os, "memfd_create"):
            return None
        try:
            handle = os.memfd_create("crossward-parcel")
        except OSError:
            return None
        try:
            os.ftruncate(handle, self._size)
            for place in self._places:
                _write(handle, _bytes_of(self._tensors[place.path]), place.offset)
        except OSError:  # no memory left. Written by a call, it fails here; written through a map, it would kill us
            os.close(handle)
            return None
        return handle

    def _joined(self) -> bytes:
        data = bytearray(self._size)
        for place in self._places:
            data[place.offset : place.offset + place.size] = _bytes_of(self._tensors[place.path])
        return bytes(data)


def receive(connection: Connection) -> Tree:
    """The tree of the next parcel."""
    label = json.loads(connection.recv_bytes())
    places = [Place(*place) for place in label["places"]]
    tensors = _tensors(places, _received_memory(connection, label))
    return unflatten(tensors, label["outline"])


def _received_memory(connection: Connection, label: Mapping[str, Any]) -> torch.UntypedStorage:
    if not label["shared"]:
        data = bytearray(connection.recv_bytes()) if label["size"] else bytearray(1)
        return torch.frombuffer(data, dtype=torch.uint8).untyped_storage()
    with socket.socket(fileno=os.dup(connection.fileno())) as link:
        mark, handles, _, _ = socket.recv_fds(link, len(MARK), 1)
    if not mark or not handles:
        raise EOFError
    try:
        return _mapped(handles[0], label["size"])
    finally:
        os.close(handles[0])


def _mapped(handle: int, size: int) -> torch.UntypedStorage:
    """Privately: what a method writes to its payload is not seen by other workers. By torch: Python's mmap would keep
    the handle as long as a tensor lives, and a process may have a thousand of them."""
    storage = torch.UntypedStorage.from_file(f"/proc/self/fd/{handle}", shared=False, nbytes=size)
    assert isinstance(storage, torch.UntypedStorage)
    return storage


def _places(tensors: Mapping[str, Tensor]) -> Iterator[Place]:
    offset = 0
    for path, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        yield Place(path, str(tensor.dtype).removeprefix("torch."), list(tensor.shape), offset, size)
        offset = math.ceil((offset + size) / ALIGNED) * ALIGNED


def _tensors(places: list[Place], memory: torch.UntypedStorage) -> dict[str, Tensor]:
    """Each keeps the memory of all; it goes with the last of them."""
    tensors = {}
    for place in places:
        dtype: torch.dtype = getattr(torch, place.dtype)
        tensor = torch.empty(0, dtype=dtype)
        strides = torch.empty(place.shape, dtype=dtype, device="meta").stride()
        tensors[place.path] = tensor.set_(memory, place.offset // dtype.itemsize, place.shape, strides)
    return tensors


def _bytes_of(tensor: Tensor) -> memoryview:
    flat = tensor.reshape(-1)
    return flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b"")


def _write(handle: int, data: memoryview, offset: int) -> None:
    while data:
        written = os.pwrite(handle, data, offset)
        data, offset = data[written:], offset + written
