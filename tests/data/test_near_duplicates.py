"""Near-identical images: what perceptual hashes find, and what of it crosses the sides of a split."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from plain_near_duplicates import plain_hashes, plain_near_rows
from scipy.fft import dctn

from crossward.data import near_duplicates, stored_hashes
from crossward.data.collection import Collection
from crossward.data.copies import LeakRules
from crossward.data.federate import federate
from crossward.data.near_duplicates import image_hashes, near_pairs
from crossward.data.near_leaks import near_leak_notes, near_leaks
from crossward.data.sealed_files import digest
from crossward.data.stored_hashes import collection_hashes


def pictures(count, side=48, seed=0):
    rng = np.random.RandomState(seed)
    coarse = rng.randint(0, 255, (count, 6, 6, 3)).astype(np.uint8)
    return torch.from_numpy(
        np.stack([np.array(Image.fromarray(one).resize((side, side), Image.Resampling.BICUBIC)) for one in coarse])
    )


def compressed(image, quality=40):
    stream = io.BytesIO()
    Image.fromarray(image.numpy()).save(stream, "JPEG", quality=quality)
    return torch.from_numpy(np.array(Image.open(stream)))


def test_the_hash_is_the_signs_of_the_lowest_frequencies():
    images = pictures(3, side=32)
    for image, value in zip(images.numpy(), image_hashes(images).hashes, strict=True):
        low = dctn(image.astype(np.float64).mean(2), type=2)[:8, :8]
        # scipy scales frequency 0 as the others up to a factor, which the comparison with the median must not see
        bits = (low.ravel() > np.sort(low.ravel()[1:])[31]).astype(int)
        agree = sum(int(bit) == (int(value) >> (63 - place)) & 1 for place, bit in enumerate(bits))
        assert agree >= 62  # rounding may move a frequency across the median


@pytest.mark.parametrize(
    "shape",
    [(28, 28, 1), (28, 28, 3), (33, 17, 1), (64, 48, 1), (100, 128, 1), (8, 8, 1), (130, 40, 1)],
    ids=lambda shape: "x".join(map(str, shape)),
)
@pytest.mark.parametrize("kind", ["noise", "smooth", "faint", "symmetric"])
def test_hashes_are_those_of_torch_pooling_to_the_bit(shape, kind):
    height, width, channels = shape
    rng = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (90, *shape), generator=rng, dtype=torch.uint8)
    if kind == "smooth":
        coarse = torch.randint(0, 256, (90, channels, 5, 5), generator=rng).float()
        large = torch.nn.functional.interpolate(coarse, (height, width), mode="bicubic").clamp(0, 255)
        images = large.to(torch.uint8).permute(0, 2, 3, 1)
    elif kind == "faint":  # about as deviating as what counts as flat
        images = (images / 255 * torch.linspace(0, 160, 90)[:, None, None, None] + 90).to(torch.uint8)
    elif kind == "symmetric":  # half of its frequencies are nothing but rounding
        images = torch.maximum(images, images.flip(2))
    expected, found = plain_hashes(images), image_hashes(images)
    assert (found.hashes == expected.hashes).all()
    assert torch.equal(found.small, expected.small)
    assert (found.flat == expected.flat).all()
    assert kind != "faint" or 0 < found.flat.sum() < 90


def test_what_is_flat_is_decided_as_by_the_deviation_itself():
    tiny = torch.randn(4000, near_duplicates.SMALL_PIXELS, generator=torch.Generator().manual_seed(0))
    tiny = tiny - tiny.mean(1, keepdim=True)
    tiny *= (near_duplicates.FLAT * (1 + 2e-7 * torch.randn(4000)) / tiny.std(1))[:, None]
    expected = tiny.std(1) < near_duplicates.FLAT
    assert 0 < expected.sum() < 4000
    assert torch.equal(near_duplicates._is_flat(tiny, tiny.norm(dim=1)), expected)


@given(st.integers(0, 2**31 - 1), st.booleans(), st.sampled_from([3, 8, 2000]), st.sampled_from([5, 10**6]))
@settings(max_examples=60, deadline=None)
def test_pairs_are_those_of_comparing_row_by_row(seed, across, most_of_a_band, most_seen):
    rng = np.random.RandomState(seed)
    count = rng.randint(0, 40)
    centres = [int(value) for value in rng.randint(0, 2**62, 5)]
    hashes = [centres[rng.randint(5)] for _ in range(count)]
    for row in range(count):
        for bit in rng.randint(0, 64, rng.randint(0, 6)).tolist():
            hashes[row] ^= 1 << bit
    sides = rng.randint(0, 3, count)
    flat = rng.rand(count) < 0.1
    small = torch.full((count, near_duplicates.SMALL_PIXELS), 1 / 16, dtype=torch.float16)
    found = near_duplicates.ImageHashes(np.array(hashes, dtype=np.uint64), small, flat)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(near_duplicates, "MOST_OF_A_BAND", most_of_a_band)
        patch.setattr(near_duplicates, "PAIRS_AT_ONCE", 20)
        patch.setattr(near_duplicates, "PAIRS_IN_CACHE", 7)
        patch.setattr(near_duplicates, "MOST_SEEN", most_seen)
        pairs = near_pairs(found, across=(sides == 1, sides == 2) if across else None)
        expected = plain_near_rows(hashes, flat.tolist(), sides.tolist(), near_duplicates.DISTANCE, across=across)
    assert sorted((pair.a, pair.b) for pair in pairs) == expected


def test_copies_at_another_brightness_or_compression_are_found():
    images = pictures(300)
    images[7] = (images[290].float() * 0.8 + 20).to(torch.uint8)
    images[100] = compressed(images[101])
    pairs = near_pairs(image_hashes(images))
    assert {(pair.a, pair.b) for pair in pairs} == {(7, 290), (100, 101)}
    assert all(pair.correlation > 0.985 for pair in pairs)


def test_flat_images_are_like_no_other():
    images = torch.full((20, 16, 16, 1), 7, dtype=torch.uint8)
    assert near_pairs(image_hashes(images)) == []
    assert near_pairs(image_hashes(images[:0])) == []


def test_very_many_alike_are_compared_in_bounded_memory():
    images = pictures(1).repeat(3000, 1, 1, 1)
    pairs = near_pairs(image_hashes(images), lambda a, b: (a == 0) | (b == 0))
    assert len(pairs) >= 2000


def test_of_very_many_pairs_some_are_returned(monkeypatch):
    monkeypatch.setattr(near_duplicates, "MOST_PAIRS", 50)
    monkeypatch.setattr(near_duplicates, "MOST_SEEN", 1000)
    images = pictures(2).repeat(100, 1, 1, 1)
    images[7] = compressed(images[7], quality=90)
    pairs = near_pairs(image_hashes(images))
    assert len(pairs) == 50
    assert pairs == sorted(pairs, key=lambda pair: -pair.correlation)


def test_pairs_on_both_sides_are_named_and_others_are_not():
    images = pictures(12)
    images[11] = compressed(images[0])
    images[1] = compressed(images[2])  # both are trained on
    images[10] = images[3]  # identical, with the same hash: the audit's
    splits = ("train",) * 8 + ("val",) * 2 + ("test",) * 2
    hashes = tuple(f"h{row}" if row != 10 else "h3" for row in range(12))
    ids = tuple(f"row{row}" for row in range(12))
    targets = torch.tensor([0, 1] * 6)
    collection = Collection("drawn", "classification", ("a", "b"), images, targets, ids, hashes, splits=splits)
    federation = federate(collection, sites=2, leak_rules=LeakRules("keep", "to be seen"))
    [leak] = near_leaks(federation)
    assert (leak.trained, leak.held_out, leak.held_out_at, leak.part) == ("row0", "row11", "server", "test")
    assert leak.same_label is False
    assert "1 pair(s) of almost the same image" in near_leak_notes([leak])[0]
    assert "1 of them with another label" in near_leak_notes([leak])[0]


def drawn_collection(images):
    hashes = tuple(digest(image.numpy().tobytes()) for image in images)
    ids = tuple(f"row{row}" for row in range(len(images)))
    targets = torch.arange(len(images)) % 2
    return Collection("drawn", "classification", ("a", "b"), images, targets, ids, hashes)


def test_hashes_are_computed_once(tmp_path, monkeypatch):
    monkeypatch.setattr(stored_hashes, "WORTH_STORING", 0)
    images = pictures(60)
    collection = drawn_collection(images)
    first = collection_hashes(collection, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(stored_hashes, "hash_blocks", lambda _: pytest.fail("computed again"))
        again = collection_hashes(collection, tmp_path)
    for found in (first, again):
        assert (found.hashes == image_hashes(images).hashes).all()
        assert torch.equal(found.small, image_hashes(images).small)
        assert (found.flat == image_hashes(images).flat).all()
    assert near_pairs(again) == near_pairs(first)


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: b"", lambda data: b"0" + data[1:]])
def test_damaged_hashes_are_computed_again(tmp_path, monkeypatch, damage):
    monkeypatch.setattr(stored_hashes, "WORTH_STORING", 0)
    collection = drawn_collection(pictures(20))
    expected = collection_hashes(collection, tmp_path).hashes
    [file] = tmp_path.iterdir()
    file.write_bytes(damage(file.read_bytes()))
    assert (collection_hashes(collection, tmp_path).hashes == expected).all()
    assert len(list(tmp_path.iterdir())) == 1


def test_other_images_and_images_without_hashes_are_not_mixed_up(tmp_path, monkeypatch):
    monkeypatch.setattr(stored_hashes, "WORTH_STORING", 0)
    collection_hashes(drawn_collection(pictures(20)), tmp_path)
    others = pictures(20, seed=1)
    assert (collection_hashes(drawn_collection(others), tmp_path).hashes == image_hashes(others).hashes).all()
    unknown = replace(drawn_collection(others), hashes=("",) * 20)
    assert (collection_hashes(unknown, tmp_path).hashes == image_hashes(others).hashes).all()
    assert len(list(tmp_path.iterdir())) == 2


def test_hashes_of_few_images_are_not_stored(tmp_path):
    collection_hashes(drawn_collection(pictures(20)), tmp_path)
    assert list(tmp_path.iterdir()) == []
