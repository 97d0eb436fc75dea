"""Options of methods and plugins for a federation that trains in a fraction of a second."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# of methods whose default options would do nothing in two rounds, or take long
SMALL_METHOD_OPTIONS: Mapping[str, dict[str, Any]] = {
    "creff": {"features_per_class": 4, "draws": 2, "draw_size": 3, "match_steps": 3, "retrain_epochs": 2},
    "feddf": {"distil_steps": 3, "distil_batch": 3},
    "pfeddf": {"distil_steps": 3, "distil_batch": 3},
    "fedsm": {"selector_steps": 2, "gamma": 0.34},  # so that personalised models are used
    "fedmd": {"start_epochs": 2, "digest_batch": 2},
    "kt-pfl": {"digest_batch": 3},
    "fedcd": {"subclasses": 2, "projection": 6},
    "fedcb": {"tau": "auto", "taus": (5.0, 10.0), "warmup": 2},
    "fedbm": {"tau": "auto", "taus": (5.0,), "warmup": 2, "synthetic": 3, "cycle": 1, "iterations": 2,
              "generator_batch": 6, "generator_width": 0.125},
}  # fmt: skip
SMALL_PLUGIN_OPTIONS: Mapping[str, dict[str, Any]] = {"ft": {"epochs": 2}}
