"""File formats: what a file is by its first bytes, whatever its name says."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from types import MappingProxyType

HEAD = 1024  # bytes of a file that tell its format

DICOM = "DICOM"
DICOMDIR = "DICOMDIR"  # an index of DICOM files, which holds no image
NIFTI = "NIfTI"
NAMED_AFTER_PATIENTS = (DICOM, DICOMDIR, NIFTI)  # formats whose files often are
VOLUME_SUFFIXES = (".nii", ".nii.gz")
DICOM_SUFFIXES = (".dcm", ".dicom", ".ima")

PICTURES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {  # in the order Pillow tries them; nothing else is opened (some of Pillow's formats run other programs)
        "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif"),
        "PNG": (".png",),
        "BMP": (".bmp", ".dib"),
        "GIF": (".gif",),
        "PPM": (".ppm", ".pgm", ".pbm", ".pnm"),
        "TIFF": (".tif", ".tiff"),
        "WEBP": (".webp",),
        "JPEG2000": (".jp2", ".j2k"),
    }
)
SUFFIXES: Mapping[str, str] = MappingProxyType(
    {suffix: name for name, suffixes in PICTURES.items() for suffix in suffixes}
    | dict.fromkeys(DICOM_SUFFIXES, DICOM)
    | dict.fromkeys(VOLUME_SUFFIXES, NIFTI)
)

_SIGNATURES = (
    (b"\xff\xd8\xff", "JPEG"),
    (b"\x89PNG\r\n\x1a\n", "PNG"),
    (b"BM", "BMP"),
    (b"GIF87a", "GIF"),
    (b"GIF89a", "GIF"),
    (b"II*\0", "TIFF"),
    (b"MM\0*", "TIFF"),
    (b"II+\0", "TIFF"),  # BigTIFF
    (b"MM\0+", "TIFF"),
    (b"\0\0\0\x0cjP  \r\n\x87\n", "JPEG2000"),
    (b"\xff\x4f\xff\x51", "JPEG2000"),
)
_DIRECTORY_CLASS = b"1.2.840.10008.1.3.10"  # Media Storage Directory Storage
_VALUE_TYPES = frozenset(b"AE AS AT CS DA DS DT FD FL IS LO LT OB OD OF OW PN SH SL SQ SS ST TM UI UL UN US UT".split())
_FIRST_LENGTH = 256  # of the first element of a dataset without types: a code, a date or a UID


def content_format(head: bytes) -> str:
    """The format of a file that begins with `head`, "DICOM", "NIfTI", "PNG" …; "" if it is none that we read."""
    if head[128:132] == b"DICM":
        return DICOMDIR if _DIRECTORY_CLASS in head else DICOM
    for signature, name in _SIGNATURES:
        if head.startswith(signature):
            return name
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "WEBP"
    if len(head) > 2 and head[:1] == b"P" and head[1:2] in b"123456" and head[2:3].isspace():
        return "PPM"
    if _is_nifti(_unzipped(head)):
        return NIFTI
    return DICOM if _is_bare_dicom(head) else ""


def name_format(path: str) -> str:
    """The format that a file has by its name; "" if it is none that we read."""
    name = path.lower()
    if name.endswith(".nii.gz"):
        return NIFTI
    base = name[name.rfind("/") + 1 :]
    at = base.rfind(".")  # of a name that only begins with a dot, nothing is a suffix
    return SUFFIXES.get(base[at:], "") if at > 0 else ""


def is_without_extension(path: str) -> bool:
    """Whether the name says nothing of the format: IM000001, or the UID of an image, as in 1.2.840.113619.2.55."""
    base = path[path.rfind("/") + 1 :]
    at = base.rfind(".")
    return at <= 0 or at == len(base) - 1 or base[at + 1 :].isdecimal()


def names_patients(path: str) -> bool:
    """Whether files of this kind are often named after a patient, so that their names are written nowhere."""
    return name_format(path) in NAMED_AFTER_PATIENTS


def _unzipped(head: bytes) -> bytes:
    """The beginning of the content of a file that may be gzipped."""
    if head[:2] != b"\x1f\x8b":
        return head
    try:
        return zlib.decompressobj(wbits=31).decompress(head, HEAD)
    except zlib.error:
        return b""


def _is_nifti(head: bytes) -> bool:
    sizes = {int.from_bytes(head[:4], "little"), int.from_bytes(head[:4], "big")}
    if 348 in sizes:
        return head[344:348] in (b"n+1\0", b"ni1\0")
    return 540 in sizes and head[4:8] in (b"n+2\0", b"ni2\0")


def _is_bare_dicom(head: bytes) -> bool:
    """Whether it is a dataset without the preamble of a file, as some machines store it: a first element of the groups
    2 or 8, with its type or with a small length."""
    group, element = int.from_bytes(head[:2], "little"), int.from_bytes(head[2:4], "little")
    if len(head) < 16 or group not in (2, 8) or element > 0x0100:
        return False
    length = int.from_bytes(head[4:8], "little")
    return head[4:6] in _VALUE_TYPES or (length % 2 == 0 and 0 < length <= _FIRST_LENGTH)
