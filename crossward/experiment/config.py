"""The configuration of a run. The options of a method, a plugin or training are the fields of its dataclass."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Interval, Len
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, model_validator

from crossward.core.training import Training
from crossward.text.encoders import settled

Fraction = Annotated[float, Interval(ge=0, le=1)]
Fractions = tuple[Fraction, Fraction, Fraction]
Count = Annotated[int, Ge(1)]
Positive = Annotated[float, Gt(0)]
Colour = Annotated[tuple[float, ...], Len(1, 3)]


Place = Annotated[
    Path, AfterValidator(lambda path: path.expanduser().absolute())
]  # a run may be resumed from elsewhere


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Run(Section):
    name: Annotated[str, StringConstraints(pattern=r"^\w[\w .+-]*$")] | None = (
        None  # of its folder; None: made from the method, the data and the seed
    )
    out: Path = Path("runs")  # the folder of run directories
    seed: Annotated[int, Interval(ge=0, lt=2**31)] = 0
    rounds: Count = 20
    participation: Annotated[float, Interval(gt=0, le=1)] = 1.0  # share of the sites asked in a round
    min_clients: Count = 1  # fewer left in a round end the run


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
    Phantom | Folder | Table | Npz | MedMnist | Pbc | Ham10000 | FedIsic | Cifar | Idx | Femnist,
    Field(discriminator="source"),
]


class Partition(Section):
    name: str | None = None  # store it under this name and use it again
    file: Place | None = None  # or take it from this manifest
    kind: Literal["auto", "iid", "dirichlet", "dirichlet-balanced", "per-class", "counts", "site", "group"] = "auto"
    sites: Count | None = None
    beta: Positive = 0.5
    alphas: Positive | tuple[Positive, ...] | None = None  # per-class: one for all, or one for each class
    removal: Annotated[float, Interval(ge=0, lt=1)] = 0.0  # per-class: chance that a site lacks a class
    counts: str | tuple[tuple[Annotated[int, Ge(0)], ...], ...] | None = None  # counts: "ich", or a row for each site
    imbalance: Annotated[float, Ge(1)] = 1.0  # the largest class over the smallest, of a long tail
    min_size: Count | None = None
    split: Fractions = (0.7, 0.1, 0.2)
    local_split: Fractions | None = None
    public: Annotated[float, Interval(ge=0, lt=1)] = 0.0
    group_aware: bool = True
    limit: Count | None = None  # training images in all
    seed: Annotated[int, Interval(ge=0, lt=2**31)] | None = None  # None: run.seed


class Named(Section):
    """A name and the options that only the named thing knows; they are checked where it is made."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str = "auto"

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


def _placed(net: Named) -> Named:
    """A file that the weights start from may be named relative to where the run begins."""
    start = net.options.get("start", "")
    if not isinstance(start, str) or start in ("", "imagenet"):
        return net
    return Named.model_validate({"name": net.name, **net.options, "start": str(Path(start).expanduser().absolute())})


class Engine(Section):
    name: Literal["local", "pool"] = "local"
    workers: Count = 2  # processes of the pool
    threads: Count = 1  # of each fit; part of what a result depends on
    device: str = "auto"  # "cpu", "cuda", "cuda:1", "mps"
    strict: bool = False  # local only: everything through the codec, networks built anew
    memory_mib: Count = 256  # client memory beyond this lives on disk


class Evaluate(Section):
    every: Annotated[int, Ge(0)] = 1  # rounds; the last is always evaluated; 0: never
    first: Count = 1  # the round before which nothing is evaluated
    select: str | None = None  # the metric that chooses the best round; None: macro F1 or Dice
    view: Literal["local", "global"] = "local"  # of validation
    keep_predictions: bool = True


class Text(Section):
    """What methods that know the classes by their names are told of them."""

    encoder: Annotated[str, AfterValidator(settled)] = "minilm"  # or biomedclip, random, a folder, a name on the hub
    lexicon: str | None = None  # a built-in list of classes; None: the one that has these classes
    concepts: dict[str, str] = {}  # class -> words, before the lexicon's
    nouns: tuple[str, ...] = ()  # what the pictures are called, in place of the lexicon's
    templates: tuple[str, ...] = ()  # in place of frames x nouns; each holds {} once
    fraction: Annotated[float, Interval(gt=0, le=1)] = 1.0  # share of the templates, chosen by chance
    seed: Annotated[int, Interval(ge=0, lt=2**31)] = 0  # of that choice


class Config(Section):
    run: Run = Run()
    data: Data = Phantom()
    partition: Partition = Partition()
    task: dict[str, Any] = {}
    net: Annotated[Named, AfterValidator(_placed)] = Named()
    method: Named = Named(name="fedavg")
    plugin: dict[str, dict[str, Any]] = {}
    train: Annotated[Training, Field(default_factory=Training)]
    text: Text = Text()
    engine: Engine = Engine()
    evaluate: Evaluate = Evaluate()

    @model_validator(mode="before")
    @classmethod
    def _phantom_by_default(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(data.get("data"), dict) and "source" not in data["data"]:
            return data | {"data": {"source": "phantom"} | data["data"]}
        return data

    @property
    def method_name(self) -> str:
        return self.method.name.split("+")[0]

    @property
    def plugin_names(self) -> list[str]:
        """`fedavg+prox+ft` carries prox and ft."""
        return self.method.name.split("+")[1:]

    def canonical(self) -> dict[str, Any]:
        """Every setting as JSON."""
        full: dict[str, Any] = self.model_dump(mode="json")
        return full


SOURCES: dict[str, type[Images]] = {
    "phantom": Phantom,
    "folder": Folder,
    "table": Table,
    "npz": Npz,
    "medmnist": MedMnist,
    "pbc": Pbc,
    "ham10000": Ham10000,
    "fed-isic2019": FedIsic,
    "cifar10": Cifar,
    "cifar100": Cifar,
    "mnist": Idx,
    "fashion-mnist": Idx,
    "emnist-letters": Idx,
    "femnist": Femnist,
}
