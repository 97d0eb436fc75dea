"""The pixels of DICOM: a frame as 8 or 16 bits, by the order of the standard: the stored values, the modality's units
(rescale or modality LUT, of the frame where the file says so), the window, MONOCHROME1, and which way is up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from crossward.core.pixel_range import EVEN, brightest
from crossward.data.dicom_orientation import plane_cosines, upright
from crossward.data.dicom_reading import (
    check_compressed_size,
    check_image,
    decoder_of,
    frame_count,
    frame_item,
    is_ct,
    number,
    numbers,
    parse_dicom,
    transfer_syntax,
)
from crossward.data.value_range import (
    FUNCTIONS,
    LINEAR,
    ImageRange,
    Limits,
    Numbers,
    Percentiles,
    Pixels,
    StoredBits,
    TagTable,
    TagWindow,
    Valid,
    ValueRange,
    Window,
    as_pixels,
    stretch,
)
from crossward.errors import DataError

if TYPE_CHECKING:
    from pydicom.dataset import Dataset

GREY = ("MONOCHROME1", "MONOCHROME2")


@dataclass(frozen=True)
class DicomImages:
    """The images of one file."""

    dataset: Dataset
    frames: int

    def pixels(self, frame: int, wanted: Window | ValueRange | None, depth: int = 8) -> tuple[Pixels, str]:
        """(H, W) or (H, W, 3) of a frame the right way up, in `depth` bits, and its habit or ""."""
        if not 0 <= frame < self.frames:
            raise DataError(f"has {self.frames} frame(s), and none with the number {frame}")
        stored, photometric = self._stored(frame)
        if photometric in GREY:
            shown, habit = self._grey(stored, photometric, frame, wanted, depth)
        elif wanted is not None:
            raise DataError("is in colour: neither a window nor a range can be applied")
        else:
            shown, habit = self._colours(stored, photometric, depth), ""
        return np.ascontiguousarray(upright(shown, self.dataset, frame)), habit

    def _stored(self, frame: int) -> tuple[Numbers, str]:
        """The stored values of a frame, and how they are to be seen; YBR is already RGB."""
        decoder = decoder_of(self.dataset)
        check_compressed_size(self.dataset, frame)
        options: dict[str, Any] = {"correct_unused_bits": False} if self._high_bit_shift() else {}
        try:
            array, seen = decoder.as_array(self.dataset, index=frame, **options)
        except MemoryError:
            raise
        except Exception as error:  # each decoder raises errors of its own at damaged bytes: all are the file's fault
            raise DataError(
                f"cannot be decoded as {transfer_syntax(self.dataset).name}: its pixels are damaged, cut short, or not "
                "what its tags say"
            ) from error
        return self._shifted(array), str(seen["photometric_interpretation"])

    def _high_bit_shift(self) -> int:
        """By how many bits the values are stored further up than usual."""
        bits = self._bits()
        return number(self.dataset, "HighBit", bits - 1) + 1 - bits if "PixelData" in self.dataset else 0

    def _shifted(self, array: Numbers) -> Numbers:
        shift = self._high_bit_shift()
        if not shift:
            return array
        bits, unused = self._bits(), 8 * array.dtype.itemsize - self._bits() - shift
        if shift < 0 or unused < 0 or transfer_syntax(self.dataset).is_encapsulated:
            raise DataError(f"has HighBit {shift + bits - 1} with BitsStored {bits}, which contradict each other")
        return np.right_shift(np.left_shift(array, unused), unused + shift)

    def _bits(self) -> int:
        return number(self.dataset, "BitsStored", number(self.dataset, "BitsAllocated"))

    def _signed(self) -> bool:
        return number(self.dataset, "PixelRepresentation", 0) == 1

    def _grey(
        self, stored: Numbers, photometric: str, frame: int, wanted: Window | ValueRange | None, depth: int
    ) -> tuple[Pixels, str]:
        valid = self._valid(stored)
        if valid is not None and not valid.any():
            raise DataError("holds nothing but padding")
        tags = self._window(frame)
        by_tags = tags is not None and not isinstance(wanted, Percentiles | StoredBits)
        by_value = by_tags or isinstance(wanted, Window | Limits)
        if by_value and stored.dtype.kind in "iu" and stored.dtype.itemsize <= 2:
            # what a pixel becomes depends on its value alone: far fewer values than pixels are computed
            low = int(stored.min())
            levels = np.arange(low, int(stored.max()) + 1).astype(stored.dtype)
            table, habit = self._as_pixels(levels, frame, wanted, tags, None, depth)
            shown = table[stored.astype(np.int32) - low]
        else:
            shown, habit = self._as_pixels(stored, frame, wanted, tags, valid, depth)
        if photometric == "MONOCHROME1":
            shown = brightest(depth) - shown
        if valid is not None:
            shown[~valid] = 0
        return shown, habit

    def _as_pixels(
        self,
        stored: Numbers,
        frame: int,
        wanted: Window | ValueRange | None,
        tags: TagWindow | TagTable | None,
        valid: Valid | None,
        depth: int,
    ) -> tuple[Pixels, str]:
        values = self._in_units(stored, frame)
        if not np.isfinite(values).all():
            raise DataError("has values that are no numbers")
        bits = self._bits() if values is stored and stored.dtype.kind != "f" else None
        return as_pixels(values, ImageRange(bits, self._signed(), tags), wanted, valid, depth=depth)

    def _valid(self, stored: Numbers) -> Valid | None:
        """Which pixels are not padding; None if the file names no padding."""
        padding = self._as_stored(stored, "PixelPaddingValue")
        if padding is None:
            return None
        limit = self._as_stored(stored, "PixelPaddingRangeLimit")
        low, high = sorted((padding, padding if limit is None else limit))
        valid: Valid = (stored < low) | (stored > high)
        return None if valid.all() else valid

    def _as_stored(self, stored: Numbers, name: str) -> int | None:
        """A tag that is a stored value, and that some files write without its sign."""
        if self.dataset.get(name) in (None, ""):
            return None
        value = self.dataset[name].value
        if isinstance(value, bytes):
            value = int.from_bytes(value[:2], "little")
        try:
            whole = int(value)
        except (TypeError, ValueError) as error:
            raise DataError(f"has a {name} that is no whole number") from error
        bits = 8 * stored.dtype.itemsize
        return whole - 2**bits if self._signed() and whole >= 2 ** (bits - 1) else whole

    def _in_units(self, stored: Numbers, frame: int) -> Numbers:
        """The values in the modality's units, such as Hounsfield units."""
        item = frame_item(self.dataset, frame, "PixelValueTransformationSequence")
        source = item if item is not None else self.dataset
        if self.dataset.get("ModalityLUTSequence"):
            return self._looked_up(stored)
        slope, intercept = (numbers(source, name) for name in ("RescaleSlope", "RescaleIntercept"))
        if slope is None and intercept is None:
            if is_ct(self.dataset) and not self._is_localiser():
                raise DataError("is CT without RescaleSlope and RescaleIntercept: its units are unknown")
            return stored
        m, b = (slope or [1.0])[0], (intercept or [0.0])[0]
        if m == 0 or not np.isfinite([m, b]).all():
            raise DataError(f"has the RescaleSlope {m:g} and the RescaleIntercept {b:g}, which leave nothing to see")
        if m < 0 and is_ct(self.dataset):
            raise DataError(f"is CT with the negative RescaleSlope {m:g}: Hounsfield units grow with what is stored")
        return stored if (m, b) == (1, 0) else stored.astype(np.float64) * m + b

    def _is_localiser(self) -> bool:
        return "LOCALIZER" in (self.dataset.get("ImageType") or ())

    def _looked_up(self, stored: Numbers) -> Numbers:
        from pydicom.pixels.processing import apply_modality_lut

        try:
            return apply_modality_lut(stored, self.dataset).astype(np.float64)
        except Exception as error:  # of a table that is none
            raise DataError("has a ModalityLUTSequence that cannot be applied") from error

    def _window(self, frame: int) -> TagWindow | TagTable | None:
        """The window of the tags: that of the frame, else that of the file; the first where there are several."""
        for source in (frame_item(self.dataset, frame, "FrameVOILUTSequence"), self.dataset):
            if source is None:
                continue
            if tables := source.get("VOILUTSequence"):
                return self._table(tables[0])
            centre, width = (numbers(source, name) for name in ("WindowCenter", "WindowWidth"))
            if not centre or not width or not np.isfinite([centre[0], width[0]]).all():
                continue
            said = str(source.get("VOILUTFunction") or LINEAR).strip().upper()
            function = said if said in FUNCTIONS else LINEAR
            if width[0] >= (1 if function == LINEAR else 1e-6):  # others mean that there is no window
                return TagWindow(centre[0], width[0], function)
        return None

    def _table(self, item: Dataset) -> TagTable:
        try:
            count, first, bits = (int(value) for value in item.LUTDescriptor)
            raw = item.LUTData
            table = np.frombuffer(raw, "<u2") if isinstance(raw, bytes) else np.asarray(raw, dtype=np.uint16)
        except (AttributeError, TypeError, ValueError) as error:
            raise DataError("has a VOILUTSequence that cannot be applied") from error
        count = count or 65536
        if len(table) < count or not 1 <= bits <= 16:
            raise DataError(f"has a VOILUTSequence of {len(table)} entries, where it says {count}")
        if self._signed() and first >= 32768:
            first -= 65536
        return TagTable(first, table[:count], bits)

    def _colours(self, stored: Numbers, photometric: str, depth: int) -> Pixels:
        """(H, W, 3)"""
        if photometric == "PALETTE COLOR":
            stored = self._palette_colours(stored)
            bits = 16 if stored.dtype == np.uint16 and stored.max(initial=0) > 255 else 8
        else:
            bits = self._bits()
        if stored.ndim != 3 or stored.shape[2] != 3:
            raise DataError("has SamplesPerPixel and PhotometricInterpretation that contradict each other")
        if bits <= 8:
            return stored.astype(np.uint8) if depth == 8 else stored.astype(np.uint16) * np.uint16(EVEN)
        return stretch(stored.astype(np.float64), 0, 2**bits - 1, depth)

    def _palette_colours(self, stored: Numbers) -> NDArray[Any]:
        from pydicom.pixels.processing import apply_color_lut

        try:
            return apply_color_lut(stored, self.dataset)[..., :3]
        except Exception as error:  # of a palette that is none
            raise DataError("has a palette that cannot be applied") from error


def open_dicom(data: bytes, *, most_pixels: int, burned_in: bool) -> DicomImages:
    """The images of a file that is fit to be shown. Raises DataError with the reason."""
    dataset = parse_dicom(data)
    check_image(dataset, most_pixels=most_pixels, burned_in=burned_in)
    frames = frame_count(dataset)
    groups = dataset.get("PerFrameFunctionalGroupsSequence")
    if groups and len(groups) != frames:
        raise DataError(f"has inconsistent geometry: {frames} frame(s), and functional groups of {len(groups)}")
    spacing = numbers(dataset, "PixelSpacing")
    if spacing is not None and (len(spacing) != 2 or not all(0 < one < 1e4 for one in spacing)):
        raise DataError("has inconsistent geometry: PixelSpacing is not two lengths above 0")
    plane_cosines(dataset, 0)
    return DicomImages(dataset, frames)
