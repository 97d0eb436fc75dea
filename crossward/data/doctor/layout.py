"""The layout of a folder, an archive or a file of images, and the [data] section that reads it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from crossward.data.archives import Files, open_files
from crossward.data.decode import is_image
from crossward.data.file_format import DICOM, DICOMDIR, HEAD, NAMED_AFTER_PATIENTS, NIFTI, content_format, name_format
from crossward.data.site_key import shown_name
from crossward.data.table_columns import COLUMNS, suggested_columns
from crossward.errors import DataError

TABLES = (".csv", ".tsv", ".txt", ".tab")
LOOKED_AT = 2000  # files whose content is looked at, evenly over all
SAMPLED_ROWS = 200  # of a table, to find where its images are
LATIN = bytes(range(0x80, 0xA0))  # what Windows has letters for and latin-1 has none


@dataclass(frozen=True)
class Layout:
    """What is there, and how it is read."""

    settings: Mapping[str, Any]  # of [data]
    files: tuple[str, ...] = ()  # that may be images
    formats: Mapping[str, int] = field(default_factory=dict)  # of the files that were looked at, by content
    misnamed: tuple[str, ...] = ()  # named after another format; as they are called outside of the folder
    reasons: Mapping[str, str] = field(default_factory=dict)  # setting -> why it is so
    others: int = 0  # files that are no images


def find_layout(path: Path) -> Layout:
    """How `path`, a folder, an archive, a table or arrays, is laid out."""
    if not path.exists():
        raise DataError(f"There is no {path}.", hint="Give a folder, a .zip, a .csv or an .npz file.")
    if path.is_file() and path.suffix.lower() == ".npz":
        return Layout({"source": "npz", "path": str(path)})
    if path.is_file() and path.suffix.lower() in TABLES:
        return table_layout(path, path.parent)
    if path.is_file() and content_format(path.read_bytes()[:HEAD]) in (DICOM, DICOMDIR):
        return Layout({"source": "dicom", "path": str(path)}, (path.name,), {DICOM: 1})
    with open_files(path) as files:
        listing = files.listing()
        return _folder_layout(path, files, listing)


def _folder_layout(path: Path, files: Files, listing: Sequence[str]) -> Layout:
    arrays = [name for name in listing if name.lower().endswith(".npz")]
    images = [name for name in listing if is_image(name) or not PurePosixPath(name).suffix]
    if not images and len(arrays) == 1 and path.is_dir():
        return Layout({"source": "npz", "path": str(path / arrays[0])})
    formats, misnamed = _formats(files, images)
    if formats.get(DICOM, 0) + formats.get(DICOMDIR, 0) > sum(formats.values()) / 2:
        source = "dicom"
    elif formats.get(NIFTI, 0) > sum(formats.values()) / 2:
        source = "nifti"
    else:
        source = "folder"
        if (table := _table_of(path, listing)) is not None:
            layout = table_layout(table, path)
            return Layout(layout.settings, layout.files, formats, misnamed, layout.reasons, layout.others)
    if not formats:
        raise DataError(
            f"{path} holds no image that can be read.",
            details=[f"{suffix or 'no extension'}: {n} file(s)" for suffix, n in _suffixes(listing).most_common(10)],
            hint="Images are JPEG, PNG, TIFF, BMP, GIF, WebP, JPEG 2000, DICOM or NIfTI files.",
        )
    settings = {"source": source, "path": str(path)}
    return Layout(settings, tuple(images), formats, misnamed, {}, len(listing) - len(images))


def _suffixes(listing: Sequence[str]) -> Counter[str]:
    return Counter(PurePosixPath(name).suffix.lower() for name in listing)


def _formats(files: Files, images: Sequence[str]) -> tuple[dict[str, int], tuple[str, ...]]:
    """The formats of the files by their content, and the files that are named after another."""
    formats: Counter[str] = Counter()
    misnamed = []
    for name in sampled(images):
        try:
            found = content_format(files.head(name, HEAD))
        except DataError:
            continue
        if found:
            formats[found] += 1
        if found and name_format(name) not in ("", found):
            misnamed.append(shown_name(name, private=found in NAMED_AFTER_PATIENTS))
    return dict(formats), tuple(misnamed)


def sampled(names: Sequence[str]) -> Sequence[str]:
    """At most so many of them as are looked at, evenly over all."""
    step = max(1, -(-len(names) // LOOKED_AT))
    return names[::step]


# tables ---------------------------------------------------------------------------------------------------------------
def _table_of(path: Path, listing: Sequence[str]) -> Path | None:
    """A table in the folder that names most of its images; None if no table does."""
    if not path.is_dir():
        return None
    for name in sorted(listing, key=lambda name: (name.count("/"), name)):
        if PurePosixPath(name).suffix.lower() not in TABLES or name.count("/") > 1:
            continue
        try:
            layout = table_layout(path / name, path)
        except DataError:
            continue
        if layout.files:
            return path / name
    return None


def table_layout(file: Path, top: Path) -> Layout:
    """How a table is read whose images are below `top`: its encoding, its columns, and the root of its paths."""
    from crossward.data.sources.table_files import read_cells

    settings: dict[str, Any] = {"source": "table", "path": str(file)}
    reasons = {}
    encoding = _encoding(file)
    if encoding != "utf-8":
        settings["encoding"] = encoding
        reasons["encoding"] = "the table is not UTF-8 text"
    header, lines = read_cells(file, encoding)
    columns = {ours: ours for ours in COLUMNS if ours in header} | suggested_columns(header)
    if "path" not in columns or not {"label", "mask"} & {*columns}:
        raise DataError(
            f"{file} has no column of paths with labels or masks.",
            details=[f"columns: {', '.join(header[:20])}"],
            hint="Say which they are: data.columns = { path = …, label = … }.",
        )
    if "label" in columns and "mask" in columns:
        columns["mask"] = ""
    if renamed := {ours: theirs for ours, theirs in columns.items() if ours != theirs}:
        settings["columns"] = renamed
        reasons["columns"] = "the table has other names for these columns"
    place = header.index(columns["path"])
    step = max(1, len(lines) // SAMPLED_ROWS)
    paths = [cells[place].strip() for cells in lines[::step] if len(cells) == len(header) and cells[place].strip()]
    with open_files(top) as files:
        listing = files.listing()
    where = _root_of(paths, listing, top, file.parent)
    settings |= where
    reasons |= dict.fromkeys(where, "the paths of the table are below it")
    found = tuple(name for name in listing if is_image(name)) if where or _names_most(paths, listing, top, file) else ()
    return Layout(settings, found, {}, (), reasons)


def _encoding(file: Path) -> str:
    data = file.read_bytes()
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "utf-16"
    try:
        data.decode("utf-8-sig")
        return "utf-8"
    except UnicodeDecodeError:
        return "cp1252" if any(byte in LATIN for byte in data) else "latin-1"


def _names_most(paths: Sequence[str], listing: Sequence[str], top: Path, file: Path) -> bool:
    """Whether most images are where the table says, below its own folder."""
    below = file.parent.relative_to(top).as_posix() if file.parent != top else "."
    there = {name if below == "." else name.removeprefix(f"{below}/") for name in listing}
    stems = {PurePosixPath(name).stem for name in listing}
    known = [path.replace("\\", "/").removeprefix("./") for path in paths]
    hits = sum(path in there or (not is_image(path) and PurePosixPath(path).name in stems) for path in known)
    return 2 * hits > len(known)


def _root_of(paths: Sequence[str], listing: Sequence[str], top: Path, own: Path) -> dict[str, str]:
    """{"root": …, "prefix": …} where the images are elsewhere than beside the table, else empty."""
    file = own / "table"
    if not paths or _names_most(paths, listing, top, file):
        return {}
    by_name: dict[str, list[str]] = {}
    for name in listing:
        by_name.setdefault(PurePosixPath(name).name, []).append(name)
    votes: Counter[tuple[str, str]] = Counter()
    for path in paths:
        written = path.replace("\\", "/")
        for name in by_name.get(written.rsplit("/", 1)[-1], ()):
            common = _common_end(written, name)
            votes[name[: len(name) - len(common)].rstrip("/"), written[: len(written) - len(common)].rstrip("/")] += 1
    if not votes:
        return {}
    (root, prefix), count = votes.most_common(1)[0]
    if 2 * count <= len(paths):
        return {}
    where = {"root": str(top / root) if root else str(top)}
    if prefix:
        where["prefix"] = prefix
    return where


def _common_end(a: str, b: str) -> str:
    """The folders and the file that two paths end with."""
    parts: list[str] = []
    for x, y in zip(reversed(a.split("/")), reversed(b.split("/")), strict=False):
        if x != y:
            break
        parts.insert(0, x)
    return "/".join(parts)
