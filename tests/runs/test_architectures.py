"""One network a site: how it is asked for, what is refused before anything trains, and runs with mixed networks."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from crossward.config.reading import config_from, read_config, to_toml
from crossward.engines.pool import WorkerPool
from crossward.errors import ConfigError
from crossward.runs import lifecycle as api
from crossward.runs.architectures import NetPlan
from crossward.runs.build import prepare

DATA = {"sites": 3, "train": 12, "val": 4, "test": 6, "global_test": 6, "size": 32}
NARROW = {"name": "resnet18", "width": 0.125, "stem": "small"}
OWN = """
from torch import nn

def build(channels, classes, size, hidden=4):
    made = nn.Module()
    made.body = nn.Sequential(nn.Conv2d(channels, hidden, 5, 4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    made.head = nn.Linear(hidden, classes)
    return made
"""
MIXED = [{"net": "cnn", "shrink": 2}, {"net": NARROW}, {"net": {"name": "hospital_net:build", "hidden": 6}}]


@pytest.fixture(scope="module", autouse=True)
def own_net(tmp_path_factory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("own")
    (folder / "hospital_net.py").write_text(OWN)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield
    sys.modules.pop("hospital_net", None)


def asked(out: Path, sites: list[dict[str, Any]] | None = None, **sections: Any) -> dict[str, Any]:
    made = {
        "data": DATA,
        "run": {"rounds": 2, "out": str(out)},
        "train": {"lr": 0.05, "batch_size": 8},
        "engine": {"device": "cpu"},
        "site": sites or [],
    }
    return made | {name: made.get(name, {}) | value for name, value in sections.items()}


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """A finished run of mixed networks, one for each method."""
    out, done = tmp_path_factory.mktemp("mixed"), {}

    def run(method: str) -> api.Result:
        if method not in done:
            done[method] = api.run(asked(out, MIXED, method={"name": method}))
        return done[method]

    return run


@pytest.fixture
def refused(tmp_path, no_training):
    """The error of a configuration whose run never begins."""

    def run(sites=None, **sections) -> ConfigError:
        with no_training(), pytest.raises(ConfigError) as error:
            api.run(asked(tmp_path / "runs", sites, **sections))
        assert not (tmp_path / "runs").exists()
        return error.value

    return run


def architectures(sites=None, **sections) -> list[str]:
    run_sites = prepare(config_from(asked(Path("unused"), sites, **sections))).run_sites
    return [run_sites.architecture(site) for site in run_sites.ids]


# how they are asked for ----------------------------------------------------------------------------------------------
def test_the_sites_take_turns():
    names = ["cnn", "hospital_net:build"]
    assert architectures(net={"name": names}, method={"name": "local"}) == ["cnn", "hospital_net:build", "cnn"]
    assert architectures(net={"name": names}, data={"sites": 1}) == ["cnn"]


def test_entries_in_order_and_by_name():
    local = {"method": {"name": "local"}}
    narrow = "resnet18 stem=small width=0.125"
    assert architectures([{}, {"net": NARROW}], **local) == [
        "cnn",
        narrow,
        "cnn",
    ]  # those without an entry: as [net] says
    named = [{"name": "hospital-3", "net": "cnn"}, {"name": "hospital-1", "shrink": 2}]
    assert architectures(named, net=NARROW, **local) == [f"{narrow} at 16 px", narrow, "cnn"]
    turns = architectures([{"shrink": 2}, {}, {"net": "cnn"}], net={"name": ["cnn", "hospital_net:build"]}, **local)
    assert turns == ["cnn at 16 px", "hospital_net:build", "cnn"]


def test_nets_that_are_the_same_are_of_one_kind():
    same = [{"net": {"name": "cnn", "projection": 0}}, {"net": "cnn"}, {"net": "auto"}]
    run_sites = prepare(config_from(asked(Path("unused"), same))).run_sites
    assert run_sites.architectures == {"cnn": 0}
    assert not run_sites.personal
    assert (
        NetPlan("resnet18", 3, 8, 32, {"width": 2}).architecture
        == NetPlan("resnet18", 3, 8, 32, {"width": 2.0}).architecture
    )
    assert NetPlan("resnet18", 3, 8, 32, {"width": 0.25}).architecture == "resnet18 width=0.25"
    assert NetPlan("m:f", 3, 8, 32, {"start": "/a/b"}).architecture == "m:f start=|a|b"  # a name in a tree has no slash


def test_what_is_written_reads_back(mixed, tmp_path):
    for more in (
        {"net": {"name": ["cnn", "resnet18"]}},
        {"site": MIXED},
        {"site": [{"name": "hospital-1", "net": NARROW}]},
    ):
        config = config_from(asked(tmp_path) | more)
        assert config_from(tomllib.loads(to_toml(config.canonical()))) == config
    result = mixed("local")
    kept = read_config(result.folder / "config.toml")
    assert kept.canonical() == result.config
    assert [(entry.net.name, entry.net.options, entry.shrink) for entry in kept.site] == [
        ("cnn", {}, 2),
        ("resnet18", {"width": 0.125, "stem": "small"}, 1),
        ("hospital_net:build", {"hidden": 6}, 1),
    ]


def test_overrides(tmp_path):
    file = tmp_path / "c.toml"
    file.write_text('[[site]]\nnet = "cnn"\n\n[[site]]\n[site.net]\nname = "resnet18"\nwidth = 0.5\n')
    config = read_config(file, ['net.name=["cnn", "unet"]'])
    assert config.net.name == ("cnn", "unet")
    assert [(entry.net.name, entry.net.options) for entry in config.site] == [("cnn", {}), ("resnet18", {"width": 0.5})]
    assert read_config(file, ["net.name=resnet50"]).net.name == "resnet50"
    [only] = read_config(file, ['site=[{ net = "cnn", shrink = 3 }]']).site
    assert (only.net.name, only.shrink) == ("cnn", 3)
    with pytest.raises(ConfigError) as error:
        read_config(file, ["net.name=densnet"])
    assert "there is no net 'densnet' (--set net.name=densnet). Did you mean 'densenet'?" in error.value.details[0]


# what is refused -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("sites", "told"),
    [
        ([{"net": "rasnet18"}], "site.0.net.name: there is no net 'rasnet18'. Did you mean 'resnet18'?"),
        ([{}, {"net": NARROW | {"widht": 1}}], "site.1.net.widht: no such option of resnet18. Did you mean 'width'?"),
        ([{"nets": "cnn"}], "site.0.nets: no such key. Did you mean 'net'?"),
        ([{"net": {"name": ["cnn", "resnet18"]}}], "site.0.net: value error, a site has one net"),
        ([{"net": ["cnn", "resnet18"]}], "site.0.net: value error, a site has one net"),
        ([{"net": 3}], "site.0.net: input should be a valid dictionary"),
        ([{"shrink": 0}], "site.0.shrink: input should be greater than or equal to 1, not 0"),
        ([{}] * 4, "there are 4 entries of [[site]] for 3 sites"),
        ([{"name": "hopsital-2"}], "'hopsital-2': there is no such site. Did you mean 'hospital-2'?"),
        ([{"name": "hospital-1"}] * 2, "'hospital-1' has 2 entries"),
        ([{"name": "hospital-1"}, {}], "an entry without a name, where others have one"),
        ([{"shrink": 33}], "hospital-1: shrink = 33 does not divide the 32 pixels of an image"),
        ([{"shrink": 3}], "hospital-1: shrink = 3 does not divide the 32 pixels of an image"),
        ([{"shrink": 4}], "The net 'cnn' needs images of at least 16 x 16 pixels; these have 8."),
        ([{"shrink": 4}], "The site sees images at 1 / 4 of their size (shrink)."),
        ([{"net": "unet"}], "the net 'unet' does not serve classification"),
        ([{"net": "hospital_net:biuld"}], "hospital_net has no 'biuld'.\nDid you mean 'build'?"),
        ([{"net": {"name": "hospital_net:build", "width": 2}}], "unexpected keyword argument 'width'"),
    ],
)
def test_wrong_entries(refused, sites, told):
    assert told in str(refused(sites, method={"name": "local"}))


def test_wrong_entries_are_told_at_once(refused):
    error = refused([{"name": "a"}, {"name": "hospital-1"}, {"name": "hospital-1"}, {}])
    assert error.what == "[[site]] does not fit the federation"
    assert [line.split(".")[0] for line in error.details] == [
        "an entry without a name, where others have one",
        "'a': there is no such site",
        "'hospital-1' has 2 entries",
    ]


@pytest.mark.parametrize(
    ("net", "told"),
    [
        ({"name": []}, "net.name is an empty list"),
        ({"name": ["cnn", "rasnet18"]}, "net.name: there is no net 'rasnet18'. Did you mean 'resnet18'?"),
        ({"name": ["cnn", "resnet18"], "width": 0.5}, "net.width: no such option"),
        ({"name": ["cnn", "unet"]}, "the net 'unet' does not serve classification"),
        ({"name": "no_such_place:build"}, "'no_such_place:build' cannot be imported"),
    ],
)
def test_wrong_nets(refused, net, told):
    assert told in str(refused(net=net))


def test_nets_of_the_wrong_task(refused):
    polyps = {"kind": "polyp", "size": 32}
    for name in ("cnn", "hospital_net:build"):
        error = refused([{"net": name}], data=polyps, method={"name": "local"})
        assert error.what == f"the net {name!r} does not serve segmentation"
        assert error.hint.startswith("These do: unet")
        assert error.what == refused(net={"name": name}, data=polyps).what
    assert "site.shrink serves classification" in refused([{"shrink": 2}], data=polyps).what


@pytest.mark.parametrize(("method", "name"), [("fedavg", "FedAvg"), ("central", "Central"), ("scaffold", "Scaffold")])
def test_networks_that_cannot_be_averaged(refused, method, name):
    error = refused(MIXED, method={"name": method})
    first, second = "hospital-1 (cnn at 16 px)", "hospital-2 (resnet18 stem=small width=0.125)"
    assert error.what == f"{name} averages networks, and those of {first} and {second} differ"
    assert error.details[0] == "body.0.weight: (6, 3, 5, 5) and absent"
    assert (len(error.details), error.details[-1].endswith(" weights more")) == (5, True)
    assert "Networks may differ with" in error.hint
    assert all(free in error.hint for free in ("mh-pflgb", "fedproto", "fedmd", "local"))


def test_prototypes_of_different_widths(refused):
    error = refused([{"net": "cnn"}, {"net": NARROW}], method={"name": "fedproto"})
    assert "different numbers of them" in error.what
    assert error.details == ("hospital-1 (cnn): 84", "hospital-2 (resnet18 stem=small width=0.125): 64")
    alike = [{"net": {"name": "cnn", "projection": 64}}, {"net": NARROW}, {"net": NARROW}]
    assert len({*architectures(alike, method={"name": "fedproto"})}) == 2


# whole runs ----------------------------------------------------------------------------------------------------------
def _assert_predicts_what_was_kept(result: api.Result, sites: list[str]) -> None:
    federation, kept = (
        prepare(config_from(result.config)).federation,
        result.predictions(result.summary["best"]["round"]),
    )
    rows = {site.name: site.test for site in federation.sites}
    for site in sites:
        told = result.deployed(site).predict(federation.collection.images[rows[site]])
        torch.testing.assert_close(told, kept[site]["test"], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("method", ["local", "mh-pflgb"])
def test_mixed_networks_train_and_are_deployed(mixed, method):
    result = mixed(method)
    assert {name: net["name"] for name, net in result.about["nets"].items()} == {
        "hospital-1": "cnn", "hospital-2": "resnet18", "hospital-3": "hospital_net:build",
    }  # fmt: skip
    assert [net["size"] for net in result.about["nets"].values()] == [16, 32, 32]
    assert result.summary["failures"] == 0
    _assert_predicts_what_was_kept(result, result.about["sites"])
    with pytest.raises(ConfigError, match="each site has a network of its own"):
        result.deployed()


def test_a_mixed_run_that_was_interrupted_ends_the_same(mixed, interrupted_run, run_contents, tmp_path):
    folder = interrupted_run(asked(tmp_path, MIXED, method={"name": "mh-pflgb"}))
    api.resume(folder)
    assert run_contents(folder) == run_contents(mixed("mh-pflgb").folder)


def test_workers_end_the_same(mixed, run_contents, tmp_path):
    worker_pool = WorkerPool(1)
    try:
        pool = {"name": "pool", "workers": 1, "device": "cpu"}
        result = api.run(asked(tmp_path, MIXED, method={"name": "mh-pflgb"}, engine=pool), worker_pool=worker_pool)
    finally:
        worker_pool.stop()
    assert run_contents(result.folder) == run_contents(mixed("mh-pflgb").folder)


def test_a_shrunk_network_is_exported_with_its_shrinking(mixed, cli, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    result = mixed("local")
    said = cli("export", result.folder, "--site", "hospital-1", "--out", tmp_path / "net.onnx")
    assert said.code == 0
    session = onnxruntime.InferenceSession(str(tmp_path / "net.onnx"), providers=["CPUExecutionProvider"])
    pixels = torch.randint(0, 256, (3, 32, 32, 3), dtype=torch.uint8, generator=torch.manual_seed(0))
    [probabilities] = session.run(["probabilities"], {"pixels": pixels.numpy()})
    expected = result.deployed("hospital-1").predict(pixels)
    torch.testing.assert_close(torch.from_numpy(probabilities), expected, atol=1e-4, rtol=0)
