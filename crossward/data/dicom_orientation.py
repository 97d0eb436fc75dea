"""Orientation: which way up a DICOM image is shown, by its tags.

Slices are turned so that their rows run to the patient's left (or back, if sagittal) and their columns to the back (or
feet). Radiographs are turned so that the head is up, and mirrored only where the tags say that left and right are
exchanged. Mammograms stay as they are: which way they face tells the breast.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from crossward.data.dicom_reading import frame_item, numbers
from crossward.errors import DataError

if TYPE_CHECKING:
    from pydicom.dataset import Dataset

AXES = {"L": "RL", "R": "RL", "P": "AP", "A": "AP", "F": "HF", "H": "HF"}
OPPOSITE = {"L": "R", "R": "L", "P": "A", "A": "P", "F": "H", "H": "F"}
WANTED = {  # the axes of the plane -> where rows and columns run to
    frozenset({"RL", "AP"}): ("L", "P"),  # axial
    frozenset({"RL", "HF"}): ("L", "F"),  # coronal, and frontal radiographs
    frozenset({"AP", "HF"}): ("P", "F"),  # sagittal
}
TOLERANCE = 1e-2  # of the length and the angle of direction cosines


def upright(pixels: NDArray[Any], dataset: Dataset, frame: int) -> NDArray[Any]:
    """(H, W[, C]) the way up that radiologists look at them; as they are where the tags do not say."""
    slice_directions = _of_slice(dataset, frame)
    directions = slice_directions or _of_radiograph(dataset)
    if directions is None or dataset.get("Modality") == "MG":
        return pixels
    row, column = directions
    wanted = WANTED[frozenset({AXES[row], AXES[column]})]
    if AXES[row] != AXES[wanted[0]]:
        pixels, row, column = pixels.swapaxes(0, 1), column, row
    lateral = slice_directions is None and AXES[row] == "AP"  # of both sides, which differ by where they face
    if row != wanted[0] and not lateral:
        pixels = pixels[:, ::-1]
    if column != wanted[1]:
        pixels = pixels[::-1]
    return pixels


def plane_cosines(dataset: Dataset, frame: int) -> list[float] | None:
    """The six direction cosines of the rows and the columns of a slice; refused if they are none."""
    item = frame_item(dataset, frame, "PlaneOrientationSequence")
    cosines = numbers(item if item is not None else dataset, "ImageOrientationPatient")
    if cosines is None:
        return None
    row, column = np.array(cosines[:3]), np.array(cosines[3:])
    sound = len(cosines) == 6 and np.isfinite(cosines).all()
    if not sound or max(abs(row @ row - 1), abs(column @ column - 1), abs(row @ column)) > TOLERANCE:
        raise DataError("has inconsistent geometry: ImageOrientationPatient is not two directions at a right angle")
    return cosines


def _of_slice(dataset: Dataset, frame: int) -> tuple[str, str] | None:
    cosines = plane_cosines(dataset, frame)
    if cosines is None:
        return None
    row, column = _main_direction(cosines[:3]), _main_direction(cosines[3:])
    return (row, column) if AXES[row] != AXES[column] else None  # halfway between two planes: neither


def _main_direction(cosines: Sequence[float]) -> str:
    """The direction of the patient that a vector of DICOM's axes (left, back, head) mainly points to."""
    axis = int(np.abs(cosines).argmax())
    return "LPH"[axis] if cosines[axis] > 0 else "RAF"[axis]


def _of_radiograph(dataset: Dataset) -> tuple[str, str] | None:
    said = dataset.get("PatientOrientation")
    if not isinstance(said, Sequence) or isinstance(said, str) or len(said) != 2:
        return None
    row, column = (str(value).strip().upper()[:1] for value in said)  # "FR": mainly to the feet
    if row not in AXES or column not in AXES or AXES[row] == AXES[column]:
        return None
    return row, column
