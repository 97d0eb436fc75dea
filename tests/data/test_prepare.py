"""Preparation: colour constancy, brightness and CT windows in numbers, and words that are understood or refused."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from crossward.data.prepare import Preparation, Window, preparation
from crossward.data.value_range import FromTags, ImageRange, Limits, Percentiles, StoredBits, as_pixels
from crossward.errors import ConfigError


def noise(*shape: int, high: int = 256) -> np.ndarray:
    return np.random.default_rng(0).integers(0, high, shape, dtype=np.uint8)


def by_hand(image: np.ndarray, norm: int) -> np.ndarray:
    """Shades of grey, one channel at a time, as it is written down."""
    light = [np.mean(image[..., c].astype(float) ** norm) ** (1 / norm) for c in range(3)]
    unit = np.array(light) / np.linalg.norm(light)
    return np.clip(image / (np.sqrt(3) * unit), 0, 255)


def refusal(*names: str, channels: int | None = None) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as error:
        preparation(names, channels)
    return error.value.details


def test_a_grey_image_is_left_as_it_is():
    grey = np.repeat(noise(3, 9, 7, 1), 3, axis=3)
    assert np.array_equal(preparation(["shades-of-grey"])(grey), grey)


def test_a_coloured_light_becomes_neutral():
    scene = noise(1, 8, 8, 1, high=100).astype(float)
    light = np.array([1.6, 1.0, 0.7])
    seen = np.rint(scene * light).astype(np.uint8)
    prepared = preparation(["shades-of-grey"])(seen).astype(float)
    assert np.ptp(seen.astype(float), axis=3).max() > 60
    assert np.ptp(prepared, axis=3).max() <= 2  # what rounding to whole levels leaves
    assert np.abs(prepared - scene * np.sqrt((light**2).sum() / 3)).max() <= 2  # |light| / sqrt(3), for every channel


def test_two_pixels_by_hand():
    # one channel at 100, one at 200, one black: |(100, 200, 0)| / sqrt(3) = 129.1
    flat = np.array([[[[100, 200, 0], [100, 200, 0]]]], dtype=np.uint8)
    assert preparation(["shades-of-grey:1"])(flat).tolist() == [[[[129, 129, 0], [129, 129, 0]]]]
    # norm 1: means 30, 60, 60 at length 90; gains 90 / sqrt(3) / mean = 1.732, 0.866, 0.866
    two = np.array([[[[20, 60, 120], [40, 60, 0]]]], dtype=np.uint8)
    assert preparation(["shades-of-grey:1"])(two).tolist() == [[[[35, 52, 104], [69, 52, 0]]]]


@pytest.mark.parametrize("norm", [1, 2, 5, 6, 12])
@pytest.mark.parametrize("shape", [(5, 6), (40, 150)])
def test_every_norm_is_that_of_the_formula(norm, shape):
    images = noise(3, *shape, 3) // np.array([1, 2, 3], dtype=np.uint8)
    prepared = preparation([f"shades-of-grey:{norm}"], 3)(images)
    for image, pixels in zip(images, prepared, strict=True):
        assert np.abs(pixels - by_hand(image, norm)).max() <= 0.501


def test_black_stays_black():
    black = np.zeros((2, 3, 3, 3), dtype=np.uint8)
    for name in ("shades-of-grey", "shades-of-grey:12", "brightness"):
        with np.errstate(all="raise"):
            assert not preparation([name])(black).any()


def test_bright_pixels_are_clipped():
    image = np.array([[[[250, 40, 40], [0, 0, 0]]]], dtype=np.uint8)
    prepared = preparation(["shades-of-grey:1", "brightness:0.9"])(image)
    assert prepared.tolist() == [[[[255, 255, 255], [0, 0, 0]]]]


def test_brightness_puts_the_mean_of_all_channels_at_the_target():
    image = np.array([[[[10, 20, 30], [30, 20, 10]]]], dtype=np.uint8)  # mean 20
    assert preparation(["brightness:0.1568627451"])(image).tolist() == [[[[20, 40, 60], [60, 40, 20]]]]  # 40 of 255
    dark = noise(4, 16, 16, 3, high=60)
    assert np.abs(preparation(["brightness"])(dark).mean((1, 2, 3)) - 127.5).max() < 0.5
    assert np.abs(preparation(["brightness:0.4"], 1)(dark[..., :1]).mean((1, 2, 3)) - 102).max() < 0.5


def test_operations_follow_each_other_and_round_once():
    flat = np.array([[[[100, 200, 50]]]], dtype=np.uint8)
    # |(100, 200, 50)| / sqrt(3) = 132.3 in all channels, then 64
    assert preparation(["shades-of-grey", "brightness:0.2509803922"])(flat).tolist() == [[[[64, 64, 64]]]]


@pytest.mark.parametrize("shape", [(1, 4, 4, 3), (60, 28, 28, 3), (3, 200, 90, 3), (0, 4, 4, 3)])
def test_images_of_a_batch_know_nothing_of_each_other(shape):
    prepare = preparation(["shades-of-grey", "brightness"], 3)
    images = noise(*shape)
    before = images.copy()
    prepared = prepare(images)
    assert prepared.shape == shape
    assert prepared.dtype == np.uint8
    assert np.array_equal(images, before)
    for alone, together in zip(images, prepared, strict=True):
        assert np.array_equal(prepare(alone[None])[0], together)


def test_a_window_in_hounsfield_units():
    units = np.array([-1000, -1, 0, 20, 40, 60, 80, 3000], dtype=np.int16)
    levels = [0, 0, 0, 64, 128, 191, 255, 255]  # 20 / 80 of 255 is 63.75, 40 / 80 is 127.5
    assert Window(40, 80)(units).tolist() == levels
    assert Window(40, 80)((units.astype(np.int32) + 1024).astype(np.uint16)).tolist() == levels
    assert Window(-600, 1500)(np.array([-1350, -600, 150], dtype=np.int16)).tolist() == [0, 128, 255]


def test_windows_by_name_and_ranges():
    assert preparation(["window:brain"], 1).window == Window(40, 80)
    assert preparation(["window:subdural"]).window == Window(80, 200)
    assert preparation(["window:tags"]) == Preparation(None, (), FromTags())
    assert preparation(["range:bits"]).value_range == StoredBits()
    assert preparation(["range:bits:12"]).value_range == StoredBits(12)
    assert preparation(["range:percentiles"]).value_range == Percentiles(0.5, 99.5)
    assert preparation(["range:percentiles:2:98"]).value_range == Percentiles(2, 98)
    prepared = preparation(["range:-5:4095", "brightness"], 1)
    assert prepared == Preparation(None, (("brightness", (0.5,)),), Limits(-5, 4095))
    assert prepared.wanted_range == Limits(-5, 4095)
    assert refusal("window:brain", "range:bits") == ('"range:bits": there can be one range only',)
    assert refusal("brightness", "range:bits") == ('"range:bits": the range must come first',)


def test_a_constant_image_and_one_value_make_no_noise():
    flat = np.full((4, 4), 7, np.uint16)
    with np.errstate(all="raise"):
        pixels, _ = as_pixels(flat, ImageRange(16), Percentiles())
    assert not pixels.any()


def test_words_become_numbers():
    prepare = preparation(("window:40:80", "brightness"), 1)
    assert prepare == Preparation(Window(40.0, 80.0), (("brightness", (0.5,)),))
    assert preparation(["shades-of-grey", "brightness:0.6"]).steps == (("shades-of-grey", (6,)), ("brightness", (0.6,)))
    assert pickle.loads(pickle.dumps(prepare)) == prepare
    plain = noise(1, 2, 2, 3)
    assert preparation(()) == Preparation(None, ())
    assert preparation(())(plain) is plain


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("shade-of-gray", 'no such operation, did you mean "shades-of-grey"?'),
        ("bright:0.5", 'no such operation, did you mean "brightness"?'),
        ("shades-of-grey:6.5", 'the norm "6.5" is not a whole number'),
        ("shades-of-grey:0", "the norm 0 must be at least 1 and at most 12"),
        ("shades-of-grey:6:2", 'shades-of-grey takes a norm, as in "shades-of-grey:6"'),
        ("brightness:half", 'the target "half" is not a number'),
        ("brightness:", 'the target "" is not a number'),
        ("brightness:nan", "the target nan must be above 0 and at most 1"),
        ("brightness:0", "the target 0 must be above 0 and at most 1"),
        ("window", 'window takes a level and a width, as in "window:40:80"'),
        ("window:40", 'window takes a level and a width, as in "window:40:80"'),
        ("window:40:0", "the width 0 must be above 0 and at most 65535"),
        ("window:inf:80", "the level inf must be at least -32768 and at most 32767"),
        ("", "no such operation"),
        ("window:brian", 'no such window, did you mean "brain"? Known: brain, subdural'),
        ("window:tag", 'did you mean "tags"?'),
        ("range", 'a range is "range:bits:12", "range:percentiles:1:99" or "range:0:4095"'),
        ("range:bit", 'did you mean "range:bits"?'),
        ("range:bits:twelve", 'the number of bits "twelve" is not a whole number'),
        ("range:bits:40", "the number of bits 40 must be at least 1 and at most 32"),
        ("range:percentiles:99:1", "the percentile 99 must be below 1"),
        ("range:percentiles:1:101", "the percentile 101 must be at least 0 and at most 100"),
        ("range:percentiles:1", 'a range is "range:bits:12"'),
        ("range:9:9", "the limit 9 must be below 9"),
        ("range:0:nan", "the limit nan must be"),
    ],
)
def test_words_that_cannot_be_understood_are_refused(text, words):
    (detail,) = refusal(text)
    assert detail.startswith(f'"{text}": ')
    assert words in detail


def test_the_window_is_first_and_alone_and_everything_wrong_is_told():
    assert refusal("brightness", "window:40:80") == ('"window:40:80": the window must come first',)
    assert refusal("window:40:80", "window:40:400") == ('"window:40:400": there can be one window only',)
    assert len(refusal("blur", "brightness:2", "window:40:80", "window:1:x")) == 5


def test_colour_and_grey_are_told_apart():
    assert refusal("shades-of-grey", channels=1) == (
        '"shades-of-grey": shades-of-grey needs colour images, but these are grey (channels = 1)',
    )
    assert refusal("window:40:80", channels=3) == (
        '"window:40:80": window needs grey images, but these are colour (channels = 3)',
    )
