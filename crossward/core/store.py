"""TreeStore: trees by client, in memory up to a budget and on disk beyond it."""

from __future__ import annotations

import tempfile
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path

from crossward.core import memory_budgets
from crossward.core.tree import Tree, decode, encode, sizes
from crossward.disk import cannot_write, write_atomically
from crossward.errors import StorageError


@dataclass
class StoredTree:
    """One state of one client's tree: in memory, in a file, or both. Its tree never changes."""

    tree: Tree | None
    file: str | None = None
    size: int = 0  # bytes


Snapshot = Mapping[int, StoredTree]  # the trees of all clients at one moment


class TreeStore(MutableMapping[int, Tree]):
    """Iterates by id. Files are never overwritten: a changed tree gets a new file, so that a checkpoint that names
    the old one stays whole until `discard_unnamed`. Another thread may `commit` a snapshot meanwhile."""

    def __init__(self, folder: Path | None = None, budget: int | None = None) -> None:
        """`budget` is bytes in memory; None: as much as clients' memory may take."""
        self._folder = folder
        self._budget = memory_budgets.budget("client memory") if budget is None else budget
        self._stored: dict[int, StoredTree] = {}
        self._warm: OrderedDict[int, None] = OrderedDict()  # whose tree is in memory, least recently used first
        self._bytes = 0  # of these
        self._version = 0
        self._files = threading.RLock()  # held from the writing of a file until its tree names it
        self._temporary: tempfile.TemporaryDirectory[str] | None = None

    def __getitem__(self, key: int) -> Tree:
        stored = self._stored[key]
        if stored.tree is None:
            assert stored.file is not None
            self._keep(key, StoredTree(self._read(stored.file), stored.file))
        self._warm.move_to_end(key)
        tree = self._stored[key].tree
        assert tree is not None
        return tree

    def __setitem__(self, key: int, tree: Tree) -> None:
        self._keep(key, StoredTree(tree))

    def __delitem__(self, key: int) -> None:
        self._forget(key)
        del self._stored[key]

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._stored))

    def __len__(self) -> int:
        return len(self._stored)

    def __contains__(self, key: object) -> bool:
        return key in self._stored

    @property
    def in_memory(self) -> bool:
        """Whether no tree has to be read from disk."""
        return len(self._warm) == len(self._stored)

    def snapshot(self) -> Snapshot:
        """The trees as they are now, without a copy of any."""
        return dict(self._stored)

    def commit(self, snapshot: Snapshot | None = None) -> dict[str, str]:
        """Write what of a snapshot, or of the present trees, is not on disk yet; the file of every client, by id, for a
        checkpoint."""
        chosen = self._stored if snapshot is None else snapshot
        return {str(key): self._in_a_file(key, chosen[key]) for key in sorted(chosen)}

    def restore(self, files: dict[str, str]) -> None:
        """Take up again what `commit` named."""
        self._warm.clear()
        self._bytes = 0
        self._stored = {int(key): StoredTree(None, name) for key, name in files.items()}
        self._version = max((int(name.split(".")[1]) for name in files.values()), default=0)
        if missing := [name for name in files.values() if not (self._directory() / name).is_file()]:
            raise StorageError("client memory is missing from the run directory", details=missing)

    def discard_unnamed(self, also_named: Collection[str] = (), snapshots: Iterable[Snapshot] = ()) -> None:
        """Delete files that no present tree lives in, none of these snapshots, and that are not `also_named`; only
        after the checkpoint that named them is gone."""
        with self._files:
            if self._folder is None or not self._folder.is_dir():
                return
            kept = [self._stored, *snapshots]
            named = {stored.file for trees in kept for stored in list(trees.values())} | {*also_named}
            for file in self._folder.iterdir():
                if file.name not in named:
                    file.unlink()

    def close(self) -> None:
        if self._temporary is not None:
            self._temporary.cleanup()

    def _keep(self, key: int, stored: StoredTree) -> None:
        self._forget(key)
        assert stored.tree is not None
        stored.size = sum(sizes(stored.tree).values())
        self._stored[key] = stored
        self._warm[key] = None
        self._bytes += stored.size
        while self._bytes > self._budget and len(self._warm) > 1:
            cold = next(iter(self._warm))
            self._in_a_file(cold, self._stored[cold])
            self._forget(cold)
            self._stored[cold].tree = None

    def _forget(self, key: int) -> None:
        """A client's tree does not count as one in memory any more."""
        if key in self._warm:
            del self._warm[key]
            self._bytes -= self._stored[key].size

    def _directory(self) -> Path:
        if self._folder is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="crossward-")
            self._folder = Path(self._temporary.name)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_write(self._folder, error) from error
        return self._folder

    def _in_a_file(self, key: int, stored: StoredTree) -> str:
        """The file that a tree lives in, which is written if there is none yet."""
        with self._files:
            if stored.file is None:
                assert stored.tree is not None
                self._version += 1
                name = f"{key:05d}.{self._version}.safetensors"
                write_atomically(self._directory() / name, encode(stored.tree), durable=self._temporary is None)
                stored.file = name
            return stored.file

    def _read(self, name: str) -> Tree:
        return read_tree(self._directory() / name)


def read_tree(file: Path) -> Tree:
    """The tree in a file; an error names the file."""
    try:
        return decode(file.read_bytes())
    except OSError as error:
        raise StorageError(f"cannot read {file}: {error.strerror}") from error
    except StorageError as error:
        raise StorageError(f"{file}: {error.what}", hint=error.hint) from None
