"""New images: what is to be predicted, from files, folders and .zip archives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from crossward.data.archives import Files, FolderFiles, NamedFile
from crossward.data.bad_files import BadFile
from crossward.data.cache import ImagePaths
from crossward.data.file_format import DICOMDIR, HEAD, content_format, names_patients
from crossward.data.sources.dicom import open_dicom_files
from crossward.data.sources.settings import SourceSettings
from crossward.data.sources.unlabelled import UnlabelledImages
from crossward.errors import DataError


@dataclass(frozen=True)
class NewImage:
    """An image to predict."""

    name: str  # for people: "scans/ward/1.png", "scans.zip/ward/1.png"; of DICOM and NIfTI files a code
    path: str  # below the folder or archive that was named: "ward/1.png"; of a file that was named, as it was named
    read: Callable[[], bytes]  # raises an OSError or a DataError that says what is wrong
    place: str = ""  # where its file is, whatever it is called
    part: str = ""  # of a file with several images: the number of a frame, or "axial:17"
    private: bool = False  # called by a code, as its file may be named after a patient

    @property
    def mask_name(self) -> str:
        """What its mask is called after."""
        return self.name.replace("/", "-") if self.private else self.path


@contextmanager
def open_images(paths: Iterable[Path], source: SourceSettings) -> Iterator[tuple[list[NewImage], list[str]]]:
    """The images that are named, and those that `source`, which the network was trained on, finds in the folders and
    archives that are; and notes on what was not read. An archive stays open within the block."""
    images: list[NewImage] = []
    notes: list[str] = []
    with ExitStack() as stack:
        for path in paths:
            if not path.exists():
                raise DataError(f"there is no file {path}")
            if path.is_file() and path.suffix.lower() != ".zip" and not _is_dicomdir(path):
                images += named_images(path, source)
                continue
            files, listing = stack.enter_context(open_dicom_files(path))
            found = source.find_images(files, listing)
            if not found:
                raise DataError(f"there are no images in {path}")
            images += _below(path, files, found)
            notes += [f"{path}: {note}" for note in found.notes]
        yield images, notes


def named_images(file: Path, source: SourceSettings) -> list[NewImage]:
    """A file that was named itself, or the images that it holds; `crossward data locate` finds its code in its
    folder."""
    found = source.find_images(NamedFile(file), [file.name], named=True)
    images = [_new_image(row, str(file), str(file), file.read_bytes, str(file)) for row in found.rows]
    if images or found.problems:
        return [*images, *map(_unusable, found.problems)]
    return [_new_image(ImagePaths(file.name), str(file), str(file), file.read_bytes, str(file))]


def _below(path: Path, files: Files, found: UnlabelledImages) -> list[NewImage]:
    """The images that were found in a folder or an archive."""
    images = []
    for row in found.rows:
        read = files.read_listed if isinstance(files, FolderFiles) else files.read
        place = f"{files.root}/{row.image}"
        images.append(_new_image(row, f"{path}/{row.image}", row.image, partial(read, row.image), place))
    return [*images, *map(_unusable, found.problems)]


def _new_image(row: ImagePaths, name: str, path: str, read: Callable[[], bytes], place: str) -> NewImage:
    private = row.private or names_patients(row.image)
    return NewImage(row.name if private else name, path, read, place, row.part, private)


def _unusable(problem: BadFile) -> NewImage:
    """An image that is reported among those that cannot be read."""

    def read() -> bytes:
        raise DataError(problem.reason)

    return NewImage(problem.where, problem.where, read, private=True)


def _is_dicomdir(path: Path) -> bool:
    try:
        with path.open("rb") as stream:
            return content_format(stream.read(HEAD)) == DICOMDIR
    except OSError:
        return False  # the reading of the image says what is wrong
