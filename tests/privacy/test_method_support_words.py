"""What the catalogue says of noise is what a run would."""

from __future__ import annotations

import pytest

from crossward.config.describe import describe
from crossward.methods import METHODS, method_class
from crossward.privacy.method_support import class_refusal, dp_refusal


@pytest.mark.parametrize("unit", ["image", "site"])
@pytest.mark.parametrize("name", METHODS)
def test_a_class_is_refused_as_its_method_is(name, unit):
    description = describe(name, *METHODS[name])
    path = ".".join(METHODS[name]).removeprefix("crossward.")
    assert class_refusal(path, description.sent, description.facts["steps"], unit) == dp_refusal(
        method_class(name)(), unit
    )
