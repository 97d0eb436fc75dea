"""DICOM to the cache: CT slices in JPEG Lossless, each a file of its own, to small images.

    python benchmarks/dicom.py [--slices 2000] [--side 512] [--size 128]

The slices are drawn first, which is not measured: an ellipse of soft tissue with structures and noise of a scanner, 12
bits. Measured are the first reading (headers, decoding, window, resizing, cache) and the second, from the cache; in
seconds of the clock and of the processors, all processes counted.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import resource
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

PATIENTS = 20


def draw_slice(side: int, rng: np.random.Generator) -> np.ndarray:
    """(side, side) stored values of a head, Hounsfield units + 1024."""
    y, x = np.mgrid[-1 : 1 : side * 1j, -1 : 1 : side * 1j]
    radius = np.hypot(x / 0.75, y / 0.9)
    units = np.where(radius < 1, np.where(radius > 0.92, 900.0, 35.0), -1000.0)
    for _ in range(6):
        cx, cy, size = rng.uniform(-0.4, 0.4), rng.uniform(-0.5, 0.5), rng.uniform(0.05, 0.25)
        units = np.where(np.hypot(x - cx, y - cy) < size, units + rng.uniform(-25, 40), units)
    return np.clip(np.rint(units + rng.normal(0, 6, units.shape)) + 1024, 0, 4095).astype(np.uint16)


def write_slices(folder: Path, count: int, side: int) -> None:
    """So many files in two classes; a few different slices, since drawing takes longer than reading."""
    from pydicom.dataset import Dataset

    rng = np.random.default_rng(0)
    streams = [_jpeg_lossless(draw_slice(side, rng), folder) for _ in range(min(count, 16))]
    for number in range(count):
        dataset = Dataset()
        dataset.update(streams[number % len(streams)])
        dataset.file_meta = streams[number % len(streams)].file_meta
        patient = number * PATIENTS // count
        dataset.PatientID = f"MRN{patient:05}"
        dataset.PatientName = f"Patient^{patient}"
        dataset.SeriesInstanceUID = f"1.2.826.0.1.3680043.8.498.1.{patient + 1}"
        dataset.SOPInstanceUID = f"1.2.826.0.1.3680043.8.498.2.{number + 1}"
        dataset.ImagePositionPatient = [0, 0, number]
        file = folder / ("bleeding" if patient % 2 else "healthy") / f"IM{number:05}"
        file.parent.mkdir(exist_ok=True)
        dataset.save_as(file)


def _jpeg_lossless(values: np.ndarray, folder: Path) -> Any:
    """The slice as a dataset in JPEG Lossless, by gdcm, which only knows files."""
    import gdcm
    import pydicom
    from pydicom.dataset import Dataset, FileMetaDataset
    from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid

    dataset = Dataset()
    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    dataset.SOPClassUID = dataset.file_meta.MediaStorageSOPClassUID = CTImageStorage
    dataset.SOPInstanceUID = dataset.file_meta.MediaStorageSOPInstanceUID = generate_uid()
    dataset.StudyInstanceUID = generate_uid()
    tags = {"Modality": "CT", "Rows": values.shape[0], "Columns": values.shape[1], "SamplesPerPixel": 1,
            "PhotometricInterpretation": "MONOCHROME2", "BitsAllocated": 16, "BitsStored": 12, "HighBit": 11,
            "PixelRepresentation": 0, "RescaleSlope": 1, "RescaleIntercept": -1024, "PixelSpacing": [0.5, 0.5],
            "ImageOrientationPatient": [1, 0, 0, 0, 1, 0], "PixelData": values.tobytes()}  # fmt: skip
    for name, value in tags.items():
        setattr(dataset, name, value)
    plain, packed = folder / "plain.dcm", folder / "packed.dcm"
    dataset.save_as(plain, enforce_file_format=True)
    reader = gdcm.ImageReader()
    reader.SetFileName(str(plain))
    writer = gdcm.ImageWriter()
    change = gdcm.ImageChangeTransferSyntax()
    change.SetTransferSyntax(gdcm.TransferSyntax(gdcm.TransferSyntax.JPEGLosslessProcess14_1))
    if not reader.Read():
        raise RuntimeError("gdcm cannot read what pydicom wrote")
    change.SetInput(reader.GetImage())
    if not change.Change():
        raise RuntimeError("gdcm cannot compress")
    writer.SetFileName(str(packed))
    writer.SetFile(reader.GetFile())
    writer.SetImage(change.GetOutput())
    if not writer.Write():
        raise RuntimeError("gdcm cannot write")
    data = packed.read_bytes()
    plain.unlink()
    packed.unlink()
    return pydicom.dcmread(io.BytesIO(data))


def _seconds() -> tuple[float, float]:
    """The clock, and the time of all processors for this process and its children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return time.perf_counter(), sum(one.ru_utime + one.ru_stime for one in used)


def measure(folder: Path, size: int) -> dict[str, Any]:
    """Both readings of a folder."""
    from crossward.data.sources.dicom import DicomSettings

    settings = DicomSettings(source="dicom", path=folder, size=size, prepare=("window:brain",))
    figures: dict[str, Any] = {}
    for name in ("first", "again"):
        before = _seconds()
        collection, left_out = settings.load()
        clock, processors = (after - start for after, start in zip(_seconds(), before, strict=True))
        figures[name] = {"seconds": round(clock, 2), "processor_seconds": round(processors, 2)}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return figures | {"images": len(collection), "left_out": len(left_out), "peak_mib": peak >> 10}


def main(words: Sequence[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slices", type=int, default=2000)
    parser.add_argument("--side", type=int, default=512)
    parser.add_argument("--size", type=int, default=128)
    asked = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["CROSSWARD_CACHE"] = f"{folder}/cache"
        os.environ["CROSSWARD_KEYS"] = f"{folder}/keys"
        slices = Path(folder) / "slices"
        slices.mkdir()
        write_slices(slices, asked.slices, asked.side)
        old = time.time() - 3600  # the cache remembers no file that could change within the tick of a clock
        for file in slices.rglob("IM*"):
            os.utime(file, (old, old))
        figures = {"slices": asked.slices, "side": asked.side, "size": asked.size} | measure(slices, asked.size)
    print(json.dumps(figures))
    return figures


if __name__ == "__main__":
    main()
