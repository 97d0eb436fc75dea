"""What a file is, by its first bytes."""

from __future__ import annotations

import gzip

import pytest
from PIL import Image

from crossward.data.file_format import HEAD, content_format, name_format, names_patients
from crossward.testing.drawn_images import encoded

PREAMBLE = bytes(128) + b"DICM" + b"\x02\0\0\0UL\x04\0" + bytes(4)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP", "JPEG2000"])
def test_pictures_by_their_content(kind):
    assert content_format(encoded(Image.new("RGB", (4, 4)), kind)[:HEAD]) == kind


@pytest.mark.parametrize(
    ("head", "name"),
    [
        (PREAMBLE, "DICOM"),
        (PREAMBLE + b"UI\x14\x001.2.840.10008.1.3.10", "DICOMDIR"),
        (b"\x08\0\x05\0CS\x0a\0ISO_IR 100" + bytes(8), "DICOM"),  # no preamble
        (b"\x08\0\x16\0\x1a\0\0\0" + b"1.2.840.10008.5.1.4.1.1.2\0", "DICOM"),  # nor types
        ((348).to_bytes(4, "little") + bytes(340) + b"n+1\0", "NIfTI"),
        ((348).to_bytes(4, "big") + bytes(340) + b"ni1\0", "NIfTI"),
        ((540).to_bytes(4, "little") + b"n+2\0\r\n\x1a\n" + bytes(532), "NIfTI"),
        (gzip.compress((348).to_bytes(4, "little") + bytes(340) + b"n+1\0" + bytes(10_000)), "NIfTI"),
        (gzip.compress(b"a text"), ""),
        (b"\x1f\x8bnot gzip", ""),
        (b"PatientID,label\n", ""),
        (b"", ""),
        (bytes(512), ""),
        (b"\x08\0\x05\0", ""),
    ],
)
def test_formats_of_hospitals_by_their_content(head, name):
    assert content_format(head[:HEAD]) == name


def test_formats_by_name():
    assert name_format("a/IM1.DCM") == "DICOM"
    assert name_format("ct.nii.gz") == name_format("ct.NII") == "NIfTI"
    assert name_format("notes.gz") == name_format("IM0001") == ""
    assert names_patients("doe.dcm")
    assert names_patients("doe.nii.gz")
    assert not names_patients("doe.png")
