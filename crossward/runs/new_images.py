"""New images: the files to predict, from files, folders and .zip archives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from crossward.data.archives import open_files
from crossward.data.decode import is_image
from crossward.errors import DataError


@dataclass(frozen=True)
class NewImage:
    """An image to predict."""

    name: str  # for people: "scans/ward/1.png", "scans.zip/ward/1.png"
    path: str  # below the folder or archive that was named: "ward/1.png"; of a file that was named, as it was named
    read: Callable[[], bytes]


@contextmanager
def open_images(paths: Iterable[Path]) -> Iterator[list[NewImage]]:
    """The images that are named, and all images below the folders and in the archives that are. An archive stays open
    within the block."""
    with ExitStack() as stack:
        yield [image for path in paths for image in _images(path, stack)]


def _images(path: Path, stack: ExitStack) -> list[NewImage]:
    if not path.exists():
        raise DataError(f"there is no file {path}")
    if path.is_file() and path.suffix.lower() != ".zip":
        return [NewImage(str(path), str(path), path.read_bytes)]
    files = stack.enter_context(open_files(path))
    names = [name for name in files.listing() if is_image(name)]
    # a listed file is read as it is named: a name may hold what a path in a table may not, such as a backslash
    readers = [(path / name).read_bytes if path.is_dir() else partial(files.read, name) for name in names]
    found = [NewImage(f"{path}/{name}", name, read) for name, read in zip(names, readers, strict=True)]
    if not found:
        raise DataError(f"there are no images in {path}")
    return found
