"""Reading DICOM: the bytes of a file as a dataset whose pixels can be decoded, or the reason why they cannot.

No reason repeats a value that could identify a patient: reasons name tags, numbers of the pixels, and names of the
standard, and never what a library says of an error, which may quote the file.
"""

from __future__ import annotations

import logging
import warnings
import zlib
from collections.abc import Mapping, Sequence
from io import BytesIO
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from crossward.data.archives import LARGEST
from crossward.data.file_format import DICOM, HEAD, content_format
from crossward.errors import DataError

if TYPE_CHECKING:
    from pydicom.dataset import Dataset
    from pydicom.pixels.decoders.base import Decoder
    from pydicom.uid import UID

INSTALL = 'pip install "crossward[dicom]"'
EXPORT = "export it from the PACS as Explicit VR Little Endian"
PACKAGES: Mapping[str, str] = MappingProxyType(  # transfer syntax -> the packages that decode it
    {
        "1.2.840.10008.1.2.4.50": "python-gdcm",  # JPEG
        "1.2.840.10008.1.2.4.51": "python-gdcm",
        "1.2.840.10008.1.2.4.57": "python-gdcm",  # JPEG Lossless
        "1.2.840.10008.1.2.4.70": "python-gdcm",
        "1.2.840.10008.1.2.4.80": "pyjpegls",  # JPEG-LS
        "1.2.840.10008.1.2.4.81": "pyjpegls",
        "1.2.840.10008.1.2.4.90": "pylibjpeg and pylibjpeg-openjpeg",  # JPEG 2000
        "1.2.840.10008.1.2.4.91": "pylibjpeg and pylibjpeg-openjpeg",
        "1.2.840.10008.1.2.4.201": "pylibjpeg and pylibjpeg-openjpeg",  # High-Throughput JPEG 2000
        "1.2.840.10008.1.2.4.202": "pylibjpeg and pylibjpeg-openjpeg",
        "1.2.840.10008.1.2.4.203": "pylibjpeg and pylibjpeg-openjpeg",
        "1.2.840.10008.1.2.5": "pylibjpeg and pylibjpeg-rle",  # RLE
    }
)
VIDEO = tuple(f"1.2.840.10008.1.2.4.10{n}" for n in range(10))  # MPEG-2, MPEG-4, HEVC
DEFLATED = b"1.2.840.10008.1.2.1.99"
IMPLICIT = "1.2.840.10008.1.2"
EXPLICIT = "1.2.840.10008.1.2.1"
TAGS_OF_OBJECTS = ("Rows", "SOPClassUID", "SOPInstanceUID", "DirectoryRecordSequence")
NEEDED = ("Rows", "Columns", "BitsAllocated", "PhotometricInterpretation")
PIXELS = ("PixelData", "FloatPixelData", "DoubleFloatPixelData")
ULTRASOUND = (
    "1.2.840.10008.5.1.4.1.1.3.1",
    "1.2.840.10008.5.1.4.1.1.6.1",
    "1.2.840.10008.5.1.4.1.1.6.2",
)
SECONDARY_CAPTURE = "1.2.840.10008.5.1.4.1.1.7"  # and those below it
JPEG_FRAMES = (*range(0xC0, 0xC4), *range(0xC5, 0xC8), *range(0xC9, 0xCC), *range(0xCD, 0xD0), 0xF7)
CT = ("1.2.840.10008.5.1.4.1.1.2", "1.2.840.10008.5.1.4.1.1.2.1", "1.2.840.10008.5.1.4.1.1.2.2")


def parse_dicom(data: bytes, *, pixels: bool = True) -> Dataset:
    """The dataset of a file, with or without its pixels."""
    pydicom = require_pydicom()
    _refuse_bomb(data)
    try:
        dataset: Dataset = pydicom.dcmread(BytesIO(data), force=True, stop_before_pixels=not pixels)
        named = any(name in dataset for name in TAGS_OF_OBJECTS)
    except MemoryError:
        raise
    except Exception as error:  # pydicom raises errors of every kind at damaged bytes: all are the file's fault
        raise DataError("cannot be read as DICOM: it is damaged or cut short") from error
    if not named and pixels:
        parse_dicom(data, pixels=False)
        raise DataError("is cut short: the end of its compressed pixels is missing")
    if not named:
        raise DataError("cannot be read as DICOM: it holds none of the tags of an image")
    return dataset


def require_pydicom() -> Any:
    """The library, told to keep to itself what it thinks of the values in a file."""
    try:
        import pydicom
        from pydicom import config
    except ImportError as error:
        raise DataError(f"is DICOM, and pydicom is not installed: {INSTALL}") from error
    config.settings.reading_validation_mode = config.IGNORE  # its warnings quote values, such as names of patients
    for name in ("pydicom", "gdcm", "pylibjpeg"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    warnings.filterwarnings("ignore", module=r"pydicom(\.|$)")
    return pydicom


def check_image(dataset: Dataset, *, most_pixels: int, burned_in: bool) -> None:
    """Refuse a dataset that is no image, or one that must not or cannot be shown. `burned_in` admits text in pixels."""
    if not any(name in dataset for name in PIXELS):
        raise DataError(f"holds no pixel data{object_name(dataset)}")
    if missing := [name for name in NEEDED if dataset.get(name) in (None, "")]:
        raise DataError(f"lacks {', '.join(missing)}, without which its pixels cannot be read")
    check_size(number(dataset, "Columns"), number(dataset, "Rows"), most_pixels)
    decoder_of(dataset)
    _check_length(dataset)
    if not burned_in:
        _check_burned_in(dataset)


def check_size(width: int, height: int, most_pixels: int) -> None:
    """Refuse images of next to no pixels, or of too many."""
    if width < 2 or height < 2:
        raise DataError(f"has {width} x {height} pixels, which is no image")
    refuse_too_many(width, height, most_pixels)


def refuse_too_many(width: int, height: int, most_pixels: int) -> None:
    if width * height > most_pixels:
        raise DataError(
            f"has {width} x {height} pixels, more than data.max_pixels = {most_pixels} allows; raise it if the memory "
            f"allows {width * height * 8 >> 20} MiB for one image"
        )


def decoder_of(dataset: Dataset) -> Decoder:
    """What decodes the pixels; the reason says which package is missing, or that there is none."""
    from pydicom.pixels.decoders.base import get_decoder

    syntax = transfer_syntax(dataset)
    if syntax.is_private:
        raise DataError(f"has the private transfer syntax {syntax}: {EXPORT}")
    if syntax in VIDEO:
        raise DataError(f"is a video ({syntax.name}): export its frames as images")
    try:
        decoder = get_decoder(syntax)
    except NotImplementedError as error:
        named = syntax.name if syntax.name != syntax else "unknown"
        shown = f"{_dotted(syntax)} ({named})"
        raise DataError(f"has the transfer syntax {shown}, which cannot be decoded: {EXPORT}") from error
    if not decoder.is_available:
        packages = PACKAGES.get(syntax, "another decoder")
        raise DataError(f"is compressed as {syntax.name}, which needs {packages}: {INSTALL}")
    return decoder


def transfer_syntax(dataset: Dataset) -> UID:
    """How the file is encoded; of a file that does not say so, how it was read."""
    from pydicom.uid import UID

    named = getattr(dataset, "file_meta", {}).get("TransferSyntaxUID")
    if named:
        return UID(str(named))
    implicit, _ = dataset.original_encoding
    return UID(IMPLICIT if implicit else EXPLICIT)


def number(dataset: Dataset, name: str, default: int | None = None) -> int:
    """A tag that is a whole number."""
    value = dataset.get(name)
    try:
        return int(default if value in (None, "") and default is not None else value)
    except (TypeError, ValueError, OverflowError) as error:
        raise DataError(f"has a {name} that is no whole number") from error


def numbers(dataset: Dataset, name: str) -> list[float] | None:
    """A tag that is one number or several; None if it is absent or empty."""
    value = dataset.get(name)
    if value is None or value == "" or (isinstance(value, Sequence) and not len(value)):
        return None
    several = isinstance(value, Sequence) and not isinstance(value, str | bytes)
    try:
        return [float(one) for one in (value if several else [value])]
    except (TypeError, ValueError, OverflowError) as error:
        raise DataError(f"has a {name} that is no number") from error


def is_ct(dataset: Dataset) -> bool:
    return dataset.get("Modality") == "CT" or dataset.get("SOPClassUID") in CT


def frame_count(dataset: Dataset) -> int:
    """How many images the file holds."""
    frames = number(dataset, "NumberOfFrames", 1)
    if frames < 0:
        raise DataError(f"has NumberOfFrames {frames}")
    return max(frames, 1)  # 0 is written by machines that mean 1


def functional_groups(dataset: Dataset, frame: int) -> list[Dataset]:
    """What an enhanced object says of a frame, what it says of this frame alone first."""
    own = dataset.get("PerFrameFunctionalGroupsSequence") or []
    shared = dataset.get("SharedFunctionalGroupsSequence") or []
    return [*own[frame : frame + 1], *shared[:1]]


def frame_item(dataset: Dataset, frame: int, sequence: str) -> Dataset | None:
    """The first item of a sequence among the functional groups of a frame."""
    for group in functional_groups(dataset, frame):
        if items := group.get(sequence):
            item: Dataset = items[0]
            return item
    return None


def _refuse_bomb(data: bytes) -> None:
    """Refuse a deflated dataset that inflates beyond reason: pydicom inflates without a limit."""
    head = data[:HEAD]
    if content_format(head) != DICOM or DEFLATED not in head:
        return
    start = 144 + int.from_bytes(
        data[140:144], "little"
    )  # the preamble, and the length of the group before the dataset
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    rest = data[start:]
    total = 0
    try:
        while rest and total <= LARGEST:
            total += len(inflater.decompress(rest, 1 << 24))
            rest = inflater.unconsumed_tail
    except zlib.error as error:
        raise DataError("cannot be read as DICOM: it is damaged or cut short") from error
    if total > LARGEST:
        raise DataError(f"inflates to more than {LARGEST >> 20} MiB, more than any image")


def check_compressed_size(dataset: Dataset, frame: int) -> None:
    """Refuse compressed pixels of another size than the tags say: a decoder takes the memory for what they claim."""
    from pydicom.encaps import get_frame

    if not transfer_syntax(dataset).is_encapsulated:
        return
    try:
        stream = get_frame(dataset.PixelData, frame, number_of_frames=frame_count(dataset))
    except Exception as error:  # as in parse_dicom
        raise DataError(f"is cut short: frame {frame} of its compressed pixels is missing") from error
    size = compressed_size(stream)
    said = number(dataset, "Columns"), number(dataset, "Rows")
    if size is not None and size != said:
        shown, claimed = (f"{width} x {height}" for width, height in (said, size))
        raise DataError(f"has {shown} pixels by its tags, but {claimed} in its compressed pixels")


def compressed_size(stream: bytes) -> tuple[int, int] | None:
    """Width and height of a stream of JPEG, JPEG-LS or JPEG 2000; None of others."""
    if stream[:4] == b"\xff\x4f\xff\x51" and len(stream) >= 24:
        across, down, left, top = (int.from_bytes(stream[at : at + 4], "big") for at in (8, 12, 16, 20))
        return across - left, down - top
    if stream[:2] != b"\xff\xd8":
        return None
    at = 2
    while at + 9 <= len(stream) and stream[at] == 0xFF:
        marker = stream[at + 1]
        if marker == 0xFF:  # a fill byte
            at += 1
            continue
        if marker in JPEG_FRAMES:
            height, width = (int.from_bytes(stream[at + n : at + n + 2], "big") for n in (5, 7))
            return width, height
        at += 2 + int.from_bytes(stream[at + 2 : at + 4], "big")
    return None


def object_name(dataset: Dataset) -> str:
    """What the object is by the standard, in brackets; nothing if the standard does not know it."""
    from pydicom.uid import UID

    uid = UID(str(dataset.get("SOPClassUID", "")))
    return f": it is of the class {uid.name}" if uid.name != uid and not uid.is_private else ""


def _dotted(syntax: UID) -> str:
    return str(syntax) if syntax.is_valid else "that is no UID"


def _check_length(dataset: Dataset) -> None:
    """Refuse pixels that are cut short, as after an interrupted transfer; more than needed are let pass."""
    from pydicom.pixels.utils import get_expected_length

    if transfer_syntax(dataset).is_encapsulated or "PixelData" not in dataset:
        return
    expected = get_expected_length(dataset)
    actual = len(dataset.PixelData or b"")
    if actual < expected:
        raise DataError(f"is cut short: it has {actual} of the {expected} bytes of its pixels")


def _check_burned_in(dataset: Dataset) -> None:
    says = str(dataset.get("BurnedInAnnotation") or "").strip().upper()
    uid = str(dataset.get("SOPClassUID", ""))
    modality = dataset.get("Modality")
    if uid in ULTRASOUND or modality == "US":
        kind = "an ultrasound image"
    elif uid.startswith(SECONDARY_CAPTURE) or modality == "SC":
        kind = "a secondary capture"
    else:
        kind = ""
    if says == "YES" or (kind and says != "NO"):
        state = f'is "{says}"' if says in ("YES", "NO") else "is missing" if not says else "is neither YES nor NO"
        of = f" of {kind}" if kind else ""
        raise DataError(
            f"may show a patient's name in its pixels: BurnedInAnnotation{of} {state}; look at it, and set "
            'data.burned_in = "keep" if it shows none'
        )
