"""TreeStore: trees by client, in memory up to a budget and on disk beyond it."""

from __future__ import annotations

import tempfile
from collections import OrderedDict
from collections.abc import Collection, Iterator, MutableMapping
from pathlib import Path

from crossward.core.tree import Tree, decode, encode, sizes
from crossward.disk import cannot_write, write_atomically
from crossward.errors import StorageError

BUDGET = 256 * 2**20


class TreeStore(MutableMapping[int, Tree]):
    """Iterates by id. Files are never overwritten: a changed tree gets a new file, so that a checkpoint that names
    the old one stays whole until `discard_unnamed`."""

    def __init__(self, folder: Path | None = None, budget: int = BUDGET) -> None:
        self._folder = folder
        self._budget = budget
        self._warm: OrderedDict[int, tuple[Tree, int]] = OrderedDict()  # least recently used first, with its bytes
        self._bytes = 0
        self._files: dict[int, str] = {}  # the file that holds the present tree of a client
        self._version = 0
        self._temporary: tempfile.TemporaryDirectory[str] | None = None

    def __getitem__(self, key: int) -> Tree:
        if key in self._warm:
            self._warm.move_to_end(key)
            return self._warm[key][0]
        tree = self._read(self._files[key])
        self._keep(key, tree)
        return tree

    def __setitem__(self, key: int, tree: Tree) -> None:
        self._files.pop(key, None)
        self._keep(key, tree)

    def __delitem__(self, key: int) -> None:
        if key not in self:
            raise KeyError(key)
        self._bytes -= self._warm.pop(key, ({}, 0))[1]
        self._files.pop(key, None)

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._warm.keys() | self._files.keys()))

    def __len__(self) -> int:
        return len(self._warm.keys() | self._files.keys())

    def __contains__(self, key: object) -> bool:
        return key in self._warm or key in self._files

    def commit(self) -> dict[str, str]:
        """Write what is not on disk yet; the file of every client, by id, for a checkpoint."""
        for key, (tree, _) in self._warm.items():
            if key not in self._files:
                self._files[key] = self._write(key, tree)
        return {str(key): self._files[key] for key in self}

    def restore(self, files: dict[str, str]) -> None:
        """Take up again what `commit` named."""
        self._warm.clear()
        self._bytes = 0
        self._files = {int(key): name for key, name in files.items()}
        self._version = max((int(name.split(".")[1]) for name in files.values()), default=0)
        if missing := [name for name in files.values() if not (self._directory() / name).is_file()]:
            raise StorageError("client memory is missing from the run directory", details=missing)

    def discard_unnamed(self, also_named: Collection[str] = ()) -> None:
        """Delete files that no present tree lives in; only after the checkpoint that named them is gone."""
        if self._folder is not None and self._folder.is_dir():
            named = {*self._files.values(), *also_named}
            for file in self._folder.iterdir():
                if file.name not in named:
                    file.unlink()

    def close(self) -> None:
        if self._temporary is not None:
            self._temporary.cleanup()

    def _keep(self, key: int, tree: Tree) -> None:
        self._bytes -= self._warm.pop(key, ({}, 0))[1]
        size = sum(sizes(tree).values())
        self._warm[key] = (tree, size)
        self._bytes += size
        while self._bytes > self._budget and len(self._warm) > 1:
            cold, (cold_tree, cold_size) = next(iter(self._warm.items()))
            if cold not in self._files:
                self._files[cold] = self._write(cold, cold_tree)
            del self._warm[cold]
            self._bytes -= cold_size

    def _directory(self) -> Path:
        if self._folder is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="crossward-")
            self._folder = Path(self._temporary.name)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_write(self._folder, error) from error
        return self._folder

    def _write(self, key: int, tree: Tree) -> str:
        self._version += 1
        name = f"{key:05d}.{self._version}.safetensors"
        write_atomically(self._directory() / name, encode(tree), durable=self._temporary is None)
        return name

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
