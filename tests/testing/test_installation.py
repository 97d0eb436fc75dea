"""Installation as documented: a wheel that is built without a network holds every file of the package, and sets up a
federation where there is no clone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

import crossward

ROOT = Path(__file__).parents[2]
WHEEL = f"crossward-{crossward.__version__}-py3-none-any.whl"
OFFLINE = {"PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
NEEDED = ("pyproject.toml", "README.md", "LICENSE", "crossward")


def tracked_files() -> list[str]:
    if not (ROOT / ".git").exists():
        pytest.skip("this is not a clone")
    found = subprocess.run(["git", "ls-files", "-z", *NEEDED], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in found.stdout.split("\0") if name and (ROOT / name).exists()]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built from a copy: setuptools writes into the folder that it builds."""
    clone = tmp_path_factory.mktemp("clone")
    for name in tracked_files():
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, clone / name)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", "dist", "."]
    subprocess.run(command, cwd=clone, env=os.environ | OFFLINE, check=True, capture_output=True)
    return clone / "dist" / WHEEL


def test_the_wheel_has_every_file_of_the_package(wheel):
    with ZipFile(wheel) as archive:
        packed = set(archive.namelist())
    missing = [name for name in tracked_files() if name.startswith("crossward/") and name not in packed]
    assert missing == []


def test_a_federation_is_set_up_from_an_installed_wheel(wheel, tmp_path):
    place = tmp_path / "installed"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(place), str(wheel)]
    subprocess.run(command, env=os.environ | OFFLINE, check=True, capture_output=True)
    environment = os.environ | {"PYTHONPATH": str(place)}
    code = "import crossward; print(crossward.__file__)"
    where = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert where.stdout.startswith(str(place))
    words = ["federation", "init", "blood", "--name", "blood", "--site", "north", "--host", "fl.example.org"]
    command = [sys.executable, "-m", "crossward", *words]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)
    for file in ("coordinator/README.md", "sites/north/README.md", "sites/north/Dockerfile"):
        assert f"{WHEEL}[deploy]" in (tmp_path / "blood" / file).read_text()


def test_the_documentation_names_the_wheel():
    page = (ROOT / "docs" / "hospitals.md").read_text()
    assert "pip wheel --no-deps -w dist ." in page
    assert f'"dist/{WHEEL}[deploy]"' in page
