"""How files are best read, by what was seen in them: colours, and the range of pictures of more than 8 bits."""

from __future__ import annotations

from collections import Counter

from crossward.data.doctor.file_scan import FileFacts
from crossward.data.doctor.layout import Reading

GREY = frozenset({"L", "1", "I", "I;16", "I;16B", "F", "LA"})  # modes of Pillow
OTHER_COLOURS = {"RGBA": "colour with transparency", "P": "palette", "CMYK": "print colours"}  # further modes
USUAL_BITS = (10, 12, 14)  # of detectors whose values are stored in 16 bits


def set_reading(draft: Reading, files: FileFacts) -> None:
    """Set channels and prepare of pictures, where the files need others than the usual."""
    if draft.settings["source"] not in ("folder", "table") or not files.modes or not {*files.modes} <= GREY:
        return
    draft.set("channels", 1, "all images are grey")
    bits = next((bits for bits in USUAL_BITS if files.largest < 2**bits), 16)
    if files.largest and not files.bits_said and bits < 16:
        alike = all(mode.startswith("I") for mode in files.modes)
        value = f"range:bits:{bits}" if alike else "range:percentiles"
        draft.set("prepare", [value], f"the files of 16 bits hold values up to {files.largest}")


def colour_counts(files: FileFacts) -> dict[str, int]:
    """How many pictures are grey, coloured or stored in another way, in words."""
    counts: Counter[str] = Counter()
    for mode, n in files.modes.items():
        counts["grey" if mode in GREY else OTHER_COLOURS.get(mode, "colour")] += n
    return dict(counts.most_common())
