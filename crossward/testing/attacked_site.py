"""A hospital under attack: its service on phantom images, and the messages that a hostile coordinator sends it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from crossward.config.reading import config_from
from crossward.config.schema import Config
from crossward.core.method import RoundContext
from crossward.core.tree import encode
from crossward.hospitals.messages import SiteMessage
from crossward.hospitals.service import Hospital, Service
from crossward.runs.build import prepare

SITES = ("hospital-1", "hospital-2", "hospital-3")
RUN = "b0b"
TINY: dict[str, Any] = {
    "data": {"source": "phantom", "sites": 3, "train": 60, "val": 8, "test": 8, "global_test": 0, "size": 24},
    "run": {"rounds": 2},
    "net": {"name": "cnn"},
    "train": {"lr": 0.05, "batch_size": 16},
    "engine": {"device": "cpu"},
}


def tiny_config(**sections: Mapping[str, Any]) -> Config:
    return config_from(TINY | {name: TINY.get(name, {}) | dict(section) for name, section in sections.items()})


def site_settings(**sections: Mapping[str, Any]) -> dict[str, Any]:
    """The first hospital's own settings: which images of the phantom are its."""
    settings = tiny_config(**sections).canonical()
    return {
        "data": {key: value for key, value in settings["data"].items() if key != "size"},
        "partition": settings["partition"],
        "take": SITES[0],
        "device": "cpu",
    }


def attacked_hospital(folder: Path, **changes: Any) -> Hospital:
    """The first hospital, as it would be if nobody had changed its site.toml."""
    values: dict[str, Any] = {"name": SITES[0], "folder": folder / "site", "settings": site_settings()} | changes
    return Hospital(**values)


def attacked_service(folder: Path, **changes: Any) -> Service:
    return Service(attacked_hospital(folder, **changes))


def opening(config: Config, public: Tensor | None = None, **changes: Any) -> SiteMessage:
    """The message that opens a run; `changes` are of the header."""
    header = {"do": "open", "run": RUN, "sites": list(SITES), "text": 0, "method": config.method.name}
    payload = encode({"public": public}) if public is not None else b""
    return SiteMessage(header | {"config": config.canonical()} | changes, payload)


def raw_opening(**sections: Mapping[str, Any]) -> SiteMessage:
    """An opening whose configuration no honest coordinator would have accepted: nothing here checks it."""
    settings = tiny_config().canonical()
    changed = {name: settings.get(name, {}) | dict(section) for name, section in sections.items()}
    config = settings | changed
    return SiteMessage(opening(tiny_config()).header | {"config": config, "method": config["method"]["name"]})


def job(config: Config, step: str = "train", **changes: Any) -> SiteMessage:
    """A job with the payload that the first round's has."""
    run_sites = prepare(config).run_sites
    context = RoundContext(0, 2, 3, run_sites.task, run_sites.server(0))
    payload = encode(run_sites.method.broadcast(run_sites.method.start(context)))
    header = {"do": "job", "run": RUN, "site": SITES[0], "step": step, "round": 0, "ask": 0, "seed": 7}
    return SiteMessage(header | {"keep": step == "train", "since": "", "hold": ""} | changes, payload)


def as_bytes(message: SiteMessage) -> bytes:
    """All of a message that leaves."""
    return json.dumps(message.header).encode() + message.payload
