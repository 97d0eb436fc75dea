"""The configuration in docs/hospitals.md works as it is printed: two hospitals with folders of images run it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import crossward
from crossward.hospitals.flower import federation_runs
from crossward.hospitals.flower.coordinator import coordinate_run
from crossward.hospitals.flower.federation_runs import RunOptions, start_run
from crossward.hospitals.flower.node_registry import INSECURE_FILE
from crossward.hospitals.kit import create_federation, read_site
from crossward.hospitals.kit_files import SITE_FILE
from crossward.hospitals.policy import Policy
from crossward.hospitals.run_following import read_state
from crossward.hospitals.service import Hospital, Service
from crossward.hospitals.site_images import site_settings
from crossward.hospitals.site_limits import SiteLimits
from crossward.testing.loopback_federation import create_grid

PAGE = (Path(__file__).parents[2] / "docs" / "hospitals.md").read_text(encoding="utf-8")
SITES = ("north", "south")
IMAGES = 10  # of each class


@pytest.fixture
def printed(tmp_path):
    """The file, as it stands on the page."""
    [text] = re.findall(r"```toml\n(# blood\.toml\n.*?)```", PAGE, re.DOTALL)
    file = tmp_path / "blood.toml"
    file.write_text(text)
    return file


def draw_images(folder, classes):
    rng = np.random.default_rng(len(classes))
    for number, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for image in range(IMAGES):
            pixels = rng.integers(0, 60, (30, 30, 3)) + 20 * number
            Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{image}.png")


def hospital(kit, images):
    file = kit.folder / SITE_FILE
    settings = site_settings(kit, images)
    return Hospital(kit.name, kit.folder, settings, Policy.read(file), limits=SiteLimits.read(file))


def test_the_configuration_on_the_page_runs_as_it_is_printed(printed, tmp_path, monkeypatch):
    monkeypatch.setattr(federation_runs, "is_up", lambda workspace: True)
    monkeypatch.setattr(federation_runs, "submit_run", lambda workspace, folder: None)
    kit = create_federation(tmp_path / "blood", name="blood", sites=SITES, host="fl.example.org")
    run = start_run(printed, kit.coordinator, ["run.rounds=2"], RunOptions(wait=0.0))  # of the 20 two, for time's sake
    (kit.coordinator / "flower" / INSECURE_FILE).touch()
    classes = re.findall(r'"([\w ]+)"', printed.read_text().partition("classes")[2].partition("]")[0])
    assert len(classes) == 8
    draw_images(tmp_path / "images" / "north", classes)
    draw_images(tmp_path / "images" / "south", classes[:-1])  # which needs `classes`
    services = [Service(hospital(read_site(kit.site(name)), tmp_path / "images" / name)) for name in SITES]
    coordinate_run(run, create_grid(services))
    result = crossward.load(run)
    assert result.about["status"] == "finished"
    assert [line["round"] for line in result.rounds] == [1, 2]
    assert all(line["failures"] == {} for line in result.rounds)
    assert read_state(run).bytes > 0


def test_commands_on_the_page_are_those_that_there_are():
    from typer.main import get_command

    from crossward.cli.main import app

    words = re.findall(r"^crossward ((?:federation|coordinator|site) [\w-]+)(.*)$", PAGE, re.MULTILINE)
    assert len(words) >= 7
    for command, rest in words:
        group, name = command.split()
        known = get_command(app).commands[group].commands[name]
        options = {option for parameter in known.params for option in parameter.opts}
        assert {*re.findall(r" (--[\w-]+)", rest.partition(" #")[0])} <= options, command
