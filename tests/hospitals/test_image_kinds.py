"""Between hospitals, and for one that joins: images that are not square, of many channels, and of 16 bits."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch

import crossward
from crossward.config.reading import config_from, to_toml
from crossward.core.tree import decode, encode
from crossward.errors import ConfigError
from crossward.foreign import ForeignError
from crossward.hospitals.build import build_coordinator_run, build_site_run, image_facts
from crossward.hospitals.rehearsal import rehearse
from crossward.hospitals.site_facts import checked_facts
from crossward.hospitals.site_limits import SiteLimits
from crossward.runs.build import prepare
from crossward.runs.join import join

SITES = ("site-1", "site-2")
LIMITS = SiteLimits(min_images=1, min_batch=1)


def arrays(folder: Path, shape: tuple[int, ...], dtype: type = np.uint8, seed: int = 0) -> Path:
    rng = np.random.default_rng(seed)
    content = {}
    for part, count in (("train", 24), ("val", 8), ("test", 8)):
        white = np.iinfo(dtype).max
        content[f"{part}_images"] = rng.integers(0, white, (count, *shape), endpoint=True).astype(dtype)
        content[f"{part}_labels"] = np.arange(count) % 2
    file = folder / f"arrays-{seed}.npz"
    np.savez(file, **content)
    return file


@pytest.fixture
def config_of(tmp_path):
    def create(file: Path, **data):
        return config_from(
            {
                "data": {"source": "npz", "path": str(file), **data},
                "partition": {"kind": "iid", "sites": 2, "local_split": [0.6, 0.2, 0.2]},
                "run": {"rounds": 1, "out": str(tmp_path / "runs")},
                "net": {"name": "cnn"},
                "train": {"batch_size": 4},
                "engine": {"device": "cpu"},
            }
        )

    return create


def of_site(config, name, **data):
    settings = config.canonical()
    return {"data": settings["data"] | data, "partition": settings["partition"], "take": name, "device": "cpu"}


# not square -----------------------------------------------------------------------------------------------------------
def test_a_run_on_wide_images_is_held_against_the_limits_of_a_site(config_of, tmp_path):
    config = config_of(arrays(tmp_path, (16, 20, 5)), size=[24, 36])
    settings = of_site(config, SITES[0])
    del settings["data"]["size"]  # the run says it
    site = build_site_run(config.canonical(), SITES, SITES[0], settings, 0, limits=LIMITS)
    assert site.federation.collection.size == (24, 36)
    assert rehearse(site.run_sites)
    narrow = LIMITS.model_copy(update={"pixels": 32})
    with pytest.raises(ConfigError, match="the run wants images of 24 x 36 pixels, and this site allows no more than"):
        build_site_run(config.canonical(), SITES, SITES[0], settings, 0, limits=narrow)


def test_a_hospital_with_wide_images_joins(config_of, tmp_path):
    run = crossward.run(config_of(arrays(tmp_path, (16, 20, 5))).canonical())
    newcomer = tmp_path / "new.toml"
    newcomer.write_text(to_toml({"data": {"source": "npz", "path": str(arrays(tmp_path, (16, 20, 5), seed=1))}}))
    joined = join(run.folder, str(newcomer), (), lambda label: nullcontext([]))
    assert joined.joined.about["images"]["size"] == [16, 20]


# 16 bits --------------------------------------------------------------------------------------------------------------
def test_all_parts_of_a_run_have_16_bits(config_of, tmp_path):
    config = config_of(arrays(tmp_path, (16, 20), np.uint16), depth=16)
    whole = prepare(config).federation.collection
    facts = checked_facts(image_facts(whole))
    assert facts["depth"] == 16
    public = torch.randint(0, 65536, (3, 16, 20, 1), dtype=torch.uint16)
    assert torch.equal(decode(encode({"public": public}))["public"], public)
    coordinator = build_coordinator_run(config, SITES, facts, public=public)
    assert coordinator.federation.collection.depth == 16
    assert rehearse(coordinator.run_sites)
    settings = of_site(config, SITES[0])
    del settings["data"]["depth"]  # the run says it
    site = build_site_run(config.canonical(), SITES, SITES[0], settings, 0, public)
    assert site.federation.collection.depth == 16
    assert torch.equal(site.federation.collection.images[site.federation.public], public)


def test_sites_must_agree_on_the_bits(config_of, tmp_path):
    deep = config_of(arrays(tmp_path, (16, 20), np.uint16), depth=16)
    facts = image_facts(prepare(deep).federation.collection)
    shallow = config_of(arrays(tmp_path, (16, 20), seed=1))
    with pytest.raises(ConfigError, match="not like those of the sites") as error:
        build_coordinator_run(deep, SITES, facts, prepare(shallow).federation)
    assert error.value.details == ("depth: 8 here, 16 at the sites",)
    with pytest.raises(ConfigError, match=r"public images of \(16, 20, 1\) uint8 for a site with \(16, 20, 1\) uint16"):
        build_coordinator_run(deep, SITES, facts, public=torch.zeros(2, 16, 20, 1, dtype=torch.uint8))


@pytest.mark.parametrize("depth", [12, 7, 2**70, "16", None, True])
def test_a_site_cannot_say_it_has_other_bits(depth):
    header = {"task": "classification", "classes": ["a", "b"], "channels": 1, "size": [8, 8]}
    assert checked_facts(header)["depth"] == 8  # as sites had before they said so
    with pytest.raises(ForeignError, match=r"depth|bits"):
        checked_facts(header | {"depth": depth})


def test_a_hospital_of_other_bits_does_not_join(config_of, tmp_path):
    run = crossward.run(config_of(arrays(tmp_path, (16, 20), np.uint16), depth=16).canonical())
    newcomer = tmp_path / "new.toml"
    data = {"source": "npz", "path": str(arrays(tmp_path, (16, 20), seed=1)), "depth": 8}
    newcomer.write_text(to_toml({"data": data}))
    with pytest.raises(ConfigError, match="the newcomer's images have pixels of 8 bits, the federation's of 16"):
        join(run.folder, str(newcomer), (), lambda label: nullcontext([]))
    data = {"source": "npz", "path": str(arrays(tmp_path, (16, 20), np.uint16, seed=2))}
    newcomer.write_text(to_toml({"data": data}))
    assert join(run.folder, str(newcomer), (), lambda label: nullcontext([])).joined.about["images"]["depth"] == 16


def test_the_cache_of_a_site_needs_room_for_16_bits(config_of, tmp_path):
    from crossward.hospitals.site_limits import _decoded_bytes

    (tmp_path / "files" / "a").mkdir(parents=True)
    (tmp_path / "files" / "a" / "1.png").touch()
    settings = config_of(arrays(tmp_path, (8, 8))).canonical()
    data = {"source": "folder", "path": str(tmp_path / "files"), "size": [10, 20], "channels": 3}
    for depth, pixels in ((8, 4), (16, 7)):  # of an image, and of a mask
        assert _decoded_bytes(config_from(settings | {"data": data | {"depth": depth}})) == 200 * pixels
