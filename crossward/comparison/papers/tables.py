"""The papers' 31 tables of results, as facts: the figures as they are printed, and flags for what is not literal.

The facts are the CSV files of the folder facts/ (method, dataset, setting, metric, mean, std; a row for each figure),
and FLAGS.md beside them. Figures stay the text that the paper prints, so that a table is shown as it was.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from types import MappingProxyType

from crossward.errors import ConfigError
from crossward.names import nearest

PAPERS = {  # by the first part of a file's name: what a table is called by, and the paper's title
    "fedbm": (
        "fedbm",
        "FedBM: Stealing Knowledge from Pre-trained Language Models for Heterogeneous Federated Learning",
    ),
    "fedcb": (
        "fedcb",
        "Stealing Knowledge from Pre-trained Language Models for Federated Classifier Debiasing (FedCB)",
    ),
    "fedcd": ("fedcd", "FedCD: A Classifier Debiased Federated Learning Framework for Non-IID Data"),
    "fednpr": ("fednpr", "Non-parametric Regularization for Class Imbalance Federated Medical Image Classification"),
    "mhpflgb": (
        "mh-pflgb",
        "MH-pFLGB: Model Heterogeneous personalized Federated Learning via Global Bypass for Medical Image Analysis",
    ),
}
FLAG_MEANINGS = {
    "INFERRED": "labels or cells were lost in our text of the paper and are inferred, from their order or from prose",
    "PARTIAL": "only the figures that the paper's prose quotes are known",
    "MISSING": "the body of the table is lost: none of its figures is known",
    "NA": "some figures are lost; they are printed as NA",
    "RANGE": "a figure is printed as a range",
    "MISPRINT": "a printed figure disagrees with others of the paper; it is kept as printed",
}
UNITS = {"fraction": "fractions of 1", "percent": "percent", "cost": "GFLOPs, millions of parameters"}
NOT_KNOWN = "NA"
FILE_NAME = re.compile(r"(?P<paper>[a-z]+)_table(?P<number>\d+)(?:_.*)?\.csv")

TITLES = {
    "fedbm-1": "OCT-C8: methods under two degrees of label skew",
    "fedbm-2": "Kvasir-v2: methods under two degrees of label skew",
    "fedbm-3": "HAM10000: methods under two degrees of label skew",
    "fedbm-4": "PBC: methods under two degrees of label skew",
    "fedbm-5": "FEMNIST: methods, a writer being a site",
    "fedbm-6": "FedBM without its classifier (LKCC) or its generator (CGDE)",
    "fedbm-7": "OCT-C8: the share of prompts that the classifier is made of",
    "fedbm-8": "OCT-C8: what the fixed classifier is",
    "fedbm-9": "FedBM's generator without each of its parts",
    "fedbm-10": "FedBM: weight of the diversity loss",
    "fedbm-11": "FedBM: weight of the distribution loss",
    "fedbm-12": "FedBM: the language model",
    "fedcb-1": "OCT-C8: a classifier that is random and frozen",
    "fedcb-2": "OCT-C8: methods under two degrees of label skew",
    "fedcb-3": "Kvasir-v2: methods under two degrees of label skew",
    "fedcb-4": "OCT-C8: the share of prompts",
    "fedcb-5": "OCT-C8: mean or distribution of the embeddings",
    "fedcd-1": "Methods on CIFAR-10, CIFAR-100 and EMNIST, iid and under label skew",
    "fedcd-2": "Rounds and parameters that it takes to reach FedAvg's accuracy",
    "fedcd-3": "CIFAR-100: 50 and 100 sites",
    "fedcd-4": "FedCD without each of its parts",
    "fednpr-3": "Methods under class imbalance, mean over the sites",
    "fednpr-4": "FedNPR-Per without balanced softmax, without sub-clusters",
    "fednpr-5": "FedNPR-Per: sub-clusters of a class",
    "fednpr-6": "Other methods with the regulariser",
    "fednpr-7": "FedNPR-Per: weight of the regulariser",
    "mh-pflgb-1": "BreaKHis: sites that differ in resolution",
    "mh-pflgb-2": "Sites that differ in architecture and labels",
    "mh-pflgb-3": "Polyps: sites that differ in hospital and architecture",
    "mh-pflgb-4": "MH-pFLGB without each of its parts",
    "mh-pflgb-5": "What the networks and the bypass cost",
}

FLAGS: Mapping[str, Mapping[str, str]] = {  # what FLAGS.md says, table by table
    "fedbm-5": {"INFERRED": "names of the rows, by the order of Tables 1 to 4"},
    "fedbm-6": {"INFERRED": "the order of the cells of 'w/o LKCC' on OCT-C8, by the decrements quoted in the text"},
    "fedbm-9": {
        "INFERRED": "names of the rows on OCT-C8, by their order",
        "NA": "F1 of the three ablations on Kvasir-v2 at beta=0.05",
    },
    "fedcb-5": {"INFERRED": "the whole body, from Table 8 of FedBM by the same authors, whose other rows coincide"},
    "fedcd-2": {"PARTIAL": "FedAvg's accuracy and two multiples of FedProc; the other methods' are lost"},
    "fedcd-4": {"MISSING": "names of the rows from the text; beta is not stated either"},
    "mh-pflgb-2": {
        "NA": "the row of MH-pFLGB on OCT2017",
        "MISPRINT": "MH-pFLGB's average ACC on BreaKHis is printed 0.9038, its cells average 0.9051",
    },
    "mh-pflgb-3": {
        "INFERRED": "names of the rows, by the order of Table 1 and Fig. 2; FedProx+FT at Client3 (0.7440) from the "
        "printed average"
    },
    "mh-pflgb-4": {
        "INFERRED": "the name of the row 'w/o Global Body'",
        "MISPRINT": "MH-pFLGB's ACC is printed 0.9038, the cells of Table 2 average 0.9051",
    },
    "mh-pflgb-5": {"RANGE": "GFLOPs of the bypass in the resolution task are printed 0.01-0.07"},
}


@dataclass(frozen=True)
class Column:
    """What a column of figures is about."""

    dataset: str
    setting: str
    metric: str

    def __str__(self) -> str:
        return f"{self.dataset}, {self.setting}, {self.metric}"


@dataclass(frozen=True)
class Figure:
    """One figure, as printed; NA if it is not known."""

    mean: str
    std: str = ""

    def __str__(self) -> str:
        return f"{self.mean} ± {self.std}" if self.std not in ("", NOT_KNOWN) else self.mean


@dataclass(frozen=True)
class PaperTable:
    """A table of a paper: rows are methods."""

    name: str  # fedbm-4
    paper: str  # the paper's title
    number: int
    title: str
    unit: str
    rows: tuple[str, ...]
    columns: tuple[Column, ...]
    figures: Mapping[tuple[str, Column], Figure]  # not every cell has one
    flags: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """fedbm: the paper, as tables and methods are named."""
        return self.name.rpartition("-")[0]


def table_names() -> list[str]:
    return list(_files())


def paper_tables() -> list[PaperTable]:
    return [paper_table(name) for name in table_names()]


def paper_table(name: str) -> PaperTable:
    """The table of that name; mhpflgb-1 is mh-pflgb-1 as well."""
    known = {_plain(each): each for each in table_names()}
    if _plain(name) not in known:
        raise ConfigError(f"there is no table {name!r}", hint=nearest(name, table_names()))
    return _read(known[_plain(name)])


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


@cache
def _files() -> Mapping[str, str]:
    """Name of a table -> its file; by paper and number."""
    found = {}
    for file in files("crossward.comparison.papers").joinpath("facts").iterdir():
        if match := FILE_NAME.fullmatch(file.name):
            name, _ = PAPERS[match["paper"]]
            found[(name, int(match["number"]))] = file.name
    return MappingProxyType({f"{name}-{number}": found[name, number] for name, number in sorted(found)})


@cache
def _read(name: str) -> PaperTable:
    text = files("crossward.comparison.papers").joinpath("facts", _files()[name]).read_text(encoding="utf-8")
    figures = {}
    for row in csv.DictReader(text.splitlines()):
        column = Column(row["dataset"], row["setting"], row["metric"])
        figures[row["method"], column] = Figure(row["mean"] or NOT_KNOWN, row["std"])
    paper, _, number = name.rpartition("-")
    titles = dict(PAPERS.values())
    return PaperTable(
        name=name,
        paper=titles[paper],
        number=int(number),
        title=TITLES[name],
        unit="cost" if name == "mh-pflgb-5" else "fraction" if paper == "mh-pflgb" else "percent",
        rows=tuple(dict.fromkeys(row for row, _ in figures)),
        columns=tuple(dict.fromkeys(column for _, column in figures)),
        figures=MappingProxyType(figures),
        flags=MappingProxyType(FLAGS.get(name, {})),
    )
