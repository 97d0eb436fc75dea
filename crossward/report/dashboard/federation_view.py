"""What pages show of a run across hospitals, as JSON: its terms, and what its coordinator knows of each site now."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from crossward.errors import StorageError
from crossward.foreign import ForeignError, plain
from crossward.hospitals.federation_state import (
    OVER,
    FederationState,
    SiteState,
    activity_words,
    state_from,
    waited_for,
)
from crossward.report.dashboard.contained import read_document
from crossward.report.dashboard.run_view import site_names
from crossward.runs.run_files import FEDERATION_STATE, TERMS

SHOWN_TERMS = ("federation", "least", "deadline", "patience", "wait")
SILENT = 60.0  # seconds without a new state: a coordinator that is up writes one more often
SITE_KEYS = ("activity", "connected", "step", "round", "seconds", "why", "left_out", "bytes")


def federation_view(folder: Path, now: float | None = None) -> dict[str, Any] | None:
    """A run across hospitals; None of any other run. Durations are given, not times: the browser's clock may be
    another's."""
    try:
        terms = plain(read_document(folder / TERMS))
    except FileNotFoundError:
        return None
    except StorageError as error:
        return {"terms": {}, "problem": error.what, "state": None, "sites": []}
    view: dict[str, Any] = {
        "terms": {key: terms[key] for key in SHOWN_TERMS if key in terms},
        "problem": "",
        "state": None,
        "sites": [{"site": name} for name in site_names(terms.get("sites"))],
    }
    try:
        state = state_from(read_document(folder / FEDERATION_STATE))
    except FileNotFoundError:
        return view
    except StorageError as error:
        return view | {"problem": error.what}
    except ForeignError as error:
        return view | {"problem": f"{FEDERATION_STATE} is damaged: {error}"}
    return view | _state_view(state, time.time() if now is None else now)


def _state_view(state: FederationState, now: float) -> dict[str, Any]:
    age = max(0.0, now - state.written)
    document = {
        "phase": state.phase.value,
        "over": state.phase in OVER,
        "round": state.round,
        "rounds": state.rounds,
        "why": state.why,
        "least": state.least,
        "waiting": waited_for(state),
        "for": max(0.0, now - state.since),
        "left": max(0.0, state.until - now) if state.until else None,
        "age": age,
        "silent": age > SILENT and state.phase not in OVER,
        "bytes": state.bytes,
    }
    return {"state": document, "sites": [_site_view(name, site, now) for name, site in state.sites.items()]}


def _site_view(name: str, site: SiteState, now: float) -> dict[str, Any]:
    known = {key: getattr(site, key) for key in SITE_KEYS}
    return {
        "site": name,
        **known,
        "words": activity_words(site),
        "for": max(0.0, now - site.since) if site.since else None,
        "left": max(0.0, site.until - now) if site.until else None,
    }
