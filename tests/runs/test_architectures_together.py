"""Which nets sites have when some are left out or say little, and which look alike and may not be averaged."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from crossward.config.reading import config_from, read_config
from crossward.errors import ConfigError
from crossward.runs import lifecycle as api
from crossward.runs.build import prepare
from crossward.runs.join import join

DATA = {"sites": 3, "train": 12, "val": 4, "test": 6, "global_test": 6, "size": 32}
SHALLOW = {"width": 0.125, "stem": "small"}


def asked(sites: list[dict[str, Any]] | None = None, **sections: Any) -> dict[str, Any]:
    made = {"data": DATA, "train": {"batch_size": 8}, "engine": {"device": "cpu"}, "site": sites or []}
    return made | {
        name: made.get(name, {}) | value if isinstance(value, dict) else value for name, value in sections.items()
    }


def architectures(sites=None, **sections) -> dict[str, str]:
    run_sites = prepare(config_from(asked(sites, **{"method": {"name": "local"}} | sections))).run_sites
    return {run_sites.name(site): run_sites.architecture(site) for site in run_sites.ids}


# what is asked for ---------------------------------------------------------------------------------------------------
def test_a_net_may_be_named_alone():
    assert set(architectures(net="resnet5").values()) == {"resnet5"}
    assert list(architectures(net=["cnn", "resnet5"]).values()) == ["cnn", "resnet5", "cnn"]


def test_options_alone_are_of_the_net_that_the_site_would_have():
    found = architectures([{"net": {"width": 0.5}}, {}, {"net": {"width": 0.25}}], net={"name": ["resnet5", "resnet8"]})
    assert list(found.values()) == ["resnet5 width=0.5", "resnet8", "resnet5 width=0.25"]


def test_sites_that_are_left_out_keep_their_turns_and_entries():
    out = {"partition": {"leave_out": ["hospital-1"]}}
    assert architectures(net={"name": ["cnn", "resnet5", "resnet8"]}, **out) == {
        "hospital-2": "resnet5",
        "hospital-3": "resnet8",
    }
    entries = [{"name": "hospital-1", "net": "resnet8"}, {"name": "hospital-3", "net": "resnet5"}]
    assert architectures(entries, **out) == {"hospital-2": "cnn", "hospital-3": "resnet5"}


def test_a_site_that_joins_has_the_net_and_the_size_that_it_was_left_out_with(tmp_path):
    entries = [{"name": "hospital-1", "net": {"name": "resnet5", "width": 0.25}, "shrink": 2}]
    run = {"rounds": 1, "out": str(tmp_path)}
    out = {"partition": {"leave_out": ["hospital-1"]}, "method": {"name": "mh-pflgb"}, "run": run}
    federation = api.run(asked(entries, net={"name": "cnn"}, **out))
    done = join(federation.folder, "hospital-1", [], lambda label: nullcontext([]))
    for net in (done.alone.about["net"], done.joined.about["net"]):
        assert (net["name"], net["options"], net["size"], net["shrink"]) == ("resnet5", {"width": 0.25}, 16, 2)


def test_more_nets_than_sites_are_told():
    many = asked(net={"name": ["cnn", "resnet5", "resnet8", "resnet11"]}, method={"name": "local"})
    assert "net.name lists 4 nets for 3 sites: the last are not used" in prepare(config_from(many)).warnings


def test_a_start_is_placed_for_every_net_of_a_list():
    config = config_from({"net": {"name": ["efficientnet-lite0", "efficientnet-b0"], "start": "w.safetensors"}})
    assert config.net.options["start"] == str(Path("w.safetensors").absolute())


# what is refused -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("net", ["mobilenet", "squeezenet", "shufflenet", "resnet8"])
def test_nets_with_the_same_weights_that_compute_otherwise_are_not_averaged(net):
    stems = [{"net": {"name": net, "width": 0.25, "stem": stem}} for stem in ("small", "imagenet", "small")]
    with pytest.raises(ConfigError, match="have weights of the same shapes, but compute otherwise"):
        prepare(config_from(asked(stems)))
    assert len(set(architectures(stems).values())) == 2  # local training has nothing against it


def test_one_net_that_sees_other_sizes_is_averaged():
    sites = [{"net": {"name": "resnet8"} | SHALLOW, "shrink": shrink} for shrink in (1, 2, 1)]
    run_sites = prepare(config_from(asked(sites))).run_sites
    assert len(run_sites.architectures) == 2


def test_one_image_at_a_time_says_where_batchnorm_is():
    with pytest.raises(ConfigError, match="which cannot learn from one image") as error:
        prepare(
            config_from(
                asked(net={"name": "resnet5", "norm": "group"}, train={"batch_size": 1}, method={"name": "mh-pflgb"})
            )
        )
    assert error.value.details[0] == "hospital-1 (resnet5 norm=group): bypass.body.1"


def test_site_as_one_table(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('[site]\nnet = "cnn"\n')
    with pytest.raises(ConfigError, match=r"write \[\[site\]\], once for each site"):
        read_config(file)
