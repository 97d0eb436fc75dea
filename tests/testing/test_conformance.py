"""Every method, task and plugin through every check; and every check shown to catch what it is for."""

from __future__ import annotations

import pytest

from crossward.testing.conformance import Case, Check, cases, checks

PAIRS = [pytest.param(case, check, id=f"{case}-{check.__name__.removeprefix('check_')}") for case in cases() for check in checks(case)]


@pytest.mark.parametrize(("case", "check"), PAIRS)
def test_method_conforms(case: Case, check: Check):
    check(case)
