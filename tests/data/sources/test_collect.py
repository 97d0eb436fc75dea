"""Sources that are several sets at once, from the configuration to a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest

import crossward
from crossward.config.reading import checked
from crossward.data.sources import polyp_sets
from crossward.data.sources.collect import collect
from crossward.data.sources.polyps import SOURCES as SETS_BY_NAME
from crossward.data.sources.settings import SOURCES, PolypSet, PolypSets
from crossward.errors import ConfigError

SETS = {"Kvasir-SEG": "masks/{}.png", "ETIS-LaribPolypDB": "masks/p{}.png"}


@pytest.fixture
def polyps(gallery) -> dict[str, Any]:
    """The data section of a federation of two drawn sets."""
    for folder, mask in SETS.items():
        for n in range(1, 7):
            gallery.image(f"{folder}/images/{n}.png", (32, 32))
            gallery.mask(f"{folder}/{mask.format(n)}", (32, 32))
    paths = {"kvasir-seg": str(gallery.root / "Kvasir-SEG"), "etis": str(gallery.root / "ETIS-LaribPolypDB")}
    return {"source": "polyps", "sets": ["kvasir-seg", "etis"], "paths": paths, "size": 32}


def test_the_sets_of_a_configuration():
    assert SOURCES["polyps"] is PolypSets
    config = checked({"data": {"source": "polyps", "paths": {"etis": "ETIS.zip"}}})
    assert config.data.sets == polyp_sets.SETS == ("cvc-colondb", "etis", "cvc-clinicdb", "kvasir-seg")
    assert set(get_args(PolypSet)) == set(SETS_BY_NAME)
    assert config.data.paths == {"etis": Path.cwd() / "ETIS.zip"}
    assert checked(json.loads(json.dumps(config.canonical()))) == config


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"sets": ["etis", "kvasir"]}, "data.sets.1: input should be 'polypgen', 'kvasir-seg'"),
        ({"paths": {"kvasir": "x"}}, "data.paths.kvasir"),
        ({"path": "x"}, "data.path: no such key. Did you mean 'paths'?"),
    ],
)
def test_wrong_sets_are_told_with_their_key(wrong, told):
    with pytest.raises(ConfigError) as error:
        checked({"data": {"source": "polyps"} | wrong})
    assert error.value.details[0].startswith(told)


def test_missing_sets_and_one_named_twice_are_refused_by_the_run(config, untrained):
    with untrained(), pytest.raises(ConfigError, match="4 of 4 sets of polyps are not there"):
        crossward.run(config(data={"source": "polyps"}))
    with untrained(), pytest.raises(ConfigError, match=r"data\.sets names a set twice"):
        crossward.run(config(data={"source": "polyps", "sets": ["etis", "etis"]}))


def test_sets_are_found_where_datasets_are_kept_unless_said_otherwise(polyps, gallery, monkeypatch):
    monkeypatch.setenv("CROSSWARD_DATA", str(gallery.root))
    plain, left_out = collect(checked({"data": {key: polyps[key] for key in ("source", "sets", "size")}}))
    assert (len(plain), left_out) == (12, [])
    assert plain.ids == collect(checked({"data": polyps}))[0].ids


def test_inspect_shows_a_site_for_each_set(cli, toml_file, polyps):
    said = cli("data", "inspect", toml_file({"data": polyps}), "--json")
    assert said.code == 0, said.err
    told = json.loads(said.out)
    assert list(told["sites"]) == ["etis", "kvasir-seg", "server"]
    assert [sum(told["sites"][name].values()) for name in told["sites"]] == [6, 6, 0]


def test_sets_train_networks_of_their_own(config, polyps):
    asked = config(
        data=polyps,
        partition={"split": [0.7, 0.3, 0.0]},  # the surface distances of tests would cost an import of MONAI
        net={"name": ["unet", "fcn"], "base": 4},
        method={"name": "mh-pflgb"},
        run={"rounds": 1},
    )
    result = crossward.run(asked)
    assert {name: net["name"] for name, net in result.about["nets"].items()} == {"etis": "unet", "kvasir-seg": "fcn"}
    assert result.summary["failures"] == 0
    assert checked(crossward.load(result.folder).config).data == checked(asked).data
