"""Images without labels: which of the files of a folder or an archive are images, as `crossward predict` asks.

Each source answers for itself (`SourceSettings.find_images`), with the code that finds the images of a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from crossward.data.archives import Files
from crossward.data.bad_files import BadFile
from crossward.data.decode import is_image
from crossward.data.file_format import DICOM, is_without_extension
from crossward.data.segments import ImagePaths
from crossward.data.site_key import shown_name
from crossward.data.sources.format_files import files_of_format


@dataclass(frozen=True)
class UnlabelledImages:
    rows: Sequence[ImagePaths]
    problems: Sequence[BadFile] = ()  # files that would be images if they could be used
    notes: Sequence[str] = ()  # what a person should know of the files that are not read

    def __bool__(self) -> bool:
        return bool(self.rows or self.problems)


def images_by_name(files: Files, listing: Sequence[str]) -> UnlabelledImages:
    """The images that are called so, and DICOM by its content: the exports of hospitals often have no extension."""
    named = [path for path in listing if is_image(path)]
    held = files_of_format(files, [path for path in listing if not is_image(path)], DICOM)
    rows = [*map(ImagePaths, named), *(ImagePaths(path, private=True) for path in held.paths)]
    problems = [
        BadFile(shown_name(path, private=True), None, reason)
        for path, reason in held.unreadable.items()
        if is_without_extension(path)  # others are no images by their names
    ]
    return UnlabelledImages(sorted(rows, key=lambda row: row.image), problems)


def masks_note(masks: int) -> tuple[str, ...]:
    return (f"{masks} mask(s) beside images were not read",) if masks else ()
