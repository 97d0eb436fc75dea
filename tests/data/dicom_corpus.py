"""A corpus of DICOM and NIfTI files with one pitfall each, and what must come of it: pixels, computed here by numpy
from the values that were put in, or the reason why the file is set aside.

`python tests/data/dicom_corpus.py FOLDER` writes the files. The pitfalls are those of the trackers of pydicom (#599,
#693, #796, #866, #1073, #2353), MONAI (#1711, #8265, #8468), cornerstone (#2215, WADO loader #380), nibabel (#182,
#522), simnibs (#448) and fmriprep (#2281).
"""

from __future__ import annotations

import gzip
import io
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pydicom
from PIL import Image
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.encaps import encapsulate
from pydicom.sequence import Sequence
from pydicom.uid import (
    DeflatedExplicitVRLittleEndian,
    ExplicitVRBigEndian,
    ExplicitVRLittleEndian,
    ImplicitVRLittleEndian,
    JPEG2000Lossless,
    JPEGBaseline8Bit,
    JPEGLosslessSV1,
    JPEGLSLossless,
    RLELossless,
    generate_uid,
)

SIDE = 32  # fewer are too few for JPEG 2000
VOXELS = 16  # of each side of a volume
CT = "1.2.840.10008.5.1.4.1.1.2"
ENHANCED_CT = "1.2.840.10008.5.1.4.1.1.2.1"
MR = "1.2.840.10008.5.1.4.1.1.4"
PET = "1.2.840.10008.5.1.4.1.1.128"
DX = "1.2.840.10008.5.1.4.1.1.1.1"
MG = "1.2.840.10008.5.1.4.1.1.1.2"
US = "1.2.840.10008.5.1.4.1.1.6.1"
US_CINE = "1.2.840.10008.5.1.4.1.1.3.1"
CAPTURE = "1.2.840.10008.5.1.4.1.1.7"
REPORT = "1.2.840.10008.5.1.4.1.1.88.11"
DIRECTORY = "1.2.840.10008.1.3.10"
MPEG4 = "1.2.840.10008.1.2.4.102"
PRIVATE = "1.2.840.113619.5.2"

PATIENT = {  # every one of these must be found nowhere outside of the files
    "PatientName": "Rosalind^Wintergreen",
    "PatientID": "MRN-7734-QX",
    "PatientBirthDate": "19470321",
    "PatientAddress": "12 Lavender Hill",
    "OtherPatientIDs": "OTHER-99121",
    "AccessionNumber": "ACC-55-8812",
    "ReferringPhysicianName": "Okonkwo^Adaeze",
    "InstitutionName": "Saint Eulalia Infirmary",
    "StudyID": "STUDY-4410",
    "StudyDate": "20190817",
    "StudyTime": "235917.0042",
    "OperatorsName": "Tremaine^Q",
    "PatientComments": "collects porcelain owls",
}


@dataclass(frozen=True)
class Case:
    name: str
    data: bytes = field(repr=False)
    pixels: Any = None  # (H, W) or (H, W, 3) uint8
    reason: str = ""  # words of the reason
    habit: str = ""
    prepare: tuple[str, ...] = ()
    part: str = ""
    burned_in: bool = False
    tolerance: int = 0  # levels, of what is stored with loss
    path: str = "x.dcm"


def image(sop_class: str = MR, modality: str = "MR", **tags: Any) -> Dataset:
    """An image of a patient, without its pixels."""
    dataset = Dataset()
    dataset.file_meta = FileMetaDataset()
    dataset.SOPClassUID = sop_class
    dataset.SOPInstanceUID = generate_uid()
    dataset.StudyInstanceUID = generate_uid()
    dataset.SeriesInstanceUID = generate_uid()
    dataset.Modality = modality
    dataset.SeriesNumber = dataset.InstanceNumber = 1
    for name, value in (PATIENT | tags).items():
        setattr(dataset, name, value)
    return dataset


def with_pixels(dataset: Dataset, values: np.ndarray, *, bits: int | None = None, photometric: str = "MONOCHROME2",
                frames: int | None = None, **tags: Any) -> Dataset:  # fmt: skip
    """The dataset with (H, W), (H, W, 3) or, if it has frames, (N, H, W[, 3]) pixels."""
    one = values[0] if frames is not None else values
    allocated = 8 * values.dtype.itemsize
    dataset.Rows, dataset.Columns = one.shape[:2]
    dataset.SamplesPerPixel = one.shape[2] if one.ndim == 3 else 1
    if one.ndim == 3:
        dataset.PlanarConfiguration = 0
    dataset.PhotometricInterpretation = photometric
    dataset.BitsAllocated = allocated
    dataset.BitsStored = bits or allocated
    dataset.HighBit = dataset.BitsStored - 1
    dataset.PixelRepresentation = int(values.dtype.kind == "i")
    if frames is not None:
        dataset.NumberOfFrames = frames
    dataset.PixelData = values.tobytes() + b"\0" * (values.nbytes % 2)
    dataset["PixelData"].VR = "OB" if allocated == 8 else "OW"
    for name, value in tags.items():
        setattr(dataset, name, value)
    return dataset


def stored(dataset: Dataset, syntax: str = ExplicitVRLittleEndian) -> bytes:
    dataset.file_meta.TransferSyntaxUID = syntax
    dataset.file_meta.MediaStorageSOPClassUID = dataset.get("SOPClassUID", MR)
    dataset.file_meta.MediaStorageSOPInstanceUID = dataset.get("SOPInstanceUID", generate_uid())
    out = io.BytesIO()
    implicit = syntax == ImplicitVRLittleEndian
    pydicom.dcmwrite(out, dataset, enforce_file_format=True, implicit_vr=implicit,
                     little_endian=syntax != ExplicitVRBigEndian)  # fmt: skip
    return out.getvalue()


def compressed(dataset: Dataset, syntax: str) -> bytes:
    dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    dataset.compress(syntax, generate_instance_uid=False)
    return stored(dataset, syntax)


def jpeg_lossless(dataset: Dataset, folder: Path) -> bytes:
    """By gdcm, which only knows files."""
    import gdcm

    plain, packed = folder / "plain.dcm", folder / "packed.dcm"
    plain.write_bytes(stored(dataset))
    reader = gdcm.ImageReader()
    reader.SetFileName(str(plain))
    assert reader.Read()
    change = gdcm.ImageChangeTransferSyntax()
    change.SetTransferSyntax(gdcm.TransferSyntax(gdcm.TransferSyntax.JPEGLosslessProcess14_1))
    change.SetInput(reader.GetImage())
    assert change.Change()
    writer = gdcm.ImageWriter()
    writer.SetFileName(str(packed))
    writer.SetFile(reader.GetFile())
    writer.SetImage(change.GetOutput())
    assert writer.Write()
    data = packed.read_bytes()
    assert str(JPEGLosslessSV1).encode() in data[:1024]
    return data


def item(**tags: Any) -> Dataset:
    dataset = Dataset()
    for name, value in tags.items():
        setattr(dataset, name, value)
    return dataset


# expected pixels, by the formulas of the standard ---------------------------------------------------------------------


def linear(x: np.ndarray, centre: float, width: float) -> np.ndarray:
    """PS3.3 C.11.2.1.2.1, as it is written there, from 0 to 255."""
    x = x.astype(np.float64)
    y = ((x - (centre - 0.5)) / (width - 1) + 0.5) * 255
    y = np.where(x <= centre - 0.5 - (width - 1) / 2, 0, y)
    return np.rint(np.where(x > centre - 0.5 + (width - 1) / 2, 255, y)).astype(np.uint8)


def between(x: np.ndarray, low: float, high: float) -> np.ndarray:
    return np.rint(np.clip((x.astype(np.float64) - low) / (high - low), 0, 1) * 255).astype(np.uint8)


def percentiles(x: np.ndarray, seen: np.ndarray | None = None) -> np.ndarray:
    values = np.sort((x if seen is None else x[seen]).astype(np.float64).ravel())
    low, high = np.interp(np.array([0.005, 0.995]) * (len(values) - 1), np.arange(len(values)), values)
    return between(x, low, high)


def rgb(ybr: np.ndarray) -> np.ndarray:
    """PS3.3 C.7.6.3.1.2"""
    y, cb, cr = (ybr[..., c].astype(np.float64) for c in range(3))
    cb, cr = cb - 128, cr - 128
    channels = [y + 1.402 * cr, y - 0.344136 * cb - 0.714136 * cr, y + 1.772 * cb]
    return np.stack([np.clip(np.rint(c), 0, 255) for c in channels], -1).astype(np.uint8)


def grey_of(colours: np.ndarray) -> np.ndarray:
    """What ITU-R 601 sees, as Pillow rounds it."""
    return np.asarray(Image.fromarray(colours).convert("L"))


GENERATOR = np.random.default_rng(20)
UNITS = GENERATOR.integers(-200, 300, (SIDE, SIDE)).astype(np.int16)  # Hounsfield units
TWELVE = GENERATOR.integers(0, 4096, (SIDE, SIDE)).astype(np.uint16)
EIGHT = GENERATOR.integers(0, 256, (SIDE, SIDE)).astype(np.uint8)
COLOURS = GENERATOR.integers(0, 256, (SIDE, SIDE, 3)).astype(np.uint8)
STORED = (UNITS + 1024).astype(np.uint16)
HU = {"RescaleSlope": 1, "RescaleIntercept": -1024, "RescaleType": "HU"}
AXIAL = {"ImageOrientationPatient": [1, 0, 0, 0, 1, 0], "ImagePositionPatient": [0, 0, 0], "PixelSpacing": [1, 1]}
BRAIN = ("window:brain",)
BRAIN_PIXELS = between(UNITS, 0, 80)


def ct(values: np.ndarray = STORED, **tags: Any) -> Dataset:
    return with_pixels(image(CT, "CT", **AXIAL), values, **HU | tags)


def windows() -> Iterator[Case]:
    yield Case("ct by a preset", stored(ct()), BRAIN_PIXELS, prepare=BRAIN)
    yield Case("ct by level and width", stored(ct()), between(UNITS, -110, 190), prepare=("window:40:300",))
    tags = stored(ct(WindowCenter=40, WindowWidth=80))
    yield Case("ct by its tags", tags, linear(UNITS, 40, 80), prepare=("window:tags",))
    yield Case("ct by default by its tags", tags, linear(UNITS, 40, 80))
    yield Case("the first of several windows",
               stored(ct(WindowCenter=[40, 600], WindowWidth=[80, 2800])), linear(UNITS, 40, 80))  # fmt: skip
    exact = stored(ct(WindowCenter=40, WindowWidth=80, VOILUTFunction="LINEAR_EXACT"))
    yield Case("a linear exact window", exact, between(UNITS, 0, 80))
    sigmoid = np.rint(255 / (1 + np.exp(-4 * (UNITS.astype(np.float64) - 40) / 80))).astype(np.uint8)
    yield Case("a sigmoid window", stored(ct(WindowCenter=40, WindowWidth=80, VOILUTFunction="SIGMOID")), sigmoid)
    yield Case("a window of width 0", stored(ct(WindowCenter=40, WindowWidth=0)), percentiles(UNITS), habit="no window")
    yield Case("no window", stored(with_pixels(image(), TWELVE, bits=12)), percentiles(TWELVE), habit="no window")
    yield Case("no window and 8 bits", stored(with_pixels(image(), EIGHT)), EIGHT)
    yield Case("no window in the tags that are asked", stored(ct()), reason="no window in its tags",
               prepare=("window:tags",))  # fmt: skip
    yield Case("12 bits by their range", stored(with_pixels(image(), TWELVE, bits=12)), between(TWELVE, 0, 4095),
               prepare=("range:bits",))  # fmt: skip
    table = (4095 - np.arange(4096)).astype(np.uint16)
    voi = with_pixels(image(), TWELVE, bits=12)
    voi.VOILUTSequence = Sequence([item(LUTDescriptor=[4096, 0, 12], LUTData=table.tobytes())])
    voi.VOILUTSequence[0]["LUTDescriptor"].VR = "US"
    voi.VOILUTSequence[0]["LUTData"].VR = "OW"
    yield Case("a VOI LUT", stored(voi), between(4095 - TWELVE.astype(int), 0, 4095))


def units() -> Iterator[Case]:
    signed = with_pixels(image(CT, "CT", **AXIAL), UNITS, RescaleSlope=1, RescaleIntercept=0)
    yield Case("signed pixels", stored(signed), BRAIN_PIXELS, prepare=BRAIN)
    half = with_pixels(image(CT, "CT"), (STORED * 2).astype(np.uint16), RescaleSlope="0.5", RescaleIntercept="-1024.0")
    yield Case("a slope that is no whole number", stored(half), BRAIN_PIXELS, prepare=BRAIN)
    downward = with_pixels(image(PET, "PT"), TWELVE, RescaleSlope=-2, RescaleIntercept=10)
    yield Case("a negative slope on PET", stored(downward), between(10 - 2.0 * TWELVE, -8190, 10),
               prepare=("range:-8190:10",))  # fmt: skip
    yield Case("a slope of 0", stored(ct(RescaleSlope=0)), reason="RescaleSlope 0")
    yield Case("a negative slope on CT", stored(ct(RescaleSlope=-1)), reason="negative RescaleSlope -1")
    bare = with_pixels(image(CT, "CT", **AXIAL), STORED)
    yield Case("ct without rescale", stored(bare), reason="CT without RescaleSlope")
    modality = with_pixels(image(), EIGHT, WindowCenter=3000, WindowWidth=2000)
    table = (1000 + 16 * np.arange(256)).astype(np.uint16)
    modality.ModalityLUTSequence = Sequence(
        [item(LUTDescriptor=[256, 0, 16], ModalityLUTType="US", LUTData=table.tobytes())]
    )
    modality.ModalityLUTSequence[0]["LUTDescriptor"].VR = "US"
    modality.ModalityLUTSequence[0]["LUTData"].VR = "OW"
    yield Case("a modality LUT", stored(modality), linear(1000 + 16 * EIGHT.astype(int), 3000, 2000))


def bits() -> Iterator[Case]:
    junk = (TWELVE | 0xA000).astype(np.uint16)
    yield Case("an overlay in the unused bits", stored(with_pixels(image(), junk, bits=12)), between(TWELVE, 0, 4095),
               prepare=("range:bits",))  # fmt: skip
    low = (UNITS & 0x0FFF).astype(np.int16)  # 12 bits with a sign, whose upper bits are not filled with it
    unfilled = with_pixels(image(CT, "CT"), low, bits=12, RescaleSlope=1, RescaleIntercept=0)
    yield Case("12 bits with a sign", stored(unfilled), BRAIN_PIXELS, prepare=BRAIN)
    upper = with_pixels(image(), (TWELVE << 4).astype(np.uint16), bits=12, HighBit=15)
    yield Case("a high bit of 15", stored(upper), between(TWELVE, 0, 4095), prepare=("range:bits",))
    padded = STORED.copy()
    padded[:3] = 63536
    hidden = BRAIN_PIXELS.copy()
    hidden[:3] = 0
    yield Case("padding", stored(ct(padded, PixelPaddingValue=63536)), hidden, prepare=BRAIN)
    inverse = 255 - BRAIN_PIXELS
    yield Case("monochrome 1", stored(ct(PhotometricInterpretation="MONOCHROME1")), inverse, prepare=BRAIN)
    dark = inverse.copy()
    dark[:3] = 0
    yield Case("monochrome 1 with padding",
               stored(ct(padded, PixelPaddingValue=63536, PhotometricInterpretation="MONOCHROME1")), dark,
               prepare=BRAIN)  # fmt: skip
    ranged = TWELVE.copy()
    ranged[0], ranged[1] = 60000, 60010
    kept = percentiles(ranged, np.arange(SIDE)[:, None].repeat(SIDE, 1) > 1)
    kept[:2] = 0
    yield Case("percentiles without padding",
               stored(with_pixels(image(), ranged, PixelPaddingValue=60010, PixelPaddingRangeLimit=60000)), kept,
               prepare=("range:percentiles",))  # fmt: skip
    empty = np.full((SIDE, SIDE), 7, np.uint16)
    yield Case("nothing but padding", stored(with_pixels(image(), empty, PixelPaddingValue=7)), reason="but padding")


def frames() -> Iterator[Case]:
    values = np.stack([STORED, (UNITS // 2 + 500).astype(np.uint16)])
    enhanced = with_pixels(image(ENHANCED_CT, "CT"), values, frames=2)
    shared = item(PlaneOrientationSequence=Sequence([item(ImageOrientationPatient=[1, 0, 0, 0, 1, 0])]))
    enhanced.SharedFunctionalGroupsSequence = Sequence([shared])
    per_frame = [
        item(
            PixelValueTransformationSequence=Sequence([item(RescaleSlope=m, RescaleIntercept=b)]),
            FrameVOILUTSequence=Sequence([item(WindowCenter=c, WindowWidth=w)]),
        )
        for m, b, c, w in ((1, -1024, 40, 80), (2, -1000, 100, 400))
    ]
    enhanced.PerFrameFunctionalGroupsSequence = Sequence(per_frame)
    data = stored(enhanced)
    doubled = 2 * (UNITS // 2)
    yield Case("rescale of the first frame", data, BRAIN_PIXELS, prepare=BRAIN, part="0")
    yield Case("rescale of the second frame", data, between(doubled, 0, 80), prepare=BRAIN, part="1")
    yield Case("window of the second frame", data, linear(doubled, 100, 400), part="1")
    yield Case("several frames as one image", data, reason="holds 2 frames")
    yield Case("a frame that is not there", data, reason="none with the number 2", part="2")
    del enhanced.PerFrameFunctionalGroupsSequence[1]
    yield Case("functional groups of too few frames", stored(enhanced), reason="functional groups of 1", part="0")
    cine = np.stack([COLOURS, COLOURS[::-1], 255 - COLOURS])
    clip = with_pixels(image(US_CINE, "US", BurnedInAnnotation="NO"), cine, frames=3, photometric="RGB")
    yield Case("a cine clip", stored(clip), grey_of(np.ascontiguousarray(COLOURS[::-1])), part="1")
    zero = with_pixels(image(), EIGHT, NumberOfFrames=0)
    yield Case("NumberOfFrames 0", stored(zero), EIGHT)


def colours() -> Iterator[Case]:
    capture = {"BurnedInAnnotation": "NO"}
    plain = with_pixels(image(CAPTURE, "OT", **capture), COLOURS, photometric="RGB")
    yield Case("rgb", stored(plain), COLOURS)
    planar = with_pixels(image(CAPTURE, "OT", **capture), COLOURS, photometric="RGB", PlanarConfiguration=1)
    planar.PixelData = COLOURS.transpose(2, 0, 1).tobytes()
    yield Case("planar configuration 1", stored(planar), COLOURS)
    ybr = with_pixels(image(CAPTURE, "OT", **capture), COLOURS, photometric="YBR_FULL")
    yield Case("ybr", stored(ybr), rgb(COLOURS), tolerance=1)
    half = COLOURS.copy()
    half[:, 1::2, 1:] = half[:, ::2, 1:]  # two pixels share their colour
    packed = np.concatenate([half[:, ::2, :1], half[:, 1::2, :1], half[:, ::2, 1:]], -1)
    shared = with_pixels(image(CAPTURE, "OT", **capture), COLOURS, photometric="YBR_FULL_422")
    shared.PixelData = packed.tobytes()
    yield Case("ybr 422", stored(shared), rgb(half), tolerance=1)
    red, green, blue = (GENERATOR.integers(0, 65536, 256).astype(np.uint16) for _ in range(3))
    palette = with_pixels(image(CAPTURE, "OT", **capture), EIGHT, photometric="PALETTE COLOR")
    for name, table in (("Red", red), ("Green", green), ("Blue", blue)):
        setattr(palette, f"{name}PaletteColorLookupTableDescriptor", [256, 0, 16])
        setattr(palette, f"{name}PaletteColorLookupTableData", table.tobytes())
    shown = np.stack([between(table[EIGHT], 0, 65535) for table in (red, green, blue)], -1)
    yield Case("a palette", stored(palette), shown)
    yield Case("a window on colours", stored(plain), reason="is in colour", prepare=BRAIN)
    smooth = np.asarray(Image.fromarray(COLOURS).resize((2, 2)).resize((SIDE, SIDE), Image.Resampling.BICUBIC))
    out = io.BytesIO()
    Image.fromarray(smooth).save(out, "JPEG", quality=95, subsampling=0)
    lossy = with_pixels(image(CAPTURE, "OT", **capture), COLOURS, photometric="YBR_FULL")
    lossy.PixelData = encapsulate([out.getvalue()])
    yield Case("jpeg", stored(lossy, JPEGBaseline8Bit), smooth, tolerance=8)


def encodings(folder: Path) -> Iterator[Case]:
    for syntax in (ImplicitVRLittleEndian, DeflatedExplicitVRLittleEndian):
        yield Case(syntax.name, stored(ct(), syntax), BRAIN_PIXELS, prepare=BRAIN)
    big = ct()
    big.PixelData = STORED.astype(">u2").tobytes()
    yield Case(ExplicitVRBigEndian.name, stored(big, ExplicitVRBigEndian), BRAIN_PIXELS, prepare=BRAIN)
    for syntax in (RLELossless, JPEGLSLossless, JPEG2000Lossless):
        yield Case(syntax.name, compressed(ct(), syntax), BRAIN_PIXELS, prepare=BRAIN)
    signed = with_pixels(image(CT, "CT"), UNITS, RescaleSlope=1, RescaleIntercept=0)
    yield Case("jpeg 2000 with a sign", compressed(signed, JPEG2000Lossless), BRAIN_PIXELS, prepare=BRAIN)
    lossless = jpeg_lossless(ct(), folder)
    yield Case("jpeg lossless", lossless, BRAIN_PIXELS, prepare=BRAIN)
    yield Case("no preamble", stored(ct())[132:], BRAIN_PIXELS, prepare=BRAIN)
    whole = ct()
    yield Case("no extension", stored(whole), BRAIN_PIXELS, prepare=BRAIN, path="WINTERGREEN/IM0001")
    odd = EIGHT[:15, :15].copy()
    odd_length = with_pixels(image(), odd)
    odd_length.PixelData = odd.tobytes()
    yield Case("an odd length without its padding", stored(odd_length), odd)
    excess = with_pixels(image(), EIGHT)
    excess.PixelData = EIGHT.tobytes() + bytes(100)
    yield Case("more bytes than pixels", stored(excess), EIGHT)
    data = stored(ct())
    yield Case("cut short in its pixels", data[:-100], reason="cut short")
    yield Case("cut short in its tags", data[:300], reason="cannot be read as DICOM")
    yield Case("cut short when compressed", lossless[:-300], reason="is cut short: the end of its")
    yield Case("nothing after the preamble", data[:132], reason="none of the tags of an image")
    yield Case(
        "noise after the preamble", bytes(128) + b"DICM" + GENERATOR.bytes(4000), reason="cannot be read as DICOM"
    )
    damaged = bytearray(lossless)
    start = damaged.index(b"\xff\xd8")
    damaged[start + 2 : start + 60] = bytes(58)
    yield Case("damaged when compressed", bytes(damaged), reason="cannot be decoded as JPEG Lossless")
    other_size = compressed(ct(), JPEG2000Lossless).replace(
        b"\x28\0\x10\0US\x02\0\x20\0", b"\x28\0\x10\0US\x02\0\x08\0"
    )
    yield Case("another size when compressed", other_size, reason="32 x 8 pixels by its tags, but 32 x 32 in")


def refusals() -> Iterator[Case]:
    yield Case("no pixel data", stored(image(REPORT, "SR")), reason="no pixel data: it is of the class Basic Text SR")
    without = with_pixels(image(), EIGHT)
    del without.Rows
    yield Case("no rows", stored(without), reason="lacks Rows")
    private = with_pixels(image(), EIGHT)
    yield Case("a private syntax", stored(private).replace(b"1.2.840.10008.1.2.1\0", b"1.2.840.113619.5.2\0\0"),
               reason="private transfer syntax 1.2.840.113619.5.2")  # fmt: skip
    video = with_pixels(image(US_CINE, "US", BurnedInAnnotation="NO"), COLOURS, photometric="YBR_FULL")
    video.PixelData = encapsulate([b"not a video"])
    yield Case("a video", stored(video, MPEG4), reason="is a video")
    yield Case("1 x 1 pixels", stored(with_pixels(image(), EIGHT[:1, :1])), reason="1 x 1 pixels, which is no image")
    huge = with_pixels(image(), EIGHT, Rows=20_000, Columns=20_000)
    yield Case("20,000 x 20,000 pixels", stored(huge), reason="more than data.max_pixels = 100000000 allows; raise it")
    scan = with_pixels(image(US, "US"), EIGHT)
    yield Case("ultrasound that says nothing of text", stored(scan), reason="of an ultrasound image is missing")
    yield Case("ultrasound that is kept", stored(scan), EIGHT, burned_in=True)
    shot = with_pixels(image(CAPTURE, "OT", BurnedInAnnotation="YES"), EIGHT)
    yield Case("a capture with text", stored(shot), reason='of a secondary capture is "YES"')
    yield Case("text on a slice", stored(ct(BurnedInAnnotation="YES")), reason='BurnedInAnnotation is "YES"')
    skewed = ct(ImageOrientationPatient=[1, 0, 0, 1, 0, 0])
    yield Case("directions that are none", stored(skewed), reason="inconsistent geometry: ImageOrientationPatient")
    yield Case("a spacing of 0", stored(ct(PixelSpacing=[0, 1])), reason="inconsistent geometry: PixelSpacing")
    index = image(DIRECTORY, "OT")
    yield Case("a DICOMDIR", stored(index), reason="is a DICOMDIR")


def orientations() -> Iterator[Case]:
    turned = ct(ImageOrientationPatient=[-1, 0, 0, 0, -1, 0])
    yield Case("a patient on the belly", stored(turned), BRAIN_PIXELS[::-1, ::-1], prepare=BRAIN)
    transposed = ct(ImageOrientationPatient=[0, 1, 0, 1, 0, 0])
    yield Case("rows and columns exchanged", stored(transposed), BRAIN_PIXELS.T, prepare=BRAIN)
    head_down = ct(ImageOrientationPatient=[0, 1, 0, 0, 0, 1])
    yield Case("a sagittal slice on its head", stored(head_down), BRAIN_PIXELS[::-1], prepare=BRAIN)
    for words, way, shown in (
        ("a radiograph", ["L", "F"], EIGHT),
        ("a mirrored radiograph", ["R", "F"], EIGHT[:, ::-1]),
        ("a radiograph on its side", ["F", "R"], EIGHT.T[:, ::-1]),
        ("a radiograph on its head", ["R", "H"], EIGHT[::-1, ::-1]),
        ("a lateral radiograph", ["A", "F"], EIGHT),
        ("the other lateral radiograph", ["P", "F"], EIGHT),
    ):
        yield Case(words, stored(with_pixels(image(DX, "DX", PatientOrientation=way), EIGHT)), shown)
    breast = with_pixels(image(MG, "MG", PatientOrientation=["P", "L"], ImageLaterality="R"), EIGHT)
    yield Case("a mammogram", stored(breast), EIGHT)


def nifti(voxels: np.ndarray, affine: np.ndarray | None = None, *, qform: np.ndarray | None = None,
          codes: tuple[int, int] = (1, 0), kind: Any = nibabel.Nifti1Image, endian: str = "<") -> bytes:  # fmt: skip
    """A NIfTI file; `codes` are those of the sform and of the qform."""
    placed = np.eye(4) if affine is None else affine
    header = kind.header_class(endianness=endian)
    header.set_data_dtype(voxels.dtype)
    volume = kind(voxels, placed, header)
    volume.header["descrip"] = b"Rosalind Wintergreen"
    volume.set_sform(placed, code=codes[0])
    volume.set_qform(placed if qform is None else qform, code=codes[1])
    return bytes(volume.to_bytes())


def scaled(data: bytes, slope: float, intercept: float) -> bytes:
    """With another slope and intercept in the header."""
    return data[:112] + np.array([slope, intercept], "<f4").tobytes() + data[120:]


def volumes() -> Iterator[Case]:
    right_front_head = GENERATOR.integers(-200, 300, (VOXELS, VOXELS, VOXELS)).astype(np.int16)
    v = right_front_head
    axial = between(v[::-1, ::-1, 5].T, 0, 80)
    common: dict[str, Any] = {"prepare": BRAIN, "path": "x.nii"}
    yield Case("an axial slice", nifti(v), axial, part="axial:5", **common)
    yield Case("a coronal slice", nifti(v), between(v[::-1, 5, ::-1].T, 0, 80), part="coronal:5", **common)
    yield Case("a sagittal slice", nifti(v), between(v[5, ::-1, ::-1].T, 0, 80), part="sagittal:5", **common)
    lps = nifti(v[::-1, ::-1].copy(), np.diag([-1.0, -1, 1, 1]))
    yield Case("voxels to the left and back", lps, axial, part="axial:5", **common)
    permuted = np.array([[0, 0, 1, 0], [1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 1.0]])  # stored front, head, right
    yield Case("voxels in another order", nifti(v.transpose(1, 2, 0).copy(), permuted), axial, part="axial:5", **common)
    qform = nifti(v[::-1, ::-1].copy(), np.diag([-1.0, -1, 1, 1]), codes=(0, 1))
    yield Case("a qform alone", qform, axial, part="axial:5", **common)
    yield Case("neither sform nor qform", nifti(v, codes=(0, 0)), axial, habit="unplaced", part="axial:5", **common)
    apart = nifti(v, np.eye(4), qform=np.diag([-1.0, -1, 1, 1]), codes=(1, 1))
    yield Case("an sform and a qform that disagree", apart, reason="sform (RAS) and a qform (LPS) that disagree",
               part="axial:5", **common)  # fmt: skip
    flat = nifti(v)[:312] + bytes(16) + nifti(v)[328:]  # the last row of the sform
    yield Case("an sform without a height", flat, reason="in one plane", part="axial:5", **common)
    yield Case("slope and intercept", scaled(nifti((v + 200) * 2), 0.5, -200.0), axial, part="axial:5", **common)
    yield Case("a slope of 0 in a volume", scaled(nifti(v), 0, 7), axial, part="axial:5", **common)
    downward = scaled(nifti(v), -1, 0)
    yield Case("a negative slope in a volume", downward, between(-v[::-1, ::-1, 5].T, 0, 80), part="axial:5", **common)
    yield Case("big-endian", nifti(v.astype(">i2"), endian=">"), axial, part="axial:5", **common)
    yield Case("nifti 2", nifti(v, kind=nibabel.Nifti2Image), axial, part="axial:5", **common)
    yield Case("zipped", gzip.compress(nifti(v)), axial, part="axial:5", **common | {"path": "x.nii.gz"})
    yield Case("zipped and cut short", gzip.compress(nifti(v))[:-50], reason="cut short", part="axial:5", **common)
    yield Case(
        "a volume cut short", nifti(v)[:-50], reason="is cut short: it has 8494 of 8544", part="axial:5", **common
    )
    floats = v.astype(np.float32)
    floats[0, 0, 0] = np.nan
    yield Case(
        "NaN in a volume", nifti(floats), reason="1 of 4096 voxels that are no numbers", part="axial:5", **common
    )
    floats[0, 0, 0] = np.inf
    yield Case("infinity in a volume", nifti(floats), reason="1 of 4096 voxels", part="axial:5", **common)
    yield Case("one slice", nifti(v[:, :, 5:6]), axial, part="axial:0", **common)
    yield Case("one slice across", nifti(v[:, :, 5:6]), reason="16 x 1 pixels, which is no image", part="coronal:0",
               **common)  # fmt: skip
    yield Case("a slice in two dimensions", nifti(v[:, :, 5].copy()), axial, part="axial:0", **common)
    yield Case("four dimensions, the last of one", nifti(v[..., None]), axial, part="axial:5", **common)
    yield Case(
        "four dimensions",
        nifti(np.stack([v, v], -1)),
        reason="holds 2 volumes: set data.channels = 2",
        part="axial:5",
        **common,
    )
    yield Case("a slice that is not there", nifti(v), reason="none with the number 16", part="axial:16", **common)
    yield Case("a volume as one image", nifti(v), reason='source = "nifti"', **common)
    colours_type = np.zeros((4, 4, 4), dtype=[("R", "u1"), ("G", "u1"), ("B", "u1")])
    yield Case("colours in a volume", nifti(colours_type), reason="colours or complex", part="axial:1", **common)
    pair = nifti(v)[:344] + b"ni1\0" + nifti(v)[348:]
    yield Case("the header of a pair", pair, reason="header of a pair", part="axial:5", **common)
    spread = percentiles(v)[::-1, ::-1, 5].T
    yield Case("the percentiles of the volume", nifti(v), spread, part="axial:5", path="x.nii")


def corpus(folder: Path) -> list[Case]:
    """All files; `folder` is for what gdcm writes."""
    parts = (windows(), units(), bits(), frames(), colours(), encodings(folder), refusals(), orientations(), volumes())
    return [case for part in parts for case in part]


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    for number, case in enumerate(corpus(target)):
        suffix = "".join(Path(case.path).suffixes)
        (target / f"{number:03} {case.name.replace('/', ' ')}{suffix}").write_bytes(case.data)
