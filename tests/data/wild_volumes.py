"""Miniatures of what a PACS exports, and of sets of volumes, in the layouts that people have them in."""

from __future__ import annotations

import gzip
import zipfile
from pathlib import Path

import numpy as np
from dicom_corpus import AXIAL, CT, DIRECTORY, DX, HU, image, nifti, stored, with_pixels
from public_layouts import picture
from pydicom.dataset import Dataset
from pydicom.sequence import Sequence
from pydicom.uid import generate_uid

CLASSES = ("haemorrhage", "none of these")


def slices(number: int, count: int = 3, side: int = 24) -> list[Dataset]:
    """A series of a patient, of the class of its number."""
    study, series = generate_uid(), generate_uid()
    made = []
    for place in range(count):
        values = np.array(picture(100 * number + place, number % 2, side)).astype(np.uint16) + 1000
        tags = AXIAL | {"PatientID": f"MRN{7000 + number}", "PatientName": f"Person{number}^Nobody"}
        one = with_pixels(image(CT, "CT", **tags), values, **HU)
        one.StudyInstanceUID, one.SeriesInstanceUID = study, series
        one.ImagePositionPatient, one.InstanceNumber = [0, 0, 5 * place], place + 1
        made.append(one)
    return made


def write(dataset: Dataset, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(stored(dataset))


def patients_studies_series(root: Path) -> Path:
    """patient/study/series/IM0001 without extensions, with a table by SOPInstanceUID inside of the folder."""
    lines = ["SOPInstanceUID,PatientID,label"]
    for number in range(8):
        for place, one in enumerate(slices(number)):
            write(one, root / f"MRN{7000 + number}" / "ST0001" / "SE0001" / f"IM{place:04d}")
            lines.append(f"{one.SOPInstanceUID},{one.PatientID},{CLASSES[number % 2]}")
    (root / "labels.csv").write_text("\n".join(lines))
    return root


def labels_by_file_name(root: Path) -> Path:
    """Flat .dcm files with a table of another program: filename and diagnosis, semicolons and a BOM."""
    lines = ["filename;diagnosis;reader"]
    for number in range(16):
        write(slices(number, 1)[0], root / "dicom" / f"ID_{number:06x}.dcm")
        lines.append(f"ID_{number:06x};{CLASSES[number % 2]};AB")
    (root / "annotations.csv").write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())
    return root


def dicom_in_class_folders(root: Path) -> Path:
    """Radiographs in folders of classes, some without an extension."""
    for number in range(16):
        values = np.array(picture(number, number % 2)).astype(np.uint16) * 16
        one = with_pixels(image(DX, "DX", PatientID=f"A{number // 2}9"), values, bits=12)
        write(one, root / ("sick" if number % 2 else "well") / f"{number}{'.dcm' if number % 3 else ''}")
    return root


def zipped_dicom(root: Path) -> Path:
    folder = dicom_in_class_folders(root / "unpacked")
    with zipfile.ZipFile(root / "export.zip", "w") as archive:
        for file in sorted(path for path in folder.rglob("*") if path.is_file()):
            archive.write(file, file.relative_to(folder))
    return root / "export.zip"


def dicomdir(root: Path) -> Path:
    """A CD: DICOMDIR, and the images of folders that are named after classes below it."""
    records = []
    for number in range(12):
        one = slices(number, 1)[0]
        parts = ["DICOM", ("SICK", "WELL")[number % 2], f"I{number:07d}"]
        write(one, root.joinpath(*parts))
        record = Dataset()
        record.DirectoryRecordType, record.ReferencedFileID = "IMAGE", parts
        record.ReferencedSOPClassUIDInFile, record.ReferencedSOPInstanceUIDInFile = CT, one.SOPInstanceUID
        record.ReferencedTransferSyntaxUIDInFile = "1.2.840.10008.1.2.1"
        records.append(record)
    index = Dataset()
    index.file_meta = type(slices(0, 1)[0].file_meta)()
    index.SOPClassUID, index.SOPInstanceUID = DIRECTORY, generate_uid()
    index.FileSetID, index.DirectoryRecordSequence = "CD", Sequence(records)
    (root / "DICOMDIR").write_bytes(stored(index))
    (root / "autorun.inf").write_text("[autorun]")
    (root / "VIEWER.EXE").write_bytes(b"MZ" + bytes(200))
    return root / "DICOMDIR"


def medical_decathlon(root: Path) -> Path:
    """imagesTr with labelsTr, imagesTs without labels, and dataset.json."""
    rng = np.random.default_rng(0)
    for number in range(7):
        voxels = rng.integers(0, 300, (20, 20, 2)).astype(np.int16)
        top = root / "Task99_Toy"
        for folder, content in (("imagesTr", voxels), ("labelsTr", (voxels > 200).astype(np.uint8))):
            for hidden in ("", "._"):
                file = top / folder / f"{hidden}toy_{number:03d}.nii.gz"
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(gzip.compress(nifti(content), mtime=0) if not hidden else b"\0\5\x16\7")
    ts = root / "Task99_Toy/imagesTs/toy_090.nii.gz"
    ts.parent.mkdir()
    ts.write_bytes(gzip.compress(nifti(rng.integers(0, 300, (20, 20, 2)).astype(np.int16)), mtime=0))
    (root / "Task99_Toy/dataset.json").write_text("{}")
    return root


def write_volume(file: Path, voxels: np.ndarray) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(gzip.compress(nifti(voxels), mtime=0) if file.suffix == ".gz" else nifti(voxels))


def bids(root: Path) -> Path:
    """participants.tsv, two sessions of two contrasts, a series in time, a label in two spellings, files of JSON."""
    rng = np.random.default_rng(0)
    rows = ["participant_id\tage\tsex\tgroup"]
    for number in range(8):
        name = f"sub-{number + 1:02d}"
        for session in ("ses-1", "ses-2"):
            stem = root / name / session / "anat" / f"{name}_{session}"
            for contrast in ("T1w", "T2w"):
                voxels = rng.integers(0, 300, (16, 16, 2)).astype(np.int16)
                write_volume(stem.with_name(f"{stem.name}_{contrast}.nii.gz"), voxels)
                stem.with_name(f"{stem.name}_{contrast}.json").write_text("{}")
        rows.append(f"{name}\t{20 + number}\tF\t{('control', 'patient', 'Control', 'patient')[number % 4]}")
    (root / "participants.tsv").write_text("\n".join(rows))
    (root / "dataset_description.json").write_text('{"Name": "toy", "BIDSVersion": "1.8"}')
    (root / "README").write_text("hello")
    return root


def brats(root: Path) -> Path:
    """Four contrasts and one mask of each case."""
    rng = np.random.default_rng(0)
    for number in range(6):
        name = f"BraTS20_Training_{number:03d}"
        case = root / "MICCAI_BraTS2020_TrainingData" / name
        voxels = rng.integers(0, 300, (16, 16, 2)).astype(np.int16)
        for contrast in ("flair", "t1", "t1ce", "t2"):
            write_volume(case / f"{name}_{contrast}.nii", rng.permuted(voxels))
        write_volume(case / f"{name}_seg.nii", (voxels > 250).astype(np.uint8))
    return root


def kits(root: Path) -> Path:
    """A folder for each case with imaging and segmentation."""
    rng = np.random.default_rng(0)
    for number in range(6):
        voxels = rng.integers(0, 300, (16, 16, 2)).astype(np.int16)
        write_volume(root / f"case_{number:05d}/imaging.nii.gz", voxels)
        write_volume(root / f"case_{number:05d}/segmentation.nii.gz", (voxels // 110).astype(np.uint8))
    return root


def lits(root: Path) -> Path:
    """volume-0 and segmentation-0 in one folder."""
    rng = np.random.default_rng(0)
    for number in range(6):
        voxels = rng.integers(0, 300, (16, 16, 2)).astype(np.int16)
        write_volume(root / f"Training Batch 1/volume-{number}.nii", voxels)
        write_volume(root / f"Training Batch 1/segmentation-{number}.nii", (voxels > 200).astype(np.uint8))
    return root


def acdc(root: Path) -> Path:
    """Two frames of each patient, each with a mask that ends in _gt."""
    rng = np.random.default_rng(0)
    for number in range(6):
        for frame in ("frame01", f"frame{10 + number}"):
            voxels = rng.integers(0, 300, (16, 16, 2)).astype(np.int16)
            stem = root / "training" / f"patient{number:03d}" / f"patient{number:03d}_{frame}"
            write_volume(stem.with_name(f"{stem.name}.nii.gz"), voxels)
            write_volume(stem.with_name(f"{stem.name}_gt.nii.gz"), (voxels > 200).astype(np.uint8))
    return root


def clips(root: Path) -> Path:
    """Ultrasound clips of several frames, without extension, in folders of classes."""
    for number in range(10):
        frames = np.stack([np.array(picture(10 * number + frame, number % 2)) for frame in range(3)])
        tags = {"PatientID": f"U{number}77", "BurnedInAnnotation": "NO"}
        clip = with_pixels(image("1.2.840.10008.5.1.4.1.1.3.1", "US", **tags), frames.astype(np.uint8), frames=3)
        write(clip, root / ("sick", "well")[number % 2] / f"clip{number}")
    return root


def two_tables_of_boxes(root: Path) -> Path:
    """RSNA Pneumonia: files named after the patient, a table of boxes and a table of classes."""
    boxes, classes = ["patientId,x,y,width,height,Target"], ["patientId,class"]
    for number in range(24):
        values = np.array(picture(number, number % 2)).astype(np.uint16) * 16
        name = f"00{number:02x}f0-{number:04d}"
        write(with_pixels(image(DX, "DX", PatientID=name), values, bits=12), root / "images" / f"{name}.dcm")
        boxes += [f"{name},{box},2,3,4,{number % 2}" for box in range(1 + number % 3)]
        classes += [f"{name},{('Normal', 'Lung Opacity')[number % 2]}"] * (1 + number % 3)
    (root / "train_labels.csv").write_text("\n".join(boxes))
    (root / "detailed_class_info.csv").write_text("\n".join(classes))
    return root


def few_volumes(root: Path) -> Path:
    """Eight volumes of two classes: too few patients for three sites; one more is empty and one cut short."""
    rng = np.random.default_rng(0)
    for number in range(8):
        voxels = rng.integers(0, 200, (16, 16, 3)).astype(np.int16)
        write_volume(root / "ab"[number % 2] / f"v{number}.nii.gz", voxels)
    (root / "a" / "empty.nii.gz").write_bytes(b"")
    (root / "a" / "cut.nii.gz").write_bytes((root / "a" / "v0.nii.gz").read_bytes()[:40])
    return root


VOLUMES = {
    "two tables of boxes": two_tables_of_boxes,
    "few volumes": few_volumes,
    "bids": bids,
    "brats": brats,
    "kits": kits,
    "lits": lits,
    "acdc": acdc,
    "clips": clips,
    "patients, studies, series": patients_studies_series,
    "labels by file name": labels_by_file_name,
    "dicom in class folders": dicom_in_class_folders,
    "zipped dicom": zipped_dicom,
    "dicomdir": dicomdir,
    "medical decathlon": medical_decathlon,
}
