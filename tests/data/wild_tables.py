"""Miniatures of public sets whose labels are in tables, as their publishers packed them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from public_layouts import picture, save


def write_lines(file: Path, lines: Iterable[str]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines) + "\n")


def chest_xray_14(root: Path) -> Path:
    """The NIH's: images in several folders, findings with | between them, a header with commas in its words, a table of
    boxes for some of the images, and lists of names without a header."""
    words = "Image Index,Finding Labels,Follow-up #,Patient ID,Patient Age,OriginalImage[Width,Height],Spacing[x,y],"
    lines, names = [words], []
    for number in range(40):
        findings = ("No Finding", "Effusion|Mass", "Mass", "Effusion")[number % 4]
        names.append(f"{number // 2:08d}_{number % 2:03d}.png")
        save(picture(number, number % 2), root / f"images_{1 + number // 20:03d}/images" / names[-1])
        lines.append(f"{names[-1]},{findings},0,{number // 2},58,2682,2749,0.143,0.143,")
    write_lines(root / "Data_Entry_2017.csv", lines)
    boxes = ["Image Index,Finding Label,Bbox [x,y,w,h],,,", f"{names[3]},Mass,225.0,547.0,86.0,79.0,,,"]
    write_lines(root / "BBox_List_2017.csv", boxes)
    write_lines(root / "train_val_list.txt", names[:30])
    write_lines(root / "test_list.txt", names[30:])
    return root


def chexpert(root: Path) -> Path:
    """A column for each finding that says 1.0, 0.0, -1.0 or nothing; paths that begin with the folder's own name; and a
    table for each split."""
    findings = ("No Finding", "Cardiomegaly", "Edema", "Support Devices")
    top = root / "CheXpert-v1.0-small"
    for split, count in (("train", 32), ("valid", 8)):
        lines = [f"Path,Sex,Age,Frontal/Lateral,{','.join(findings)}"]
        for number in range(count):
            patient = number // 2 + (64540 if split == "valid" else 0)
            path = f"CheXpert-v1.0-small/{split}/patient{patient:05d}/study1/view{number % 2 + 1}_frontal.jpg"
            save(picture(number + patient, number % 2), root / path)
            cells = [("1.0", "", "-1.0", "0.0", "1.0")[(number * (place + 1) + place) % 5] for place in range(4)]
            known = [cell.replace("-1.0", "0.0") or "0.0" for cell in cells]
            lines.append(f"{path},Male,68,Frontal,{','.join(cells if split == 'train' else known)}")
        write_lines(top / f"{split}.csv", lines)
    return top


def isic_2018(root: Path) -> Path:
    """A folder of images and one of a table for each split; names without extension, one column for each class."""
    for start, (split, count) in enumerate((("Training", 24), ("Validation", 6), ("Test", 8))):
        lines = ["image,MEL,NV,BCC"]
        for number in range(count):
            name = f"ISIC_{100 * start + number:07d}"
            save(picture(100 * start + number, number % 2), root / f"ISIC2018_Task3_{split}_Input" / f"{name}.jpg")
            lines.append(f"{name},{','.join('1.0' if number % 3 == place else '0.0' for place in range(3))}")
        folder = f"ISIC2018_Task3_{split}_GroundTruth"
        write_lines(root / folder / f"{folder}.csv", lines)
    write_lines(root / "ISIC2018_Task3_Training_Input/LICENSE.txt", ["CC BY-NC"])
    return root


def histopathologic_cancer(root: Path) -> Path:
    """Patches of Camelyon as Kaggle has them: id and label, images to be predicted, and a file of how to send them."""
    lines = ["id,label"]
    for number in range(24):
        save(picture(number, number % 2).convert("RGB"), root / "train" / f"{number * 7919:040x}.tif")
        lines.append(f"{number * 7919:040x},{number % 2}")
    write_lines(root / "train_labels.csv", lines)
    hidden = [f"{number + 10**9:040x}" for number in range(4)]
    for number, name in enumerate(hidden):
        save(picture(500 + number).convert("RGB"), root / "test" / f"{name}.tif")
    write_lines(root / "sample_submission.csv", ["id,label", *(f"{name},0" for name in hidden)])
    return root


def ham10000_twice(root: Path) -> Path:
    """Kaggle's archive of HAM10000: every folder a second time in small letters, and pixels as tables."""
    lines = ["lesion_id,image_id,dx,dx_type,age,sex,localization"]
    for number in range(24):
        label = number // 2 % 3
        for folder in ("HAM10000_images_part_", "ham10000_images_part_"):
            save(picture(number, label % 2), root / f"{folder}{1 + number % 2}" / f"ISIC_{24300 + number:07d}.jpg")
        lines.append(
            f"HAM_{number // 2:07d},ISIC_{24300 + number:07d},{('nv', 'mel', 'bkl')[label]},histo,50,male,back"
        )
    write_lines(root / "HAM10000_metadata.csv", lines)
    write_lines(root / "hmnist_8_8_L.csv", ["pixel0000,pixel0001,label", "12,40,2", "3,4,1"])
    return root


def export_in_german(root: Path) -> Path:
    """Paths of Windows with a BOM, columns in German, extensions in capitals, umlauts in names."""
    lines = ["Dateipfad;Befund;Fallnummer"]
    for number in range(24):
        save(picture(number, number % 2), root / "Bilder" / f"Größe {number}.PNG", format="PNG")
        label = ("gutartig", "bösartig")[number % 2]
        lines.append(f"Z:\\Radiologie\\Bilder\\Größe {number}.PNG;{label};{number // 2}")
    (root / "liste.csv").write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())
    return root


def lists_of_labels(root: Path) -> Path:
    """PadChest: labels as a program writes its lists."""
    lines = ["ImageID,Labels"]
    for number in range(24):
        save(picture(number, number % 2), root / "images" / f"{number}.png")
        labels = (["normal"], ["cardiomegaly", "effusion"], ["effusion"])[number % 3]
        lines.append(f'{number}.png,"{labels}"')
    write_lines(root / "PADCHEST.csv", lines)
    return root


def boxes_of_several_readers(root: Path) -> Path:
    """VinDr-CXR: a row for each box of each reader, with another class each, or No finding."""
    rows = ["image_id,class_name,class_id,rad_id,x_min,y_min"]
    for number in range(36):
        name = f"{number:032x}"
        save(picture(number, number % 2), root / "train" / f"{name}.png")
        if number % 2 == 0:
            rows += [f"{name},No finding,14,R{reader}," + "," for reader in range(3)]
        else:
            rows += [f"{name},Cardiomegaly,3,R8,1,2", f"{name},{('Nodule/Mass', 'Fibrosis')[number % 4 // 2]},8,R9,3,4"]
    write_lines(root / "train.csv", rows)
    return root


def boxes_and_folds(root: Path) -> Path:
    """A row for each box, all with the label of their image, and a column fold that says train or test."""
    rows = ["patientId,x,y,Target,fold"]
    for number in range(36):
        name = f"a{number:03x}-77"
        save(picture(number, number % 2), root / "images" / f"{name}.png")
        rows += [f"{name},{box},2,{number % 2},{'train' if number < 26 else 'test'}" for box in range(1 + number % 3)]
    write_lines(root / "labels.csv", rows)
    return root


TABLES = {
    "boxes of several readers": boxes_of_several_readers,
    "boxes and folds": boxes_and_folds,
    "chest x-ray 14": chest_xray_14,
    "chexpert": chexpert,
    "isic 2018": isic_2018,
    "histopathologic cancer": histopathologic_cancer,
    "ham10000 twice": ham10000_twice,
    "export in german": export_in_german,
    "lists of labels": lists_of_labels,
}
