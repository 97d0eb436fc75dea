"""Every file of the corpus gives the pixels that numpy computed of its values, or is set aside for its reason."""

from __future__ import annotations

import tempfile
import zlib
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pydicom")
pytest.importorskip("nibabel")
pytest.importorskip("gdcm")

import dicom_corpus
from dicom_corpus import PATIENT, Case, corpus, ct, stored
from pydicom.uid import DeflatedExplicitVRLittleEndian, ExplicitVRLittleEndian

from crossward.data import dicom_reading
from crossward.data.decode import Decoded, Frame, decode_parts
from crossward.errors import DataError

with tempfile.TemporaryDirectory() as folder:
    CASES = corpus(Path(folder))


def decoded(case: Case) -> Decoded | DataError:
    height, channels = 8, 1
    if case.pixels is not None:
        height, channels = len(case.pixels), 3 if case.pixels.ndim == 3 else 1
    frame = Frame(height, channels, prepare=case.prepare, burned_in=case.burned_in)
    (result,) = decode_parts(case.data, case.path, frame, [case.part])
    return result


@pytest.mark.parametrize("case", [case for case in CASES if not case.reason], ids=lambda case: case.name)
def test_files_whose_pixels_are_known(case):
    result = decoded(case)
    assert isinstance(result, Decoded), result
    pixels = result.pixels if case.pixels.ndim == 3 else result.pixels[..., 0]
    assert np.abs(pixels.astype(int) - case.pixels.astype(int)).max() <= case.tolerance
    assert result.habit == case.habit
    assert result.size == (case.pixels.shape[1], case.pixels.shape[0])


@pytest.mark.parametrize("case", [case for case in CASES if case.reason], ids=lambda case: case.name)
def test_files_that_are_set_aside(case):
    result = decoded(case)
    assert isinstance(result, DataError)
    assert case.reason in result.what
    said = str(result)
    assert not [value for value in PATIENT.values() if value in said]


def test_the_corpus_is_of_different_pitfalls():
    names = [case.name for case in CASES]
    assert len(names) == len(set(names)) >= 30


def test_a_missing_codec_is_named(monkeypatch):
    from pydicom.pixels.decoders.base import Decoder

    packed = next(case for case in CASES if case.name == "jpeg lossless")
    monkeypatch.setattr(Decoder, "is_available", property(lambda self: False))
    result = decoded(packed)
    assert isinstance(result, DataError)
    assert "JPEG Lossless" in result.what
    assert 'needs python-gdcm: pip install "crossward[dicom]"' in result.what


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pydicom", None)
    result = decoded(CASES[0])
    assert isinstance(result, DataError)
    assert result.what == 'is DICOM, and pydicom is not installed: pip install "crossward[dicom]"'
    volume = next(case for case in CASES if case.name == "an axial slice")
    monkeypatch.setitem(__import__("sys").modules, "nibabel", None)
    assert "nibabel is not installed" in decoded(volume).what


def test_a_deflated_bomb_is_not_inflated(monkeypatch):
    plain = stored(ct(), ExplicitVRLittleEndian)
    deflated = stored(ct(), DeflatedExplicitVRLittleEndian)
    start = 144 + int.from_bytes(deflated[140:144], "little")
    squeezer = zlib.compressobj(9, zlib.DEFLATED, -15)
    bomb = deflated[:start] + squeezer.compress(bytes(1 << 22)) + squeezer.flush()
    assert len(bomb) < 10_000 < len(plain) + 10_000
    monkeypatch.setattr(dicom_reading, "LARGEST", 1 << 20)
    result = decoded(Case("bomb", bomb))
    assert isinstance(result, DataError)
    assert "inflates to more than 1 MiB" in result.what


def test_the_limit_of_pixels_can_be_raised():
    small = Frame(4, 1, max_pixels=1000)
    (refused,) = decode_parts(CASES[0].data, "x.dcm", small, [""])
    assert isinstance(refused, DataError)
    assert "32 x 32 pixels, more than data.max_pixels = 1000 allows; raise it" in refused.what
    assert isinstance(decode_parts(CASES[0].data, "x.dcm", Frame(4, 1, max_pixels=1024), [""])[0], Decoded)


def test_highdicom_sees_the_same_units():
    """A second opinion, of people who wrote parts of the standard, on units of frames."""
    highdicom = pytest.importorskip("highdicom")
    import io

    from pydicom import dcmread

    for name, number in (("ct by a preset", 1), ("rescale of the first frame", 1), ("rescale of the second frame", 2)):
        case = next(case for case in CASES if case.name == name)
        seen = highdicom.Image.from_dataset(dcmread(io.BytesIO(case.data)))
        units = seen.get_frame(number, apply_voi_transform=False, apply_presentation_lut=False)
        assert np.array_equal(dicom_corpus.between(units, 0, 80), case.pixels)
