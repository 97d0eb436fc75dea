"""Volumes: NIfTI files as slices along an axis of the patient, in the orientation that radiologists look at them.

Slices are counted from the feet (axial), from the back (coronal) and from the left (sagittal). An axial or a coronal
slice has the patient's left at its right edge, a sagittal slice the back.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossward.core.image_size import MOST_CHANNELS
from crossward.data.archives import LARGEST
from crossward.data.dicom_reading import INSTALL, check_size
from crossward.data.value_range import (
    FromTags,
    ImageRange,
    Numbers,
    Percentiles,
    Pixels,
    StoredBits,
    ValueRange,
    Window,
    stretch,
)
from crossward.errors import DataError

AXES = {"sagittal": 0, "coronal": 1, "axial": 2}  # of voxels in the order right, front, head
CUT_SHORT = "is cut short or damaged"
APART = 1e-2  # of voxel sizes, in parts of their size


@dataclass(frozen=True)
class Volume:
    """(X, Y, Z) stored voxels in the order right, front, head, and what makes values of them; (X, Y, Z, C) of a file
    that holds several volumes of the same place."""

    voxels: NDArray[Any]
    slope: float
    intercept: float
    placement: tuple[float, ...]  # where the voxels are in the patient
    habit: str = ""

    def count(self, axis: str) -> int:
        """How many slices there are along the axis."""
        return int(self.voxels.shape[AXES[axis]])

    @property
    def channels(self) -> int:
        """How many volumes there are."""
        return int(self.voxels.shape[3]) if self.voxels.ndim == 4 else 1

    def _channel(self, channel: int) -> NDArray[Any]:
        voxels: NDArray[Any] = self.voxels[..., channel] if self.voxels.ndim == 4 else self.voxels
        return voxels

    def slice(self, axis: str, number: int, channel: int = 0) -> NDArray[Any]:
        """(H, W) stored voxels of a slice, the right way up."""
        if not 0 <= number < self.count(axis):
            raise DataError(f"has {self.count(axis)} {axis} slice(s), and none with the number {number}")
        turned: NDArray[Any] = np.flip(self._channel(channel).take(number, AXES[axis])).T
        return turned

    def pixels(
        self,
        axis: str,
        number: int,
        wanted: Window | ValueRange | None,
        most_pixels: int,
        channel: int = 0,
        depth: int = 8,
    ) -> Pixels:
        """(H, W) of a slice, in `depth` bits. Without a wanted range, and by percentiles, the range is that of the
        whole volume."""
        stored = self.slice(axis, number, channel)
        check_size(stored.shape[1], stored.shape[0], most_pixels)
        if isinstance(wanted, Window):
            return wanted(self._values(stored), depth)
        low, high = self._limits(wanted, channel)
        return stretch(self._values(stored), low, high, depth)

    def labelled(self, axis: str) -> list[int]:
        """The slices that hold a voxel other than 0."""
        others = tuple(place for place in range(self.voxels.ndim) if place != AXES[axis])
        return np.flatnonzero(self.voxels.any(axis=others)).tolist()

    def _values(self, stored: Numbers) -> NDArray[np.float64]:
        return stored.astype(np.float64) * self.slope + self.intercept

    def _limits(self, wanted: ValueRange | None, channel: int) -> tuple[float, float]:
        if isinstance(wanted, FromTags):
            raise DataError('has no tags, as DICOM has: set prepare = ["window:40:80"] or ["range:percentiles"]')
        default = StoredBits() if self.voxels.dtype == np.uint8 and self._unscaled else Percentiles()
        chosen = wanted or default
        if isinstance(chosen, Percentiles):
            ends = self._values(np.percentile(self._channel(channel), (chosen.low, chosen.high)))
            return float(ends.min()), float(ends.max())
        bits = 8 * self.voxels.dtype.itemsize if self._unscaled else None
        return chosen.limits(self._channel(channel), ImageRange(bits, self.voxels.dtype.kind == "i"))

    @property
    def _unscaled(self) -> bool:
        return (self.slope, self.intercept) == (1, 0) and self.voxels.dtype.kind in "iu"


def open_volume(data: bytes) -> Volume:
    """The volume of a NIfTI file, zipped or not. Raises DataError with the reason."""
    nibabel = _nibabel()
    plain = _inflated(data)
    if plain[344:348] == b"ni1\0" or plain[4:8] == b"ni2\0":
        raise DataError("is the header of a pair of files: save header and voxels in one .nii file")
    kind = nibabel.Nifti2Image if plain[4:8] == b"n+2\0" else nibabel.Nifti1Image
    try:
        header = kind.header_class.from_fileobj(_stream(plain), check=False)
        _check_header(header, len(plain))
        image = kind.from_bytes(plain)
        stored = np.asanyarray(image.dataobj.get_unscaled())
    except (DataError, MemoryError):
        raise
    except Exception as error:  # nibabel raises errors of every kind at damaged bytes: all are the file's fault
        raise DataError(f"{CUT_SHORT}: it cannot be read as NIfTI") from error
    if stored.dtype.kind not in "iuf":
        raise DataError("holds colours or complex numbers, where a volume holds one number for each voxel")
    slope, intercept = _scaling(image.dataobj)
    _check_numbers(stored, slope, intercept)
    affine, habit = _affine(nibabel, header)
    turned = nibabel.orientations.apply_orientation(_with_three_sides(stored), nibabel.io_orientation(affine))
    return Volume(turned, slope, intercept, _placement(nibabel, affine, stored.shape), habit)


def _nibabel() -> Any:
    try:
        import nibabel
    except ImportError as error:
        raise DataError(f"is NIfTI, and nibabel is not installed: {INSTALL}") from error
    nibabel.imageglobals.logger.setLevel(60)  # its warnings quote what the header says
    return nibabel


def _stream(data: bytes) -> Any:
    from io import BytesIO

    return BytesIO(data)


def _inflated(data: bytes) -> bytes:
    if data[:2] != b"\x1f\x8b":
        return data
    inflater = zlib.decompressobj(wbits=31)
    try:
        plain = inflater.decompress(data, LARGEST + 1)
    except zlib.error as error:
        raise DataError(CUT_SHORT) from error
    if len(plain) > LARGEST:
        raise DataError(f"unpacks to more than {LARGEST >> 20} MiB, more than any volume")
    if not inflater.eof:
        raise DataError(CUT_SHORT)
    return plain


def _check_header(header: Any, length: int) -> None:
    shape = header.get_data_shape()
    words = " x ".join(map(str, shape))
    if any(side < 1 for side in shape) or len([side for side in shape[:3] if side > 1]) < 2:
        raise DataError(f"has {words} voxels: it is neither slice nor volume")
    if any(side > 1 for side in shape[4:]) or (len(shape) > 3 and shape[3] > MOST_CHANNELS):  # times, not contrasts
        raise DataError(f"has {words} voxels: save each of its volumes as a file")
    needed = header.get_data_offset() + int(np.prod(shape, dtype=np.float64)) * header.get_data_dtype().itemsize
    if length < needed:
        raise DataError(f"is cut short: it has {length} of {needed} bytes")


def _with_three_sides(stored: NDArray[Any]) -> NDArray[Any]:
    """(X, Y, Z), or (X, Y, Z, C) where there are several volumes."""
    volumes = stored.shape[3:4] if stored.ndim > 3 and stored.shape[3] > 1 else ()
    return stored.reshape((*stored.shape, 1, 1)[:3] + volumes)


def _scaling(proxy: Any) -> tuple[float, float]:
    """Slope and intercept; the standard has a slope of 0 mean that there are none, which nibabel knows."""
    return float(proxy.slope), float(proxy.inter)


def _check_numbers(stored: NDArray[Any], slope: float, intercept: float) -> None:
    if not np.isfinite([slope, intercept]).all():
        raise DataError("has a slope or an intercept that is no number")
    if stored.dtype.kind == "f" and (bad := int(np.size(stored) - np.isfinite(stored).sum())):
        raise DataError(f"has {bad} of {stored.size} voxels that are no numbers (NaN or infinite): replace them")


def _affine(nibabel: Any, header: Any) -> tuple[NDArray[np.float64], str]:
    """Where voxels are, by the sform, else the qform; refused if both are there and show the volume differently."""
    sform, sform_code = header.get_sform(coded=True)
    try:
        qform, qform_code = header.get_qform(coded=True)
    except Exception:  # a quaternion that is none
        qform, qform_code = None, 0
    for affine, code, name in ((sform, sform_code, "sform"), (qform, qform_code, "qform")):
        if code and abs(np.linalg.det(affine[:3, :3])) < 1e-9:
            raise DataError(f"has a {name} that places all voxels in one plane")
    if sform_code and qform_code:
        ways = ["".join(nibabel.aff2axcodes(affine)) for affine in (sform, qform)]
        sizes = [np.sqrt((affine[:3, :3] ** 2).sum(0)) for affine in (sform, qform)]
        if ways[0] != ways[1] or not np.allclose(sizes[0], sizes[1], rtol=APART):
            raise DataError(
                f"has an sform ({ways[0]}) and a qform ({ways[1]}) that disagree on where its voxels are: correct "
                "one, or set its code to 0"
            )
    if sform_code:
        return np.asarray(sform, dtype=np.float64), ""
    if qform_code:
        return np.asarray(qform, dtype=np.float64), ""
    return np.diag([1.0, 1.0, 1.0, 1.0]), "unplaced"


def _placement(nibabel: Any, affine: NDArray[np.float64], shape: tuple[int, ...]) -> tuple[float, ...]:
    """The affine of the turned voxels, rounded."""
    three = (*shape, 1, 1)[:3]
    turned = affine @ nibabel.orientations.inv_ornt_aff(nibabel.io_orientation(affine), three)
    return tuple(np.round(turned[:3].ravel(), 2).tolist())
