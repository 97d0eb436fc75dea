"""A joining run that was cut off: it is not mistaken for a federation of its own."""

from __future__ import annotations

import json
from contextlib import nullcontext

import pytest

import crossward
from crossward.errors import ConfigError
from crossward.runs.join import join


def test_it_is_joined_again_not_resumed(finished_run):
    shared = finished_run("mh-pflgb", partition={"leave_out": ["hospital-2"]}, run={"rounds": 1})
    half = join(shared.folder, "hospital-2", [], lambda label: nullcontext([])).joined.folder
    about = json.loads((half / "run.json").read_text())
    (half / "run.json").write_text(json.dumps(about | {"status": "interrupted"}))
    with pytest.raises(ConfigError, match="cannot be resumed") as error:
        crossward.resume(half)
    assert f"crossward join {shared.folder} --site" in error.value.hint
