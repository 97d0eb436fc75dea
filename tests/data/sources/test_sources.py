"""The table of sources: descriptions without imports, and a new source by one module and one row."""

from __future__ import annotations

import subprocess
import sys

import pytest

import crossward
from crossward.config.reading import config_from
from crossward.data import sources
from crossward.data.sources.settings import SourceSettings
from crossward.errors import ConfigError

STRIPES = '''"""Stripes: a dataset of a single file.

Horizontal and vertical ones.
"""

from __future__ import annotations

from typing import Literal

import torch

from crossward.data.collection import Collection
from crossward.data.sources.settings import Loaded, SourceSettings
from crossward.settings import Count


class StripesSettings(SourceSettings):
    source: Literal["stripes"]
    images: Count = 40
    size: Count = 16

    def load(self) -> Loaded:
        generator = torch.Generator().manual_seed(0)
        labels = torch.arange(self.images) % 2
        stripes = torch.arange(self.size) % 2 * 200
        across = stripes.repeat(self.size, 1)
        images = torch.where(labels.view(-1, 1, 1).bool(), across, across.T)
        images = images + torch.randint(0, 50, images.shape, generator=generator)
        collection = Collection(
            name="stripes",
            task="classification",
            classes=("across", "down"),
            images=images.unsqueeze(3).to(torch.uint8),
            targets=labels,
            ids=tuple(f"{row}.png" for row in range(self.images)),
            hashes=tuple(f"{row:032d}" for row in range(self.images)),
        )
        return collection, ["41.png: is a spiral"]
'''


@pytest.fixture
def stripes(tmp_path, monkeypatch) -> None:
    """A new dataset: one module, here in a folder of its own, and one row of the table."""
    (tmp_path / "stripes_source.py").write_text(STRIPES)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sources.SOURCES, "stripes", ("stripes_source", "StripesSettings"))


@pytest.mark.parametrize("name", sources.SOURCES)
def test_every_source_has_its_settings_and_a_description(name):
    settings = sources.settings_class(name)
    assert issubclass(settings, SourceSettings)
    assert {"source", "normalise", "augment"} <= set(sources.setting_names(name))
    assert sources.describe(name).endswith(".")


@pytest.mark.parametrize("name", sources.SOURCES)
def test_one_operation_is_written_without_a_list_in_every_source(name):
    """data.prepare = "window:brain", as the documentation has it."""
    fields = sources.settings_class(name).model_fields
    if "prepare" not in fields:
        pytest.skip("its images are not prepared")
    known = {"source": name, "path": "x", "name": "bloodmnist"}
    section = {key: value for key, value in known.items() if key in fields} | {"prepare": "range:percentiles"}
    assert config_from({"data": section}).data.prepare == ("range:percentiles",)


def test_the_names_of_one_module_stand_together():
    names = sources.names_by_module()
    assert ["cifar10", "cifar100"] in names
    assert [name for group in names for name in group] == list(sources.SOURCES)


def test_descriptions_import_nothing_heavy():
    code = (
        "import sys\n"
        "from crossward.data import sources\n"
        "lines = [sources.describe(name) for name in sources.SOURCES]\n"
        "sys.exit(', '.join({'torch', 'numpy', 'pydantic'} & set(sys.modules)) or 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unknown_source_has_the_settings_of_all():
    of_all = ["normalise", "augment", "duplicates", "duplicates_reason", "shared_groups", "splits"]
    assert sources.setting_names("folders") == of_all
    with pytest.raises(ConfigError, match="there is no source 'folders'") as error:
        sources.settings_class("folders")
    assert "Did you mean 'folder'?" in error.value.hint


@pytest.mark.usefixtures("stripes")
def test_a_new_source_is_described_and_checked():
    assert sources.describe("stripes") == "Stripes: a dataset of a single file."
    config = config_from({"data": {"source": "stripes", "size": 20}})
    assert config.data.size == 20
    assert config_from(config.canonical()) == config
    with pytest.raises(ConfigError) as error:
        config_from({"data": {"source": "stripes", "sise": 16, "images": 0}})
    assert error.value.details == (
        "data.images: input should be greater than or equal to 1, not 0",
        "data.sise: no such key. Did you mean 'size'? Known: normalise, augment, duplicates, duplicates_reason, "
        "shared_groups, splits, source, images, size.",
    )


@pytest.mark.usefixtures("stripes")
def test_a_new_source_is_run_and_listed(config, cli):
    result = crossward.run(
        config(
            data={"source": "stripes", "augment": ["hflip"]},
            partition={"kind": "iid", "sites": 2},
            run={"rounds": 1},
            net={"name": "cnn"},
        )
    )
    assert len(result.about["sites"]) == 2
    assert crossward.load(result.folder).config["data"]["images"] == 40
    assert "Stripes: a dataset of a single file." in cli("data", "list").out
