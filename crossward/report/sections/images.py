"""Images, only on request: the surest mistakes of each class with where the network looked, generated images by round,
and segmentations from worst to best. Patients' pixels leave the machine with the page, which says so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from crossward.core.bit_depth import grey_levels
from crossward.data.federation import Federation
from crossward.errors import CrosswardError, StorageError
from crossward.report.content import Block, Details, Note, Picture, Prose, Row, Section, page_id, shown
from crossward.report.decisions import distinct_names
from crossward.report.grad_cam import grad_cam
from crossward.report.page_pictures import page_picture, thumbnail
from crossward.report.run_images import COMMON, HeldImages, images_by_holder, open_images, reason_in_words, site_of
from crossward.report.source import ReportRun, ReportSource
from crossward.runs import overlays, pictures
from crossward.runs.deployed import Deployed
from crossward.runs.run_directory import RunDir

WARNING = (
    "This section carries images of patients. Everyone who receives this file receives them: check that they may leave "
    "the hospital before you send it, or make the page without --images."
)
MOST_CLASSES = 12
MISTAKES = 4  # of a class
NEAR_LEAKS = 8  # pairs that are shown
MOST_FILES = 6  # of pictures that the run kept
MOST_BYTES = 20_000_000  # of a file that is opened
HEAT = torch.tensor([213.0, 94.0, 0.0])  # of Grad-CAM, over the image: the orange of Okabe and Ito
GENERATED = "generated-round-*.png"
OVERLAYS = "overlay-*-round-*.png"


def images_section(source: ReportSource) -> Section:
    run = shown_run(source)
    blocks: list[Block] = [Note(WARNING)]
    if run is None:
        blocks.append(Note("No run has finished, so there is no network whose images could be shown."))
    else:
        text = f"Images of the run {run.name}: {run.label}, seed {run.seed}, in the round that validation chose."
        blocks.append(Prose((text,), muted=True))
        try:
            federation = open_images(run)
            held = images_by_holder(federation)
            blocks += near_leak_pictures(run, federation)
            if run.task == "multi-label":
                blocks.append(
                    Note("Images of mistakes are shown where an image has one class; here it may have several.")
                )
            else:
                blocks += _mistakes(run, held) if run.task == "classification" else _common_overlays(run, held)
        except CrosswardError as error:
            blocks.append(Note(f"The images themselves cannot be shown: {reason_in_words(error)}."))
    blocks += _kept_pictures(source)
    return Section("images", "Images", tuple(blocks))


def shown_run(source: ReportSource) -> ReportRun | None:
    """The finished run that is best in the mean of the hospitals on validation; training alone if there is no other."""
    metric = str(source.runs[0].about["task"]["main"])
    finished = [run for run in source.runs if run.about["status"] == "finished" and not run.about.get("pooled")]
    finished = [run for run in finished if not run.alone] or finished

    def key(run: ReportRun) -> tuple[float, int]:
        value = run.rounds.best_metrics.get("val", {}).get("local", {}).get("mean", {}).get(metric)
        return (value if isinstance(value, float) else -1.0), -run.seed

    return max(finished, key=key) if finished else None


# mistakes -------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Mistake:
    holder: int  # place in the list of holders
    row: int  # of the holder's test images
    said: int
    sure: float


def surest_mistakes(predictions: Sequence[Tensor], targets: Sequence[Tensor], label: int) -> list[Mistake]:
    """The images of a class that the network is surest to take for another, the surest first."""
    found = []
    for holder, (p, truth) in enumerate(zip(predictions, targets, strict=True)):
        sure, said = p.max(1)
        for row in ((truth == label) & (said != label)).nonzero()[:, 0].tolist():
            found.append(Mistake(holder, row, int(said[row]), float(sure[row])))
    return sorted(found, key=lambda mistake: -mistake.sure)[:MISTAKES]


def _mistakes(run: ReportRun, held: Sequence[HeldImages]) -> Iterator[Block]:
    names = distinct_names(run.classes)
    networks = {site: run.result.deployed(site) for site in {site_of(run, each.holder) for each in held}}
    predictions = [networks[site_of(run, each.holder)].probabilities(each.images) for each in held]
    targets = [each.targets for each in held]
    counts = torch.cat([target.long() for target in targets]).bincount(minlength=len(names))
    largest = sorted(counts.argsort(descending=True)[:MOST_CLASSES].tolist())
    drawn = []
    for label in largest:
        worst = surest_mistakes(predictions, targets, label)
        if worst:
            maps = [
                _looked(networks[site_of(run, held[each.holder].holder)], held[each.holder], each) for each in worst
            ]
            drawn.append(_mistake_picture(names, label, worst, [held[each.holder] for each in worst], maps))
    if not drawn:
        yield Prose(("The network makes no mistake on these test images.",))
    for start in range(0, len(drawn), 2):
        yield Row(tuple(drawn[start : start + 2]))


def _looked(network: Deployed, held: HeldImages, mistake: Mistake) -> Tensor | None:
    found = grad_cam(network, held.images[mistake.row : mistake.row + 1], [mistake.said])
    return None if found is None else found[0]


def _mistake_picture(
    names: Sequence[str],
    label: int,
    worst: Sequence[Mistake],
    held: Sequence[HeldImages],
    maps: Sequence[Tensor | None],
) -> Picture:
    rows, lines = [], []
    for mistake, holder, heat in zip(worst, held, maps, strict=True):
        image = holder.images[mistake.row]
        looked = image if heat is None else heated(image, heat)
        rows.append(torch.stack([thumbnail(image), thumbnail(looked)]))
        lines.append(f"taken for {names[mistake.said]}, {100 * mistake.sure:.0f} % sure, {shown(holder.holder, 40)}")
    drawn = pictures.grid_layers(torch.stack(rows), lines)
    alt = f"{len(worst)} images of {names[label]}: {'; '.join(lines)}."
    caption = "Left: the image. Right: in orange, what speaks for the wrong class (Grad-CAM)."
    if any(heat is None for heat in maps):
        caption = "Twice the image: this method's predictions have no gradient, so there is no Grad-CAM."
    title = f"{names[label]}: the surest mistakes"
    return page_picture(page_id("mistakes", names[label]), title, drawn, alt, caption)


def near_leak_pictures(run: ReportRun, federation: Federation) -> Iterator[Block]:
    """The first pairs of almost the same image, one trained on and one held out, side by side."""
    if not (run.result.folder / "near_leaks.json").is_file():
        return
    try:
        stored = RunDir(run.result.folder).read("near_leaks.json")
        pairs = [(str(pair["trained"]), str(pair["held_out"]), str(pair["part"])) for pair in stored["pairs"]]
    except (StorageError, KeyError, TypeError):
        yield Note("Pairs of almost the same image: near_leaks.json cannot be read.")
        return
    rows = {name: row for row, name in enumerate(federation.collection.ids)}
    known = [pair for pair in pairs if pair[0] in rows and pair[1] in rows][:NEAR_LEAKS]
    if not known:
        return
    images = federation.collection.images
    drawn = [torch.stack([thumbnail(images[rows[a]]), thumbnail(images[rows[b]])]) for a, b, _ in known]
    lines = [f"trained on, and held out for {'testing' if part == 'test' else 'validation'}" for _, _, part in known]
    title = f"{len(pairs)} pair(s) of almost the same image are trained on and held out"
    alt = f"{len(known)} pairs of images that look alike."
    caption = "Left: the image that is trained on. Right: the one that is held out. Give both the same group."
    yield page_picture("near-leaks", title, pictures.grid_layers(torch.stack(drawn), lines), alt, caption)


def heated(image: Tensor, heat: Tensor) -> Tensor:
    """(H, W, 3) uint8: an (H, W, C) image in grey, with (H, W) from 0 to 1 as orange over it."""
    grey = grey_levels(image).mean(2, keepdim=True).expand(*image.shape[:2], 3)
    share = 0.75 * heat[..., None].clamp(0, 1)
    return ((1 - share) * grey + share * HEAT).round().to(torch.uint8)


# segmentation ---------------------------------------------------------------------------------------------------------
def _common_overlays(run: ReportRun, held: Sequence[HeldImages]) -> Iterator[Block]:
    """The common test set from the worst to the best; those of the hospitals' own sets are kept by the run."""
    common = next((each for each in held if each.holder == COMMON), None)
    if common is None:
        return
    site = site_of(run, COMMON)
    truth = common.targets
    prediction = run.result.deployed(site).predict(common.images)
    rows, dice = overlays.spread_by_dice(prediction, truth)
    drawn = overlays.draw(common.images[rows], truth[rows], prediction[rows])
    labels = overlays.labels(dice, [""] * len(rows))
    alt = f"{len(rows)} images of the common test set, from Dice {dice.min():.2f} to {dice.max():.2f}."
    whose = "" if site is None else f" Network of {shown(site, 60)}."
    caption = f"From the worst to the best.{whose}"
    yield page_picture("overlay-common", "The common test set", pictures.grid(drawn, labels), alt, caption)


# pictures that runs kept ----------------------------------------------------------------------------------------------
def _kept_pictures(source: ReportSource) -> Iterator[Block]:
    for run in _first_seeds(source):
        for pattern, words in ((GENERATED, "Generated images"), (OVERLAYS, "Segmentations from worst to best")):
            files = sorted((run.result.folder / "pictures").glob(pattern))
            found = [picture for file in _spread(files) if (picture := _read_picture(run, file)) is not None]
            if found:
                yield Details(f"{words}: {run.label}, seed {run.seed}", tuple(found))


def _first_seeds(source: ReportSource) -> list[ReportRun]:
    first: dict[str, ReportRun] = {}
    for run in source.runs:
        if not run.repeat:
            first.setdefault(run.label, run)
    return list(first.values())


def _spread(files: Sequence[Path]) -> list[Path]:
    """At most MOST_FILES of them, the first and the last included."""
    if len(files) <= MOST_FILES:
        return list(files)
    return [files[round(i * (len(files) - 1) / (MOST_FILES - 1))] for i in range(MOST_FILES)]


def _read_picture(run: ReportRun, file: Path) -> Picture | None:
    """A picture of the run directory, drawn anew within bounds; None if it is no PNG that can be read."""
    from PIL import Image, UnidentifiedImageError

    try:
        if file.is_symlink() or file.stat().st_size > MOST_BYTES:
            return None
        with Image.open(file, formats=("PNG",)) as opened:
            image = opened.convert("RGB")
    except (OSError, UnidentifiedImageError, ValueError, Image.DecompressionBombError):
        return None
    name, _, round = file.stem.rpartition("-round-")
    words = name.removeprefix("overlay-") if name.startswith("overlay-") else "generated"
    title = f"{shown(words, 60)}, round {shown(round.lstrip('0') or '0', 12)}"
    return page_picture(
        page_id(f"kept-{run.id}", file.stem), title, image, f"A picture that the run kept: {title}.", ""
    )
