"""The rows of the papers' tables as methods of ours: name, options, plugins, and what else they configure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Options = Mapping[str, Any]


@dataclass(frozen=True)
class RowMethod:
    """What runs for a row. `reason` says why nothing can, and `name` is empty then."""

    name: str
    options: Options = field(default_factory=dict)
    plugins: Mapping[str, Options] = field(default_factory=dict)
    sections: Mapping[str, Any] = field(default_factory=dict)  # "text.fraction" -> 0.25
    label: str = ""  # if rows that differ in a section alone share one
    alike: bool = False  # needs equal networks, where the sites of the table have different ones
    reason: str = ""


# What an ablation or a choice of a paper is, with its default. Other options are sizes and rates: runs that differ in
# them are of the same row, under other conditions, which are shown with the figures.
IDENTITY: Mapping[str, Options] = {
    "fedbm": {
        "classifier": "distribution", "weighting": "samples", "balanced": False, "lambda_div": 1.0, "lambda_dis": 0.1,
        "semantic": "surrogate", "conditions": "concept", "statistics": "mixed", "generate": "images",
    },
    "fedcb": {"classifier": "distribution", "weighting": "samples", "balanced": False},
    "fedcd": {
        "gamma": 0.1, "weight": 0.1, "mu": None, "contrast": True, "distillation": "decoupled",
        "aggregation": "adaptive", "importance": "balanced", "subclass_pool": "sum",
    },
    "fednpr": {"k": 4, "weight": 0.1, "layernorm": True, "missing": "keep"},
    "fednpr-per": {"k": 4, "weight": 0.1, "layernorm": True, "missing": "keep"},
    "mh-pflgb": {"fusion": "weighted", "body": True, "head": True},
    "fedetf": {"balanced": True},
    "balancefl": {"balanced": True, "restricted": True},
}  # fmt: skip

BM_TUNED: Mapping[tuple[str, str], Options] = {  # dataset and setting -> what the authors' scripts set for it
    ("OCT-C8", "beta=0.05"): {"tau": 17.5, "synthetic": 16, "lambda_dis": 0.1},
    ("OCT-C8", "beta=0.1"): {"tau": 12.5, "synthetic": 16, "lambda_dis": 0.1},
    ("Kvasir-v2", "beta=0.05"): {"tau": 12.5, "synthetic": 32, "lambda_dis": 1.0},
    ("Kvasir-v2", "beta=0.1"): {"tau": 7.5, "synthetic": 32, "lambda_dis": 0.1},
}
BM_OTHERWISE: Options = {"tau": 12.5, "synthetic": 16, "lambda_dis": 0.1}

BM_BASELINES = {
    "centrallearning": RowMethod("central"),
    "fedavg": RowMethod("fedavg"),
    "feddyn": RowMethod("feddyn", {"alpha": 0.01}),
    "fedprox": RowMethod("fedprox", {"mu": 0.001}),
    "fedrep": RowMethod("fedrep"),
    "fedrod": RowMethod("fedrod", {"gamma": 1.0}),
    "fednh": RowMethod("fednh", {"rho": 0.9}),
    "fedproto": RowMethod("fedproto"),
    "fedetf": RowMethod("fedetf"),
    "scaffold": RowMethod("scaffold"),
    "baseline": RowMethod("fedavg"),
    "fedavgbaseline": RowMethod("fedavg"),
    "random": RowMethod("random-frozen"),
    "randomfreezing": RowMethod("random-frozen"),
}
LANGUAGE_MODELS = {"BERT": "bert-base-uncased", "RoBERTa": "roberta-base", "BiomedCLIP": "biomedclip"}


def _letters(row: str) -> str:
    return re.sub(r"[^a-z]", "", row.lower())


def _bm_row(row: str, dataset: str, setting: str) -> RowMethod:
    """FedBM and FedCB."""
    tuned = BM_TUNED.get((dataset, setting), BM_OTHERWISE)
    cb = RowMethod("fedcb", {"tau": tuned["tau"]})
    if _letters(row) in BM_BASELINES:
        return BM_BASELINES[_letters(row)]
    if share := re.search(r"\((\d+)%\)", row):
        return RowMethod("fedcb", cb.options, sections={"text.fraction": int(share[1]) / 100}, label="FedCB")
    if row.startswith("FedCB") or row in ("w/o CGDE", "Embedding (Averaging)", "Embedding (Distribution)"):
        mean = "averag" in row.lower()
        return RowMethod("fedcb", {**cb.options, "classifier": "average"}) if mean else cb
    if model := re.search(r"PLM=(\w+)", row):
        return RowMethod("fedbm", tuned, sections={"text.encoder": LANGUAGE_MODELS[model[1]]}, label="FedBM")
    if weight := re.search(r"(lambda_\w+)=([\d.]+)", row):
        return RowMethod("fedbm", {**tuned, weight[1]: float(weight[2])})
    changes: dict[str, Options] = {
        "FedBM": {},
        "w/o LKCC": {"classifier": "trained"},
        "w/o Concept Conditions": {"conditions": "label"},
        "w/o L_div": {"lambda_div": 0.0},
        "w/o L_dis": {"lambda_dis": 0.0},
    }
    return RowMethod("fedbm", {**tuned, **changes[row]})


def _cd_row(row: str, dataset: str, setting: str) -> RowMethod:
    own = {"projection": 0} if dataset != "CIFAR100" else {}  # the small networks have the projection in them
    fedcd = {**own, "xi": 0.5 if dataset == "CIFAR10" else 8.0}
    rows = {
        "FedAvg": RowMethod("fedavg"),
        "FedAvg (target)": RowMethod("fedavg"),
        "FedProx": RowMethod("fedprox", {"mu": 0.01}),
        "Scaffold": RowMethod("scaffold"),
        "MOON": RowMethod("moon", {**own, "mu": 5.0 if dataset == "CIFAR10" else 1.0}),
        "FedDyn": RowMethod("feddyn", {"alpha": 0.01}),
        "FedDC": RowMethod("feddc", {"alpha": 0.01}),
        "FedProc": RowMethod("fedproc", own),
        "FedCD": RowMethod("fedcd", fedcd),
        "FedCD-hpc": RowMethod("fedcd", {**fedcd, "contrast": False}),
        "FedCD-dkd": RowMethod("fedcd", {**fedcd, "weight": 0.0}),
        "FedCD-bpr": RowMethod("fedcd", {**fedcd, "gamma": 0.0}),
        "FedCD-acla": RowMethod("fedcd", {**fedcd, "aggregation": "samples"}),
        "FedCD/kd": RowMethod("fedcd", {**fedcd, "distillation": "plain"}),
        "FedCD/cla": RowMethod("fedcd", {**fedcd, "aggregation": "counts"}),
    }
    return rows[row]


def _npr_row(row: str, dataset: str, setting: str) -> RowMethod:
    """Every compared method has the balanced softmax, but FedRS and those that allow for class counts by themselves."""
    chosen: Options = {"k": 4, "weight": 0.1} if dataset == "Fed-ISIC2019" else {"k": 2, "weight": 0.05}
    if row.startswith("FedNPR-Per no-BSM"):
        return RowMethod("", reason="fednpr-per has the balanced softmax in it and no option without")
    if row.startswith("FedNPR-Per "):
        changed: dict[str, Options] = {
            "BSM single-cluster": {"k": 1},
            "BSM multi-cluster": {},
            **{f"K={k}": {"k": k} for k in (1, 2, 4, 8)},
            **{f"lambda={text}": {"weight": float(text)} for text in ("0.01", "0.05", "0.1", "1")},
        }
        return RowMethod("fednpr-per", {**chosen, **changed[row.removeprefix("FedNPR-Per ")]})
    if row.endswith("+NPR"):
        name = row.removesuffix("+NPR").lower()
        return RowMethod("fednpr", chosen) if name == "fedavg" else RowMethod(f"{name}+bsm+npr", {}, {"npr": chosen})
    rows = {
        "Local Learning": RowMethod("local+bsm"),
        "FedAvg": RowMethod("fedavg+bsm"),
        "FedProx": RowMethod("fedprox+bsm", {"mu": 0.01}),
        "MOON": RowMethod("moon+bsm", {"mu": 1.0}),
        "CReRF": RowMethod("creff+bsm"),
        "FedRS": RowMethod("fedrs"),  # with bsm it would train as FedAvg does
        "FedLC": RowMethod("fedlc"),
        "BalanceFL": RowMethod("balancefl"),
        "FedREP": RowMethod("fedrep+bsm"),
        "FedRod": RowMethod("fedrod+bsm"),
        "FedBABU": RowMethod("fedbabu+bsm"),
        "FedNPR": RowMethod("fednpr", chosen),
        "FedNPR-Per": RowMethod("fednpr-per", chosen),
    }
    return rows[row]


MH_ROWS = {
    "Only Local Training": RowMethod("local"),
    "FedAvg": RowMethod("fedavg", alike=True),
    "FedAvg+FT": RowMethod("fedavg+ft", alike=True),
    "SCAFFOLD": RowMethod("scaffold", alike=True),
    "SCAFFOLD+FT": RowMethod("scaffold+ft", alike=True),
    "FedProx": RowMethod("fedprox", {"mu": 0.01}, alike=True),
    "FedProx+FT": RowMethod("fedprox+ft", {"mu": 0.01}, alike=True),
    "Ditto": RowMethod("ditto", {"weight": 1.0}, alike=True),
    "APFL": RowMethod("apfl", {"alpha": 0.5}, alike=True),
    "FedRep": RowMethod("fedrep", {"head_epochs": 4, "body_epochs": 1}, alike=True),
    "LG-FedAvg": RowMethod("lg-fedavg", {"warmup": 0.1}, alike=True),
    "FedSM": RowMethod("fedsm", alike=True),
    "LC-Fed": RowMethod("lc-fed", alike=True),
    "FedMD": RowMethod("fedmd"),
    "FedDF": RowMethod("feddf"),
    "pFedDF": RowMethod("pfeddf"),
    "DS-pFL": RowMethod("ds-pfl"),
    "KT-pFL": RowMethod("kt-pfl"),
    "MH-pFLGB": RowMethod("mh-pflgb"),
    "w/o Global Head": RowMethod("mh-pflgb", {"head": False}),
    "w/o Global Body": RowMethod("mh-pflgb", {"body": False}),
    "w/o Features Weighted Fusion": RowMethod("mh-pflgb", {"fusion": "add"}),
}


def _mh_row(row: str, dataset: str, setting: str) -> RowMethod:
    """The rows of Table 5 are networks and the bypass: MH-pFLGB has all of them."""
    return MH_ROWS.get(row, RowMethod("mh-pflgb", label="MH-pFLGB"))


ROWS: Mapping[str, Callable[[str, str, str], RowMethod]] = {
    "fedbm": _bm_row, "fedcb": _bm_row, "fedcd": _cd_row, "fednpr": _npr_row, "mh-pflgb": _mh_row,
}  # fmt: skip


def row_method(paper: str, row: str, dataset: str, setting: str) -> RowMethod:
    return ROWS[paper](row, dataset, setting)
