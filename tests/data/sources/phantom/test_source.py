"""The built-in datasets: what is drawn, and that it depends on the arguments alone."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from crossward.data.collection import Collection
from crossward.data.sources.phantom.source import blood, polyp
from crossward.errors import ConfigError

SMALL = {"sites": 4, "train": 20, "val": 5, "test": 6, "global_test": 32}


@pytest.fixture(scope="module")
def smear() -> Collection:
    return blood(**SMALL)


@pytest.fixture(scope="module")
def frames() -> Collection:
    return polyp(**SMALL, size=32)


def _rows(collection: Collection, site: str, split: str) -> list[int]:
    both = zip(collection.sites, collection.splits, strict=True)
    return [row for row, where in enumerate(both) if where == (site, split)]


def _image_bytes(collection: Collection, site: str) -> bytes:
    rows = [row for row, own in enumerate(collection.sites) if own == site]
    return collection.images[rows].numpy().tobytes()


def test_blood_has_the_asked_shapes_and_numbers(smear):
    assert smear.images.shape == (4 * (20 + 5 + 6) + 32, 28, 28, 3)  # an even number of sites keeps the average exactly
    assert smear.images.dtype == torch.uint8
    assert smear.targets.shape == (156,)
    assert smear.targets.dtype == torch.int64
    assert smear.task == "classification"
    assert len(smear.classes) == 8
    assert smear.classes[0] == "basophil"
    assert smear.classes[-1] == "platelet"
    assert Counter(smear.splits) == {"train": 80, "val": 20, "test": 24 + 32}
    assert set(smear.sites) == {"hospital-1", "hospital-2", "hospital-3", "hospital-4", ""}
    assert {len(column) for column in (smear.ids, smear.hashes, smear.groups, smear.sites, smear.splits)} == {156}


def test_ids_name_site_split_and_row(smear):
    assert smear.ids[0] == "hospital-1/train/0000"
    assert [smear.ids[row] for row in _rows(smear, "hospital-2", "val")][:2] == [
        "hospital-2/val/0000",
        "hospital-2/val/0001",
    ]
    assert len(set(smear.ids)) == len(smear)
    assert sorted(i for i in smear.ids if i.startswith("global")) == [f"global/test/{row:04d}" for row in range(32)]


def test_polyps_have_binary_masks_that_are_never_empty(frames):
    assert frames.images.shape == (156, 32, 32, 3)
    assert frames.targets.shape == (156, 32, 32)
    assert frames.targets.dtype == torch.uint8
    assert frames.classes == ("background", "polyp")
    assert frames.task == "segmentation"
    assert frames.targets.unique().tolist() == [0, 1]
    areas = frames.targets.flatten(1).sum(1)
    assert areas.min() >= 1
    assert areas.max() < 32 * 32 * 0.6
    assert areas.float().std() > 20  # small and large ones


def test_smallest_polyps_show_at_the_smallest_size():
    masks = polyp(sites=4, train=60, val=0, test=0, global_test=0, size=24, difficulty=3.0).targets
    assert int(masks.flatten(1).sum(1).min()) >= 1


@pytest.mark.parametrize("make", [blood, polyp])
def test_same_arguments_same_images_whatever_the_global_generators_and_threads(make):
    few = {"sites": 2, "train": 6, "val": 2, "test": 2, "global_test": 4, "size": 24}
    first = make(**few, seed=3)
    torch.manual_seed(99)
    np.random.seed(99)
    before = torch.get_num_threads()
    state = torch.random.get_rng_state()
    torch.set_num_threads(2)
    second = make(**few, seed=3)
    torch.set_num_threads(before)
    assert torch.equal(first.images, second.images)
    assert torch.equal(first.targets, second.targets)
    assert first.hashes == second.hashes
    assert first.groups == second.groups
    assert first.ids == second.ids
    assert torch.equal(state, torch.random.get_rng_state())
    assert set(first.hashes).isdisjoint(make(**few, seed=4).hashes)


@pytest.mark.parametrize("make", [blood, polyp])
def test_a_hospital_does_not_depend_on_how_many_there_are(make):
    few = {"train": 6, "val": 2, "test": 2, "global_test": 8, "size": 24}
    one = make(sites=1, **few)
    three = make(sites=3, **few)
    assert _image_bytes(one, "hospital-1") == _image_bytes(three, "hospital-1")
    assert _image_bytes(three, "hospital-1") != _image_bytes(three, "hospital-2")


def test_no_image_occurs_twice(smear, frames):
    assert len(set(smear.hashes)) == len(smear)
    assert len(set(frames.hashes)) == len(frames)
    assert len({image.numpy().tobytes() for image in smear.images}) == len(smear)


@pytest.mark.parametrize("name", ["smear", "frames"])
def test_no_patient_is_in_two_splits_or_at_two_sites(name, request):
    collection = request.getfixturevalue(name)
    places: dict[str, set[tuple[str, str]]] = {}
    for patient, site, split in zip(collection.groups, collection.sites, collection.splits, strict=True):
        places.setdefault(patient, set()).add((site, split))
    assert {len(where) for where in places.values()} == {1}
    assert max(Counter(collection.groups).values()) > 1  # some patients have several images


def test_class_mixes_differ_between_hospitals_and_have_two_of_two_classes():
    collection = blood(sites=6, train=40, val=0, test=0, global_test=0, size=24, skew=0.05)
    mixes = []
    for site in range(6):
        rows = _rows(collection, f"hospital-{site + 1}", "train")
        mixes.append(torch.bincount(collection.targets[rows], minlength=8))
        assert int((mixes[-1] >= 2).sum()) >= 2
        assert int((mixes[-1] == 0).sum()) >= 1
    assert len({int(mix.argmax()) for mix in mixes}) == 6


def test_a_large_skew_makes_the_mixes_even():
    collection = blood(sites=2, train=80, val=0, test=0, global_test=0, size=24, skew=1e6)
    share = torch.bincount(collection.targets[_rows(collection, "hospital-1", "train")], minlength=8)
    assert int(share.max() - share.min()) <= 1


def test_the_global_test_set_is_balanced_over_classes(smear):
    rows = _rows(smear, "", "test")
    assert torch.bincount(smear.targets[rows]).tolist() == [4] * 8


@pytest.mark.parametrize("make", [blood, polyp])
def test_one_scene_at_two_sizes_is_the_same_picture(make):
    few = {"sites": 2, "train": 6, "val": 0, "test": 0, "global_test": 0}
    low, high = make(**few, size=32), make(**few, size=96)
    shrunk = high.images.double().reshape(-1, 32, 3, 32, 3, 3).mean((2, 4))
    for a, b in zip(low.images.double(), shrunk, strict=True):
        assert float(torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1]) > 0.9
    if make is polyp:
        agree = high.targets[:, 1::3, 1::3] == low.targets  # the middle pixel of 3 x 3 has the same centre
        assert float(agree.double().mean()) > 0.999
    else:
        assert torch.equal(low.targets, high.targets)


def test_polyp_frames_have_black_corners_and_no_polyp_in_them(frames):
    rows = _rows(frames, "hospital-2", "train")  # a round field of view
    assert int(frames.images[rows][:, 0, 0].max()) <= 10
    assert int(frames.targets[rows][:, 0, 0].max()) == 0


def test_more_difficulty_is_more_noise():
    few = {"sites": 1, "train": 8, "val": 0, "test": 0, "global_test": 0, "size": 24}

    def roughness(difficulty: float) -> float:
        images = blood(**few, difficulty=difficulty).images.double()
        return float((images[:, :, 1:] - images[:, :, :-1]).abs().median())

    assert roughness(0.1) < roughness(1.0) < roughness(8.0)


@pytest.mark.parametrize("make", [blood, polyp])
def test_bad_arguments_are_named_all_at_once(make):
    with pytest.raises(ConfigError) as caught:
        make(sites=0, train=-1, global_test=-2, size=23, seed=-1, difficulty=0)
    assert caught.value.details == (
        "sites = 0: at least 1",
        "train = -1: 0 or more",
        "global_test = -2: 0 or more",
        "size = 23: at least 24 pixels",
        "seed = -1: 0 or more",
        "difficulty = 0: above 0",
    )
    assert caught.value.hint


@pytest.mark.parametrize("bad", [{"skew": 0.0}, {"skew": float("nan")}, {"difficulty": -1.0}, {"sites": -3}])
def test_each_bad_argument_is_refused(bad):
    with pytest.raises(ConfigError):
        blood(**bad)


def test_tiny_and_empty_splits_are_drawn():
    tiny = blood(sites=2, train=2, val=0, test=1, global_test=0, size=24)
    assert Counter(tiny.splits) == {"train": 4, "test": 2}
    for site in ("hospital-1", "hospital-2"):
        rows = _rows(tiny, site, "train")  # one to three images: two classes as soon as there are two
        assert len(set(tiny.targets[rows].tolist())) == min(len(rows), 2)
    assert len(blood(sites=1, train=0, val=0, test=0, global_test=0)) == 0
