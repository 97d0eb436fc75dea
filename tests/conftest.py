"""The files that take longest go first, so that no worker is left alone with one at the end."""

from __future__ import annotations

import pytest

LONGEST = ("testing/test_conformance.py", "e2e/")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not any(name in item.nodeid for name in LONGEST))
