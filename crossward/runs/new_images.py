"""New images: the files to predict, from files, folders and .zip archives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from crossward.data.archives import open_files
from crossward.data.decode import is_image
from crossward.data.file_format import names_patients
from crossward.data.site_key import shown_name
from crossward.errors import DataError


@dataclass(frozen=True)
class NewImage:
    """An image to predict."""

    name: str  # for people: "scans/ward/1.png", "scans.zip/ward/1.png"; of DICOM and NIfTI files a code
    path: str  # below the folder or archive that was named: "ward/1.png"; of a file that was named, as it was named
    read: Callable[[], bytes]
    place: str = ""  # where it is, whatever it is called

    @property
    def mask_name(self) -> str:
        """What its mask is called after."""
        return self.name if names_patients(self.path) else self.path


@contextmanager
def open_images(paths: Iterable[Path]) -> Iterator[list[NewImage]]:
    """The images that are named, and all images below the folders and in the archives that are. An archive stays open
    within the block."""
    with ExitStack() as stack:
        yield [image for path in paths for image in _images(path, stack)]


def named_image(file: Path) -> NewImage:
    """A file that was named itself; `crossward data locate` finds its code in its folder."""
    name = shown_name(file.name) if names_patients(file.name) else str(file)
    return NewImage(name, str(file), file.read_bytes, str(file))


def _images(path: Path, stack: ExitStack) -> list[NewImage]:
    if not path.exists():
        raise DataError(f"there is no file {path}")
    if path.is_file() and path.suffix.lower() != ".zip":
        return [named_image(path)]
    files = stack.enter_context(open_files(path))
    names = [name for name in files.listing() if is_image(name)]
    # a listed file is read as it is named: a name may hold what a path in a table may not, such as a backslash
    readers = [(path / name).read_bytes if path.is_dir() else partial(files.read, name) for name in names]
    found = [
        NewImage(shown_name(name) if names_patients(name) else f"{path}/{name}", name, read, f"{path}/{name}")
        for name, read in zip(names, readers, strict=True)
    ]
    if not found:
        raise DataError(f"there are no images in {path}")
    return found
