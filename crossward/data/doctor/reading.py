"""How files are best read, by what was seen in them: colours, and the range of pictures of more than 8 bits."""

from __future__ import annotations

from typing import Any

from crossward.data.doctor.file_scan import FileFacts

GREY = frozenset({"L", "1", "I", "I;16", "I;16B", "F", "LA"})  # modes of Pillow
USUAL_BITS = (10, 12, 14)  # of detectors whose values are stored in 16 bits


def set_reading(data: dict[str, Any], reasons: dict[str, str], files: FileFacts) -> None:
    """Set channels and prepare of pictures, where the files need others than the usual."""
    if data["source"] not in ("folder", "table") or not files.modes:
        return
    grey = {*files.modes} <= GREY
    if grey:
        data["channels"] = 1
        reasons["channels"] = "all images are grey"
    if grey and files.largest and not files.bits_said:
        alike = all(mode.startswith("I") for mode in files.modes)
        bits = next((bits for bits in USUAL_BITS if files.largest < 2**bits), 16)
        if bits == 16:
            return
        data["prepare"] = [f"range:bits:{bits}" if alike else "range:percentiles"]
        reasons["prepare"] = f"the files of 16 bits hold values up to {files.largest}"
