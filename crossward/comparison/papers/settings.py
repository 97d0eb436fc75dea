"""The papers' settings, dataset by dataset, as sections of a configuration; and a smaller version of each.

From ../shared/spec/PROTOCOLS.md. `unsaid` is what a protocol asks for and configuration cannot say, or what the paper
leaves open; each line becomes a comment of the study file. A small version keeps the data, the partition and the
methods and shrinks images, networks, training sets and rounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

Sections = Mapping[str, Any]  # of a configuration: tables, and [[site]], a list of tables

NO_VALIDATION = "the paper has no validation set: the last round counts"
PUBLISHED_SPLIT = (
    "the paper says five-fold cross validation and publishes one split: that split runs with five seeds here"
)
FIVE_FOLDS = "five-fold cross validation, as the paper's text says: each seed tests on another fold of one partition"


@dataclass(frozen=True)
class DataSetting:
    """A dataset as a paper uses it."""

    slug: str
    config: Sections  # at the paper's full settings
    small: Sections  # sections of the small version, each key in place of the one above
    seeds: tuple[int, ...]
    images: int  # that one round of all sites trains on in the small version
    tested: int  # validation and test images
    rate: float  # images a core of our two-core machine trains on in a second then, measured in studies/
    sources: tuple[str, ...]  # data.source of runs that count as this dataset
    classes: frozenset[str] = frozenset()  # sources of files: the classes that make it this dataset
    kinds: tuple[str, ...] = ()  # partition.kind of runs that count; none: any
    unsaid: tuple[str, ...] = ()
    alike: Sections = field(default_factory=dict)  # net and site of methods that need equal networks
    alike_small: Sections = field(default_factory=dict)
    validated: bool = True  # whether there is a validation set

    def sections(self, *, small: bool) -> dict[str, Any]:
        """A copy of the shared configuration."""
        merged = {name: deepcopy(section) for name, section in self.config.items()}
        for name, section in (self.small if small else {}).items():
            is_table = isinstance(section, Mapping)
            merged[name] = {**merged.get(name, {}), **deepcopy(section)} if is_table else deepcopy(section)
        return merged


# FedBM and FedCB ------------------------------------------------------------------------------------------------------
SGD = {"lr": 0.01, "momentum": 0.9, "weight_decay": 5e-4, "batch_size": 8, "schedule": "round", "gamma": 0.99}
BM_NET = {"name": "resnet18", "stem": "imagenet"}
BM_EVALUATE = {"view": "global", "select": "accuracy+balanced_accuracy+precision+f1+auc"}
BM_SMALL: Sections = {
    "data": {"size": 28},
    "partition": {"limit": 2000},
    "net": {"stem": "small", "width": 0.25},
    "train": {"batch_size": 16, "epochs": 1, "lr": 0.02, "gamma": 0.98},
    "text": {"encoder": "minilm"},
}
BM_UNSAID = (
    "the round is chosen by accuracy + recall + precision + F1 + AUC, as in the paper's code; balanced_accuracy is the "
    "mean recall",
    "the paper's text says Adam; this is its code: SGD, 0.01, 0.9, 5e-4, and 0.99 of the rate after each round",
    "the paper's deviation divides by n (population); ours by n - 1",
)
OCT_C8 = ("AMD", "CNV", "CSR", "DME", "DR", "DRUSEN", "MH", "NORMAL")
KVASIR = (
    "dyed-lifted-polyps", "dyed-resection-margins", "esophagitis", "normal-cecum", "normal-pylorus", "normal-z-line",
    "polyps", "ulcerative-colitis",
)  # fmt: skip


def _bm(data: Mapping[str, Any], sites: int, rounds: int, epochs: int, lexicon: str, **partition: Any) -> Sections:
    return {
        "data": {**data, "size": 128, "normalise": "imagenet"},
        "partition": {"kind": "dirichlet", "sites": sites, **partition},
        "net": BM_NET,
        "train": {**SGD, "epochs": epochs, "keep_state": True},
        "text": {"encoder": "biomedclip", "lexicon": lexicon},
        "run": {"rounds": rounds, "participation": 0.5},
        "evaluate": BM_EVALUATE,
    }


HELD_OUT = (0.7, 0.1, 0.2)
BM: dict[str, DataSetting] = {
    "OCT-C8": DataSetting(
        slug="oct-c8",
        config=_bm({"source": "oct-c8"}, 12, 200, 2, "oct-c8"),
        small=BM_SMALL,
        seeds=(0, 1, 2),
        images=1000,
        tested=5600,
        rate=120,
        sources=("oct-c8", "folder", "table", "npz"),
        classes=frozenset(OCT_C8),
        kinds=("dirichlet", "auto"),
        unsaid=BM_UNSAID,
    ),
    "Kvasir-v2": DataSetting(
        slug="kvasir-v2",
        config=_bm(
            {"source": "kvasir-v2", "split": "none"},
            10,
            200,
            2,
            "kvasir-v2",
            global_split=HELD_OUT,
        ),
        small=BM_SMALL,
        seeds=(1, 3, 6),
        images=1000,
        tested=2400,
        rate=120,
        sources=("kvasir-v2", "folder", "table", "npz"),
        classes=frozenset(KVASIR),
        kinds=("dirichlet", "auto"),
        unsaid=BM_UNSAID,
    ),
    "HAM10000": DataSetting(
        slug="ham10000",
        config=_bm({"source": "ham10000"}, 10, 200, 1, "ham10000", global_split=HELD_OUT, group_aware=False),
        small=BM_SMALL,
        seeds=(0, 1, 2),
        images=1000,
        tested=3008,
        rate=120,
        sources=("ham10000", "medmnist dermamnist"),
        kinds=("dirichlet",),
        unsaid=(
            "the split is by image, as the paper's: a lesion may be on both sides",
            "the paper takes MedMNIST's split, 7,007 / 1,003 / 2,005; 7:1:2 of each class is 7,012 / 1,000 / 2,003",
            *BM_UNSAID,
        ),
    ),
    "PBC": DataSetting(
        slug="pbc",
        config=_bm({"source": "pbc", "fit": "centre:200/360"}, 12, 50, 10, "pbc"),
        small=BM_SMALL,
        seeds=(0, 1, 2),
        images=1000,
        tested=5133,
        rate=120,
        sources=("pbc", "medmnist bloodmnist"),
        kinds=("dirichlet", "auto"),
        unsaid=BM_UNSAID,
    ),
    "FEMNIST": DataSetting(
        slug="femnist",
        config={
            "data": {
                "source": "femnist",
                "size": 32,
                "channels": 3,
                "normalise": "imagenet",
                "max_samples": 149,
                "users": (35, 5, 10),
            },
            "partition": {"kind": "site"},
            "net": BM_NET,
            "train": {**SGD, "epochs": 5, "keep_state": True},
            "text": {"encoder": "biomedclip", "lexicon": "femnist"},
            "run": {"rounds": 200, "participation": 0.1},
            "evaluate": BM_EVALUATE,
        },
        small={
            "net": {"stem": "small", "width": 0.25},
            "train": {"batch_size": 16, "epochs": 2, "lr": 0.02},
            "text": {"encoder": "minilm"},
        },
        seeds=(0, 1, 2),
        images=700,
        tested=1500,
        rate=120,
        sources=("femnist",),
        unsaid=("the paper draws other writers for every seed; data.users_seed is one for all", *BM_UNSAID),
    ),
}

# FedCD ----------------------------------------------------------------------------------------------------------------
CD_TRAIN = {"lr": 0.01, "momentum": 0.9, "weight_decay": 1e-5, "batch_size": 64, "epochs": 10, "drop_last": True}
CD_EVALUATE = {"view": "global", "select": "accuracy"}
CD_PARTITION = {"kind": "dirichlet-balanced", "sites": 10, "beta": 0.5}
CD_SMALL: Sections = {
    "partition": {"limit": 2000},
    "net": {"name": "cnn", "projection": 256, "stem": None},
    "train": {"batch_size": 32, "epochs": 2, "lr": 0.05, "drop_last": False},
}


def _cd(slug: str, data: Mapping[str, Any], net: Mapping[str, Any], unsaid: tuple[str, ...] = ()) -> DataSetting:
    return DataSetting(
        slug=slug,
        config={
            "data": data,
            "partition": CD_PARTITION,
            "net": net,
            "train": CD_TRAIN,
            "run": {"rounds": 100},
            "evaluate": CD_EVALUATE,
        },
        small=CD_SMALL,
        seeds=(0, 1, 2),
        images=2000,
        tested=20_800 if slug == "emnist" else 10_000,
        rate=600,
        sources=(str(data["source"]),),
        unsaid=(NO_VALIDATION, *unsaid),
        validated=False,
    )


CD: dict[str, DataSetting] = {
    "CIFAR10": _cd(
        "cifar10",
        {
            "source": "cifar10",
            "augment": ("crop:4", "hflip"),
            "normalise": ((0.4914, 0.4824, 0.4467), (0.2471, 0.2435, 0.2616)),
        },
        {"name": "cnn", "projection": 256},
    ),
    "CIFAR100": _cd(
        "cifar100",
        {
            "source": "cifar100",
            "augment": ("crop:4:zero", "hflip", "rotate:15:zero"),
            "normalise": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
        },
        {"name": "resnet50", "stem": "small"},
        (
            "torchvision rotates by the nearest pixel; rotate:15:zero interpolates between pixels",
            "MOON, FedProc and FedCD project to 256 features; the other methods have ResNet-50's 2048 here",
        ),
    ),
    "EMNIST": _cd(
        "emnist",
        {"source": "emnist-letters", "normalise": ((0.5,), (0.5,))},
        {"name": "cnn", "projection": 256},
    ),
}

# FedNPR ---------------------------------------------------------------------------------------------------------------
NPR_TRAIN = {
    "optimizer": "adam", "lr": 1e-3, "weight_decay": 5e-4, "batch_size": 64, "epochs": 1, "schedule": "milestones",
    "gamma": 0.1, "milestones": (60, 70), "keep_state": True,
}  # fmt: skip
NPR_AUGMENT = ("hflip", "vflip", "blur5x9:5", "rotate:10")
NPR_EVALUATE = {"view": "local", "select": "balanced_accuracy"}
NPR_UNSAID = (
    NO_VALIDATION,
    "net.start: torchvision's ImageNet weights of EfficientNet-B0 as a safetensors file; none comes with crossward",
)
NPR_NET = {"name": "efficientnet-b0", "start": "efficientnet-b0-imagenet.safetensors"}
NPR_SMALL_NET = {"name": "resnet18", "stem": "small", "width": 0.25, "start": None}
ICH = ("epidural", "intraparenchymal", "intraventricular", "subarachnoid", "subdural")
NPR: dict[str, DataSetting] = {
    "Fed-ISIC2019": DataSetting(
        slug="fed-isic2019",
        config={
            "data": {
                "source": "fed-isic2019", "split": "published", "size": 224,
                "prepare": ("shades-of-grey", "brightness"), "normalise": "imagenet", "augment": NPR_AUGMENT,
            },
            "partition": {"kind": "site"},
            "net": NPR_NET,
            "train": NPR_TRAIN,
            "run": {"rounds": 80},
            "evaluate": NPR_EVALUATE,
        },
        small={
            "data": {"size": 32, "augment": ("hflip", "vflip", "rotate:10"), "bad_files": "quarantine"},
            "partition": {"limit": 2500},
            "net": NPR_SMALL_NET,
            "train": {"batch_size": 32},
        },
        seeds=(0, 1, 2, 3, 4),
        images=2500,
        tested=4650,
        rate=200,
        sources=("fed-isic2019",),
        unsaid=(PUBLISHED_SPLIT, *NPR_UNSAID),
        validated=False,
    ),
    "RSNA-ICH": DataSetting(
        slug="rsna-ich",
        config={
            "data": {
                "source": "rsna-ich", "size": 128, "channels": 1, "prepare": ("window:40:80",),
                "normalise": ((0.456,), (0.224,)), "augment": NPR_AUGMENT,
            },
            "partition": {
                "kind": "counts", "counts": "ich", "split": (0.8, 0.0, 0.2), "group_aware": False, "seed": 0,
                "folds": 5, "fold": "seed",
            },
            "net": NPR_NET,
            "train": NPR_TRAIN,
            "run": {"rounds": 80},
            "evaluate": NPR_EVALUATE,
        },
        small={
            "data": {"size": 32, "augment": ("hflip", "vflip", "rotate:10")},
            "partition": {
                "kind": "per-class", "counts": None, "sites": 10, "alphas": (0.5, 5, 10, 30, 50), "removal": 0.3,
                "limit": 2500,
            },
            "net": NPR_SMALL_NET,
            "train": {"batch_size": 32},
        },
        seeds=(0, 1, 2, 3, 4),
        images=2500,
        tested=13597,
        rate=200,
        sources=("rsna-ich", "table", "folder", "npz"),
        classes=frozenset(ICH),
        unsaid=(
            "slices are split as in the paper: a patient may be on both sides",
            FIVE_FOLDS,
            *NPR_UNSAID,
        ),
        validated=False,
    ),
}  # fmt: skip

# MH-pFLGB -------------------------------------------------------------------------------------------------------------
MH_TRAIN = {"optimizer": "adam", "lr": 1e-4, "batch_size": 8, "epochs": 5}
MH_EVALUATE = {"view": "local"}
MH_SPLIT = (0.8, 0.0, 0.2)
MH_UNSAID = (
    "split, partition and optimiser are in a supplement that is lost: 8:2 at each site, Dirichlet(0.5) where labels "
    "differ, Adam",
    NO_VALIDATION,
    "the paper has one run of each; three seeds here",
)
MH_SMALL_TRAIN = {"lr": 1e-3, "batch_size": 16, "epochs": 2}
RESOLUTIONS = (("resnet17", 1), ("resnet11", 2), ("resnet8", 4), ("resnet5", 8))
EIGHT_NETS = ("resnet18", "shufflenet", "resnext", "squeezenet", "senet", "mobilenet", "densenet", "vgg")
POLYP_NETS = (  # site, net, and options with which it has about as many parameters as Table 5 says
    ("cvc-colondb", "unetpp", {"base": 36, "levels": 5}),
    ("etis", "fcn", {"base": 80}),
    ("cvc-clinicdb", "unet", {"base": 68, "levels": 5}),
    ("kvasir-seg", "resunet", {"base": 50, "levels": 5}),
)


def _resolution_sites(options: Mapping[str, Any], *, net: str = "") -> list[dict[str, Any]]:
    return [
        {"net": {"name": net or own, **options}, **({"shrink": shrink} if shrink > 1 else {})}
        for own, shrink in RESOLUTIONS
    ]


def _mh(slug: str, data: Mapping[str, Any], partition: Mapping[str, Any], **more: Any) -> DataSetting:
    config = {
        "data": data,
        "partition": {**partition, "split": MH_SPLIT},
        "train": MH_TRAIN,
        "run": {"rounds": 100},
        "evaluate": MH_EVALUATE,
        **more.pop("config"),
    }
    small = {"train": MH_SMALL_TRAIN, **more.pop("small")}
    return DataSetting(
        slug=slug, config=config, small=small, seeds=(0, 1, 2), unsaid=MH_UNSAID, validated=False, **more
    )


LABELS = {"kind": "dirichlet", "sites": 8, "beta": 0.5, "public": 0.1}
RESOLUTION = _mh(
    "breakhis-resolution",
    {"source": "breakhis", "size": 384},
    {"kind": "group", "sites": 4, "public": 0.1},
    config={"site": _resolution_sites({})},
    small={"data": {"size": 96}, "partition": {"limit": 1200}, "site": _resolution_sites({"width": 0.25})},
    images=1200,
    tested=1600,
    rate=400,
    sources=("breakhis",),
    kinds=("group",),
    alike={"site": _resolution_sites({"stem": "small"}, net="resnet17")},
    alike_small={"site": _resolution_sites({"stem": "small", "width": 0.25}, net="resnet17")},
)
EIGHT = {"net": {"name": EIGHT_NETS}}
EIGHT_SMALL = {"net": {"width": 0.25}, "data": {"size": 32}, "partition": {"limit": 1000}}
BREAKHIS_LABELS = _mh(
    "breakhis-labels",
    {"source": "breakhis", "size": 384, "classes": "subtypes"},
    LABELS,
    config=EIGHT,
    small=EIGHT_SMALL,
    images=1000,
    tested=1600,
    rate=120,
    sources=("breakhis",),
    kinds=("dirichlet", "auto"),
)
OCT2017_LABELS = _mh(
    "oct2017-labels",
    {"source": "oct2017", "size": 256},
    LABELS,
    config=EIGHT,
    small=EIGHT_SMALL,
    images=1000,
    tested=17_000,
    rate=120,
    sources=("oct2017",),
    kinds=("dirichlet", "auto"),
)
POLYPS = _mh(
    "polyps",
    {"source": "polyps", "size": 256},
    {"kind": "site"},
    config={
        "task": {"objective": "dice"},
        "site": [{"name": name, "net": {"name": net, **options}} for name, net, options in POLYP_NETS],
    },
    small={
        "data": {"size": 48},
        "partition": {"limit": 600},
        "site": [{"name": name, "net": {"name": net, "base": 8}} for name, net, _ in POLYP_NETS],
    },
    images=600,
    tested=440,
    rate=100,
    sources=("polyps",),
    alike={"net": {"name": "unet", "base": 68, "levels": 5}, "site": []},
    alike_small={"net": {"name": "unet", "base": 8, "levels": 3}, "site": []},
)


def data_setting(paper: str, number: int, dataset: str, setting: str) -> DataSetting:
    """How a paper uses a dataset in a column of one of its tables."""
    if paper in ("fedbm", "fedcb"):
        return BM[dataset]
    if paper == "fedcd":
        return CD[dataset]
    if paper == "fednpr":
        return NPR[dataset]
    if dataset == "BreaKHis":
        return RESOLUTION if number == 1 or setting.startswith("resolution") else BREAKHIS_LABELS
    return OCT2017_LABELS if dataset == "OCT2017" else POLYPS
