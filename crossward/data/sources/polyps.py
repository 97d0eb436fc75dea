"""PolypGen (six hospitals) and four sets of one hospital each: polyps with their masks.

Five public sets of colonoscopic frames with a mask of the polyp in each, a folder or one .zip of it.

PolypGen (Ali et al., Sci Data 10, 2023, 75): the single frames of six hospitals, data_C1 to data_C6, which are the
sites; its sequences, boxes and pooled copies are not read. Names of C1 tell the examination (176OLCV1_100H0012) and
those of C4 the video (10_endocv2021_positive_499), which are the groups. Those of C2, C3, C5 and C6 number the frames
alone: each is a group of its own, though neighbours often show one polyp.

CVC-ClinicDB (Bernal et al., Comput Med Imaging Graph 43, 2015, 99-111): 612 frames of 29 sequences, which are the
groups; the frames of each, in the order of their numbers, are as published with the set.

Kvasir-SEG (Jha et al., MMM 2020), ETIS-LaribPolypDB (Silva et al., IJCARS 9, 2014, 283-293) and CVC-ColonDB (Bernal et
al., Pattern Recognition 45, 2012, 3166-3182): the names tell neither patients nor sequences, so there are no groups.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from crossward.core.image_size import Size
from crossward.data.archives import find_dataset, open_files
from crossward.data.bad_files import BadFile, check_policy, refuses, set_aside
from crossward.data.cache import DecodedImages, ImagePaths, decode_files
from crossward.data.collection import Collection
from crossward.data.decode import Frame, is_image
from crossward.data.partition import natural_key
from crossward.data.sources.image_lists import first_lines
from crossward.data.sources.settings import ImageFileSettings, Loaded
from crossward.errors import ConfigError, DataError
from crossward.settings import AbsolutePath
from crossward.user_folders import data_root

PolypSet = Literal["polypgen", "kvasir-seg", "cvc-clinicdb", "etis", "cvc-colondb"]
CLASSES = ("background", "polyp")
CENTRES = ("C1", "C2", "C3", "C4", "C5", "C6")
SEQUENCE_ENDS = (  # the last frame of each sequence of CVC-ClinicDB
    *(25, 50, 67, 78, 103, 126, 151, 177, 199, 205, 227, 252, 277, 297, 317),
    *(342, 363, 383, 408, 428, 447, 466, 478, 503, 528, 546, 571, 591, 612),
)
PATIENT = re.compile(r"(\d+OLCV\d+)_|(\d+)_endocv2021_", re.IGNORECASE)  # in names of PolypGen
UNPAIRED = {
    "has no mask": "image(s) without a mask",
    "is a mask without an image": "mask(s) without an image",
    "is not there": "hospital(s) without images",
}
STEM = "(?P<stem>[^/]+?)"
CENTRE = "data_(?P<site>C[1-6])"
PLAIN = (f"images/{STEM}", f"masks/{STEM}")
Key = tuple[str, str]  # site ("" when there is one), and the name without what its folder adds to it
Matches = dict[Key, list[tuple[str, str]]]  # the folder that holds the layout, and the path


class PolypSettings(ImageFileSettings):
    source: PolypSet
    path: AbsolutePath | None = None  # None: the archive, or the folder, of the set in CROSSWARD_DATA

    def load(self) -> Loaded:
        path = self.path or locate(data_root(), self.source)
        collection, left_out = read(path, name=self.source, **self.decoding())
        return collection, [str(file) for file in left_out]


@dataclass(frozen=True)
class PolypSetFacts:
    title: str
    where: str
    layouts: tuple[tuple[str, str], ...]  # patterns of the paths of images and of their masks, without extensions
    example: str
    names: tuple[str, ...]  # of its folder or archive, in any case


POLYP_SETS: Mapping[str, PolypSetFacts] = {
    "polypgen": PolypSetFacts(
        "PolypGen",
        "https://doi.org/10.7303/syn26376615",
        # an image of C3 is named ..._00489_.jpg, and its mask ..._00489_mask.jpg
        ((rf"{CENTRE}/images_(?P=site)/{STEM}_*", rf"{CENTRE}/masks_(?P=site)/{STEM}_*mask"),),
        "data_C1/images_C1/1.jpg and data_C1/masks_C1/1_mask.jpg",
        ("PolypGen", "PolypGen2021_MultiCenterData_v3"),
    ),
    "kvasir-seg": PolypSetFacts(
        "Kvasir-SEG",
        "https://datasets.simula.no/kvasir-seg",
        (PLAIN,),
        "images/1.jpg and masks/1.jpg",
        ("Kvasir-SEG",),
    ),
    "cvc-clinicdb": PolypSetFacts(
        "CVC-ClinicDB",
        "https://polyp.grand-challenge.org/CVCClinicDB",
        ((f"Original/{STEM}", f"Ground[ _]?Truth/{STEM}"), PLAIN),
        "Original/1.tif and Ground Truth/1.tif",
        ("CVC-ClinicDB",),
    ),
    "etis": PolypSetFacts(
        "ETIS-LaribPolypDB",
        "https://polyp.grand-challenge.org/EtisLarib",
        ((f"ETIS-LaribPolypDB/{STEM}", f"Ground[ _]?Truth/p?{STEM}"), (f"images/p?{STEM}", f"masks/p?{STEM}")),
        "ETIS-LaribPolypDB/1.tif and Ground Truth/p1.tif, or images/1.png and masks/1.png or p1.png",
        ("ETIS-LaribPolypDB",),
    ),
    "cvc-colondb": PolypSetFacts(
        "CVC-ColonDB",
        "http://mv.cvc.uab.es/projects/colon-qa/cvccolondb",
        (PLAIN, (r"(?P<stem>\d+)", r"p(?P<stem>\d+)")),  # the latter has other pictures, s1 and c1, beside them
        "images/1.png and masks/1.png, or 1.bmp and p1.bmp",
        ("CVC-ColonDB",),
    ),
}


@dataclass(frozen=True)
class Pair:
    """An image and its mask."""

    image: str  # paths
    mask: str
    site: str  # "" when the set is of one hospital
    group: str  # "" when the name does not say

    @property
    def id(self) -> str:
        name = PurePosixPath(self.image).name
        return f"{self.site}/{name}" if self.site else name


def locate(root: Path | None, name: str) -> Path:
    """Where the set is in `root`, the folder of all datasets."""
    facts = _set_facts(name)
    return find_dataset(root, facts.names, title=facts.title, where=facts.where)


def read(
    root: Path,
    *,
    name: str,
    size: Size = 64,
    channels: int = 3,
    fit: str = "stretch",
    bad_files: str = "refuse",
    prepare: tuple[str, ...] = (),
    cache: Path,
) -> tuple[Collection, list[BadFile]]:
    """The frames of the set `name` in `root`, a folder or archive, in the order of their names, and what was left out.

    Rows are named by their file, with the hospital before it in PolypGen, however the set is packed. With `bad_files`
    = "quarantine" a hospital without any image is not there.
    """
    policy = check_policy(bad_files)
    frame = Frame(size, channels, fit, len(CLASSES), prepare)
    with open_files(root) as files:
        pairs, problems = usable_pairs(root, files.listing(), name, policy)
        decoded = decode_files(files, paths_of(pairs), frame, cache)
    return collection_of_pairs(name, root, pairs, problems, decoded, policy)


def usable_pairs(root: Path, listing: Iterable[str], name: str, policy: str) -> tuple[list[Pair], list[BadFile]]:
    """The pairs that are worth decoding, and what is wrong with the other files.

    Images without masks, and masks without images, are refused now unless such files are left out.
    """
    pairs, unpaired = pair_masks(root, listing, name)
    if unpaired and (refuses(policy, len(unpaired), len(pairs) + len(unpaired)) or not pairs):
        raise _incomplete(root, _set_facts(name), unpaired)
    without_sequence = {pair.image: bad for pair in pairs for bad in _unknown_sequence(pair, name)}
    return [pair for pair in pairs if pair.image not in without_sequence], [*unpaired, *without_sequence.values()]


def paths_of(pairs: Iterable[Pair]) -> list[ImagePaths]:
    return [ImagePaths(pair.image, pair.mask) for pair in pairs]


def collection_of_pairs(
    name: str,
    root: Path,
    pairs: Sequence[Pair],
    problems: Sequence[BadFile],
    decoded: DecodedImages,
    policy: str,
) -> tuple[Collection, list[BadFile]]:
    """The pairs that could be decoded, and what was left out, unless that is refused."""
    bad = [*problems, *(BadFile(pairs[at].image, None, reason) for at, reason in decoded.problems)]
    used = [pairs[at] for at in decoded.rows]
    left_out = set_aside(root, bad, bad_files=policy, before=(), after=[pair.image for pair in used])
    return _collection(name, used, decoded), left_out


def _collection(name: str, pairs: Sequence[Pair], decoded: DecodedImages) -> Collection:
    assert decoded.masks is not None
    unknown = sum(not pair.group for pair in pairs)
    caution = f"the names of {unknown} of {len(pairs)} frames tell no patient: the same may be trained and tested on"
    return Collection(
        name=name,
        task="segmentation",
        classes=CLASSES,
        images=decoded.images,
        targets=decoded.masks,
        ids=tuple(pair.id for pair in pairs),
        hashes=decoded.hashes,
        groups=tuple(pair.group or pair.id for pair in pairs) if unknown < len(pairs) else None,
        sites=tuple(pair.site for pair in pairs) if any(pair.site for pair in pairs) else None,
        file=decoded.file,
        masks_file=decoded.masks_file,
        notes=(*decoded.notes, *([caution] if unknown else [])),
    )


def pair_masks(root: Path, listing: Iterable[str], name: str) -> tuple[list[Pair], list[BadFile]]:
    """Each image with its mask, in the order of their names, and those that are without the other."""
    facts = _set_facts(name)
    images, masks = _images_and_masks(root, [path for path in listing if is_image(path)], facts)
    keys = sorted({*images, *masks}, key=lambda key: (natural_key(key[0]), natural_key(key[1])))
    both = [key for key in keys if key in images and key in masks]
    pairs = [Pair(images[key][0][1], masks[key][0][1], key[0], _group(name, *key)) for key in both]
    unpaired = [BadFile(images[key][0][1], None, "has no mask") for key in keys if key not in masks]
    unpaired += [BadFile(masks[key][0][1], None, "is a mask without an image") for key in keys if key not in images]
    if name == "polypgen":
        there = {site for site, _ in keys}
        unpaired += [BadFile(f"data_{site}", None, "is not there") for site in CENTRES if site not in there]
    return pairs, unpaired


def _images_and_masks(root: Path, paths: Sequence[str], facts: PolypSetFacts) -> tuple[Matches, Matches]:
    """The images and masks of the first layout that has both."""
    for layout in facts.layouts:
        images, masks = (_matching_paths(paths, pattern) for pattern in layout)
        if images and masks:
            break
    else:
        holders = Counter(PurePosixPath(path).parent for path in paths)
        raise DataError(
            f"{root} is not laid out as {facts.title}, with {facts.example}.",
            details=[f"found: {holder}/ ({n} image(s))" for holder, n in holders.items()],
            hint=f"Download it from {facts.where}, or check its path.",
        )
    files_by_key = [*images.values(), *masks.values()]
    homes = sorted({home for files in files_by_key for home, _ in files})
    repeated = [", ".join(path for _, path in files) for files in files_by_key if len(files) > 1]
    if repeated or len(homes) > 1:
        raise DataError(
            f"{root} holds {facts.title}, or frames of it, more than once.",
            details=[f"in: {home or '.'}" for home in homes] if len(homes) > 1 else repeated,
            hint="Keep one file of each, or name the folder that holds the set once.",
        )
    return images, masks


def _matching_paths(paths: Iterable[str], pattern: str) -> Matches:
    """The paths that fit, by site and name, each with the folder that holds the layout."""
    whole = re.compile(rf"((?:.*/)?){pattern}\.\w+", re.IGNORECASE)
    matches = defaultdict(list)
    for path in paths:
        if match := whole.fullmatch(path):
            parts = match.groupdict()
            matches[parts.get("site", "").upper(), parts["stem"].casefold()].append((match[1], path))
    return dict(matches)


def _group(name: str, site: str, stem: str) -> str:
    if name == "polypgen" and (match := PATIENT.match(stem)):
        return f"{site}/{(match[1] or match[2]).upper()}"
    if name == "cvc-clinicdb" and stem.isdecimal() and 1 <= int(stem) <= SEQUENCE_ENDS[-1]:
        return f"sequence-{bisect_left(SEQUENCE_ENDS, int(stem)) + 1:02d}"
    return ""


def _unknown_sequence(pair: Pair, name: str) -> list[BadFile]:
    """A frame of CVC-ClinicDB of no known sequence, which might leak."""
    reason = f"is no frame from 1 to {SEQUENCE_ENDS[-1]}, so that its sequence is not known"
    return [BadFile(pair.image, None, reason)] if name == "cvc-clinicdb" and not pair.group else []


def _incomplete(root: Path, facts: PolypSetFacts, unpaired: Sequence[BadFile]) -> DataError:
    counts = Counter(bad.reason for bad in unpaired)
    return DataError(
        f"{root}: {', '.join(f'{n} {UNPAIRED[reason]}' for reason, n in counts.items())}.",
        details=first_lines(unpaired),
        hint=f'Download them from {facts.where}, or leave them out with data.bad_files = "quarantine".',
    )


def _set_facts(name: str) -> PolypSetFacts:
    if name not in POLYP_SETS:
        raise ConfigError(f'"{name}" is no set of polyps.', hint=f"Use one of: {', '.join(POLYP_SETS)}.")
    return POLYP_SETS[name]
