"""Templates, styles and scripts of the report are in the package: a wheel that lacks one could not make a page."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("crossward.report", "crossward.report.dashboard", "crossward.demo")


@pytest.mark.parametrize("package", PACKAGES)
def test_package_data_names_every_file_that_is_not_code(package):
    folder = ROOT / package.replace(".", "/")
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"][package]
    named = {file for pattern in patterns for file in folder.glob(pattern)}
    own = {file for file in folder.rglob("*") if file.is_file() and file.suffix not in (".py", ".pyc")}
    nested = [ROOT / other.replace(".", "/") for other in PACKAGES if other.startswith(f"{package}.")]
    own -= {file for file in own if any(place in file.parents for place in nested)}
    assert {file.suffix for file in own} & {".j2", ".css", ".js", ".toml"}
    assert own <= named
