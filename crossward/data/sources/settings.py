"""The section [data] of a configuration: the settings of every source of images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, get_args

from annotated_types import Ge, Gt, Interval, Len
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

Count = Annotated[int, Ge(1)]
Positive = Annotated[float, Gt(0)]
Colour = Annotated[tuple[float, ...], Len(1, 3)]
Place = Annotated[
    Path, AfterValidator(lambda path: path.expanduser().absolute())
]  # a run may be resumed from elsewhere
PolypSet = Literal["polypgen", "kvasir-seg", "cvc-clinicdb", "etis", "cvc-colondb"]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Images(Section):
    """What all sources have in common."""

    normalise: Literal["half", "imagenet"] | tuple[Colour, Colour] = "half"  # or [[means], [deviations]] of [0, 1]
    augment: tuple[str, ...] = ()  # "hflip", "crop:4", "rotate:10" ...


class Phantom(Images):
    source: Literal["phantom"] = "phantom"
    kind: Literal["blood", "polyp"] = "blood"
    sites: Count = 6
    train: Count = 300  # images a site has on average
    val: Annotated[int, Ge(0)] = 60
    test: Annotated[int, Ge(0)] = 60
    global_test: Annotated[int, Ge(0)] = 400
    size: Count | None = None  # pixels; None: 28 for blood, 64 for polyp
    skew: Positive = 0.5  # Dirichlet parameter of the sites' class mix (blood)
    difficulty: Positive = 1.0
    seed: Annotated[int, Ge(0)] = 0


class Decoded(Images):
    """What sources of image files have in common."""

    prepare: tuple[str, ...] = ()  # "shades-of-grey", "brightness", "window:40:80": once, before anything else
    size: Count = 64
    channels: Literal[1, 3] = 3
    fit: Literal["stretch", "crop"] = "stretch"
    bad_files: Literal["refuse", "quarantine"] = "refuse"


class Files(Decoded):
    path: Place


class Folder(Files):
    source: Literal["folder"]
    group: str | None = None  # regular expression on the path whose first group is the patient
    classes: tuple[str, ...] | None = None  # all of them in their order, also those without a folder; None: the folders


class Table(Files):
    source: Literal["table"]
    root: Place | None = None  # of the paths in the table; None: the table's own folder
    classes: tuple[str, ...] | None = None


class Npz(Images):
    source: Literal["npz"]
    path: Place
    prepare: tuple[str, ...] = ()
    size: Count | None = None
    channels: Literal[1, 3] | None = None
    classes: tuple[str, ...] | None = None


class MedMnist(Images):
    source: Literal["medmnist"]
    name: str
    root: Place | None = None  # None: the folder in CROSSWARD_DATA
    prepare: tuple[str, ...] = ()
    size: Count = 28


class Pbc(Decoded):
    source: Literal["pbc"]
    path: Place | None = None  # None: PBC_dataset_normal_DIB.zip, or that folder, in CROSSWARD_DATA
    size: Count = 28
    split: Literal["paper", "none"] = "paper"  # "none" leaves it to [partition]
    split_seed: Annotated[int, Interval(ge=0, lt=2**31)] = 0


class Ham10000(Decoded):
    source: Literal["ham10000"]
    path: Place | None = None  # None: HAM10000.zip, or that folder, in CROSSWARD_DATA


class FedIsic(Decoded):
    source: Literal["fed-isic2019"]
    path: Place | None = None  # of the images; None: ISIC_2019_Training_Input, or else HAM10000, in CROSSWARD_DATA
    listing: Place | None = None  # of images, centres and folds; None: fed_isic2019_train_test_split.csv there


class Polyps(Decoded):
    source: PolypSet
    path: Place | None = None  # None: the archive, or the folder, of the set in CROSSWARD_DATA


class PolypSets(Decoded):
    source: Literal["polyps"]
    sets: tuple[PolypSet, ...] = ("cvc-colondb", "etis", "cvc-clinicdb", "kvasir-seg")  # a site each
    paths: dict[PolypSet, Place] = {}  # of sets that are not to be looked for in CROSSWARD_DATA


class BreaKHis(Decoded):
    source: Literal["breakhis"]
    path: Place | None = None  # None: BreaKHis_v1.zip, or that folder, in CROSSWARD_DATA
    magnification: Literal["40", "100", "200", "400", "all"] = "all"
    classes: Literal["binary", "subtypes"] = "binary"


class Oct2017(Decoded):
    source: Literal["oct2017"]
    path: Place | None = None  # None: OCT2017.zip, or that folder, in CROSSWARD_DATA
    channels: Literal[1, 3] = 1
    split: Literal["official", "none"] = "none"  # "none" leaves it to [partition]


class Small(Images):
    """What sets of small pictures have in common."""

    path: Place | None = None  # None: found in CROSSWARD_DATA
    size: Count | None = None  # None: as they are
    channels: Literal[1, 3] | None = None


class Cifar(Small):
    source: Literal["cifar10", "cifar100"]


class Idx(Small):
    source: Literal["mnist", "fashion-mnist", "emnist-letters"]


class Femnist(Small):
    source: Literal["femnist"]
    max_samples: Count | None = None  # of a writer, others are left out; FedBM: 149
    users: tuple[Count, Annotated[int, Ge(0)], Annotated[int, Ge(0)]] | None = None  # drawn: train, val, test
    users_seed: Annotated[int, Interval(ge=0, lt=2**31)] = 0


Data = Annotated[
    Phantom
    | Folder
    | Table
    | Npz
    | MedMnist
    | Pbc
    | Ham10000
    | FedIsic
    | Polyps
    | PolypSets
    | BreaKHis
    | Oct2017
    | Cifar
    | Idx
    | Femnist,
    Field(discriminator="source"),
]


SOURCES: dict[str, type[Images]] = {
    "phantom": Phantom,
    "folder": Folder,
    "table": Table,
    "npz": Npz,
    "medmnist": MedMnist,
    "pbc": Pbc,
    "ham10000": Ham10000,
    "fed-isic2019": FedIsic,
    **dict.fromkeys(get_args(PolypSet), Polyps),
    "polyps": PolypSets,
    "breakhis": BreaKHis,
    "oct2017": Oct2017,
    "cifar10": Cifar,
    "cifar100": Cifar,
    "mnist": Idx,
    "fashion-mnist": Idx,
    "emnist-letters": Idx,
    "femnist": Femnist,
}
