"""The defaults of all methods and plugins that come from a paper or its authors' code, in one table, with where
METHODS.md and PROTOCOLS.md of the specification state them; and the recipes, how a paper trains."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from crossward.methods import METHODS, method_class
from crossward.plugins import PLUGINS, plugin_class

# method or plugin -> (section of METHODS.md, option -> value)
DEFAULTS: dict[str, tuple[str, dict[str, Any]]] = {
    "fedprox": ("5.3: 0.01 where a paper is silent", {"mu": 0.01}),
    "scaffold": ("5.4", {"server_lr": 1.0, "option": "auto"}),
    "feddyn": ("5.5", {"alpha": 0.01}),
    "feddc": ("5.6", {"alpha": 0.01}),
    "moon": ("5.7: mu 5 for CIFAR-10, else 1", {"mu": 1.0, "tau": 0.5, "projection": 256}),
    "fedproc": ("5.8: alpha = t / T", {"alpha": None, "projection": 256}),
    "fedproto": ("5.9: 0.1 for CIFAR-10", {"weight": 1.0, "weighting": "uniform"}),
    "fednh": ("5.10", {"rho": 0.9, "scale": None}),
    "fedetf": ("5.11", {"balanced": True}),
    "fedrep": ("5.12: train.epochs each", {"head_epochs": None, "body_epochs": None}),
    "fedrod": ("5.13", {"gamma": 1.0}),
    "fedbabu": ("5.14", {"finetune_epochs": 5, "finetune": "full"}),
    "fedrs": ("5.15", {"alpha": 0.5, "least": 1}),
    "fedlc": ("5.16", {"tau": 1.0}),
    "creff": (
        "5.17",
        {
            "features_per_class": 100,
            "draws": 10,
            "draw_size": 32,
            "match_steps": 100,
            "match_lr": 0.1,
            "retrain_epochs": 300,
            "retrain_lr": 0.01,
            "retrain_batch": 32,
        },
    ),
    "balancefl": (
        "5.18",
        {"lambda_kd": 1.0, "temperature": 2.0, "entropy": 0.002, "balanced": True, "noise": 1.0, "restricted": True},
    ),
    "ditto": ("5.19", {"weight": 1.0, "personal_epochs": None}),
    "apfl": ("5.20", {"alpha": 0.5, "adaptive": False}),
    "lg-fedavg": ("5.21: a tenth of the rounds", {"warmup": 0.1, "weighting": "equal"}),
    "fedmd": ("5.22", {"subset": 5000, "start_epochs": 25, "digest_epochs": 1, "distance": "mae"}),
    "feddf": ("5.23: at most 200 steps a round", {"distil_steps": 200, "distil_lr": 0.001}),
    "pfeddf": ("5.24, 5.23", {"distil_steps": 200, "distil_lr": 0.001}),
    "ds-pfl": ("5.25", {"temperature": 0.1, "aggregation": "era"}),
    "kt-pfl": ("5.26", {"temperature": 10.0, "rho": 0.7, "normalise": "softmax", "subset": 5000, "digest_epochs": 1}),
    "lc-fed": ("5.27: window 31", {"head_steps": 10, "contrast": 0.0, "radius": 15, "threshold": 0.2}),
    "fedsm": ("5.28", {"keep": 0.7, "gamma": 0.9}),
    "fedbm": (
        "1.4-1.6, PROTOCOLS 1",
        {
            "synthetic": 16,
            "cycle": 5,
            "iterations": 100,
            "generator_batch": 64,
            "generator_lr": 3e-4,
            "lambda_div": 1.0,
            "lambda_dis": 0.1,
            "weighting": "samples",
            "classifier": "distribution",
            "semantic": "surrogate",
            "conditions": "concept",
            "generate": "images",
            "statistics": "mixed",
            "generator_width": 1.0,
            "balanced": False,
        },
    ),
    "fedcb": (
        "1.1-1.3",
        {"weighting": "samples", "classifier": "distribution", "taus": (7.5, 12.5, 17.5), "balanced": False},
    ),
    "fednpr": ("2.2, 2.3", {"k": 4, "weight": 0.1, "epsilon": 0.05, "iterations": 3, "layernorm": True}),
    "fednpr-per": ("2.2, 2.3", {"k": 4, "weight": 0.1, "epsilon": 0.05, "iterations": 3, "layernorm": True}),
    "fedcd": (
        "3.1-3.10",
        {
            "subclasses": 3,
            "projection": 256,
            "alpha": 0.1,
            "tau": 1.0,
            "gamma": 0.1,
            "weight": 0.1,
            "xi": 0.5,
            "mu": None,
            "importance": "balanced",
            "align": "kmeans",
            "subclass_pool": "sum",
            "mask_absent": False,
            "contrast": True,
            "distillation": "decoupled",
            "aggregation": "adaptive",
        },
    ),
    "mh-pflgb": (
        "4.3",
        {"weight": 0.9, "bypass_epochs": 1, "bypass_lr": None, "fusion": "weighted", "body": True, "head": True},
    ),
    "prox": ("5.3", {"weight": 0.01}),
    "bsm": ("0", {"strength": 1.0}),
    "npr": (
        "2.2, 2.3",
        {"k": 4, "weight": 0.1, "epsilon": 0.05, "iterations": 3, "layernorm": True, "missing": "keep"},
    ),
    "ft": ("5.2", {"epochs": 5}),
}
WITHOUT = {"fedavg", "random-frozen", "local", "central"}  # have no options of their own

FEDNPR = {
    "optimizer": "adam",
    "lr": 1e-3,
    "weight_decay": 5e-4,
    "batch_size": 64,
    "epochs": 1,
    "schedule": "milestones",
    "gamma": 0.1,
    "milestones": (60, 70),
    "keep_state": True,
}
FEDBM = {
    "optimizer": "sgd",
    "lr": 0.01,
    "momentum": 0.9,
    "weight_decay": 5e-4,
    "batch_size": 8,
    "epochs": 2,
    "schedule": "round",
    "gamma": 0.99,
    "keep_state": True,
}
MOON = {"optimizer": "sgd", "lr": 0.01, "momentum": 0.9, "weight_decay": 1e-5, "batch_size": 64, "epochs": 10}
FEDDYN = {"optimizer": "sgd", "lr": 0.1, "weight_decay": 1e-3, "batch_size": 50, "epochs": 5, "clip": 10.0}
FEDDF = {"optimizer": "sgd", "lr": 0.1, "batch_size": 64, "epochs": 40}
RECIPES: dict[str, dict[str, Any]] = {
    "feddyn": FEDDYN,
    "feddc": FEDDYN | {"schedule": "round", "gamma": 0.998},
    "moon": MOON,
    "fedproc": MOON | {"lr": 0.1},
    "fedcd": MOON,  # PROTOCOLS.md 1
    "fedcb": FEDBM,  # METHODS.md 1.6
    "fedbm": FEDBM,
    "fednpr": FEDNPR,  # METHODS.md 2.4
    "fednpr-per": FEDNPR,
    "fedmd": {"optimizer": "adam", "lr": 1e-3, "batch_size": 5, "epochs": 4},
    "feddf": FEDDF,
    "pfeddf": FEDDF,
    "kt-pfl": {"optimizer": "sgd", "lr": 0.02, "batch_size": 16, "epochs": 10},
    "fedsm": {"optimizer": "adam", "lr": 1e-3, "epochs": 1, "keep_state": True},
    "lc-fed": {"optimizer": "adam", "lr": 1e-3, "batch_size": 6, "epochs": 1, "keep_state": True},
    "mh-pflgb": {"optimizer": "adam", "lr": 1e-4, "batch_size": 8, "epochs": 5},  # METHODS.md 4.3
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_defaults_are_those_of_the_paper(name: str):
    section, expected = DEFAULTS[name]
    of_class: type[Any] = plugin_class(name) if name in PLUGINS else method_class(name)
    defaults = {field.name: field.default for field in dataclasses.fields(of_class)}
    assert {option: defaults[option] for option in expected} == expected, f"METHODS.md {section}"


@pytest.mark.parametrize("name", METHODS)
def test_recipes_are_those_of_the_paper(name: str):
    assert dict(method_class(name).recipe) == RECIPES.get(name, {})


@pytest.mark.parametrize("name", METHODS)
def test_batchnorm_statistics_are_averaged_with_the_rest(name: str):
    """METHODS.md 0: both official programs do so."""
    assert method_class(name)().buffers == "average"


def test_the_table_has_a_row_for_every_method_and_plugin():
    assert {*DEFAULTS} | WITHOUT == {*METHODS, *PLUGINS}
