"""Masks become class ids, by whatever habit they were saved; those that could mean two things are refused."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image, ImageDraw

from crossward.data.decode import Frame, decode_mask
from crossward.errors import DataError
from crossward.testing.drawn_images import encoded, grey

BINARY = Frame(2, classes=2)
SUFFIXES = {"TIFF": "tif", "JPEG": "jpg", "PNG": "png", "BMP": "bmp"}
BLACK = (0, 0, 0)
WHITE = (255, 255, 255)
RED = (255, 0, 0)
GREEN = (0, 200, 0)


def ids(data: bytes, path: str = "m.png", frame: Frame = BINARY) -> list[list[int]]:
    pixels: list[list[int]] = decode_mask(data, path, frame)[0].tolist()
    return pixels


def read(picture: Image.Image | np.ndarray, kind: str = "PNG", **options: object) -> tuple[np.ndarray, str]:
    """The ids at the mask's own size, which is square, and the habit."""
    whole = picture if isinstance(picture, Image.Image) else Image.fromarray(picture)
    pixels, _, habit = decode_mask(
        encoded(whole, kind, **options), f"m.{SUFFIXES[kind]}", Frame(whole.width, classes=2)
    )
    return pixels, habit


def reason(picture: Image.Image | np.ndarray, kind: str = "PNG", **options: object) -> str:
    with pytest.raises(DataError) as error:
        read(picture, kind, **options)
    return error.value.what


HALF = np.tile(np.repeat(np.array([0, 255], dtype=np.uint8), (11, 13)), (24, 1))


def polyps(value: int = 255, size: int = 96) -> np.ndarray:
    picture = Image.new("L", (size, size))
    for crop_box in ((20, 14, 70, 50), (52, 60, 80, 90)):
        ImageDraw.Draw(picture).ellipse(crop_box, fill=value)
    return np.asarray(picture)


def painted(back: tuple[int, ...], front: tuple[int, ...], mode: str = "RGB") -> Image.Image:
    where = (polyps() > 0)[..., None]
    return Image.fromarray(np.where(where, np.array(front, np.uint8), np.array(back, np.uint8)), mode)


# grey ----------------------------------------------------------------------------------------------------------------
def test_binary_masks_of_every_habit():
    assert ids(encoded(grey([[0, 255], [255, 0]]))) == [[0, 1], [1, 0]]
    assert ids(encoded(grey([[0, 1], [1, 0]]))) == [[0, 1], [1, 0]]
    assert ids(encoded(grey([[0, 1], [1, 0]], np.uint16))) == [[0, 1], [1, 0]]
    assert ids(encoded(grey([[255, 255], [255, 255]]))) == [[1, 1], [1, 1]]
    assert ids(encoded(grey([[0, 0], [0, 0]]))) == [[0, 0], [0, 0]]
    assert ids(encoded(grey([[0, 255], [255, 0]]).convert("1"))) == [[0, 1], [1, 0]]
    assert ids(encoded(grey([[0, 255], [255, 0]]).convert("RGB"))) == [[0, 1], [1, 0]]


def test_noisy_jpeg_masks():
    half = np.zeros((16, 16), dtype=np.uint8)
    half[:, 8:] = 255
    noisy = encoded(Image.fromarray(half), "JPEG", quality=30)
    pixels, size, _ = decode_mask(noisy, "m.jpg", Frame(16, classes=2))
    assert pixels.tolist() == (half // 255).tolist()
    assert size == (16, 16)
    empty = encoded(Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8) % 6), "JPEG")
    assert ids(empty, "m.jpg") == [[0, 0], [0, 0]]  # noise around black is not a lesion


def test_habits_of_masks():
    assert [read(rows)[1] for rows in (HALF, HALF // 255, HALF * 0, HALF | 255)] == ["", "", "", ""]
    assert [read(HALF, "JPEG", quality=quality)[1] for quality in (20, 50, 90)] == ["grey"] * 3
    low_and_high = np.where(HALF, 255, 200).astype(np.uint8)
    noise = np.where(HALF, 255, 254).astype(np.uint8)
    assert ids(encoded(Image.fromarray(low_and_high))) == [[0, 1], [0, 1]]
    assert ids(encoded(Image.fromarray(noise))) == [[1, 1], [1, 1]]
    assert read(low_and_high)[1] == ""
    assert read(noise)[1] == "grey"


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "BMP"])
@pytest.mark.parametrize("mode", ["L", "RGB"])
@pytest.mark.parametrize("quality", [20, 75, 95, 98, 100])
def test_lossy_masks_saved_without_loss_are_thresholded(kind, mode, quality):
    lossy = Image.open(io.BytesIO(encoded(Image.fromarray(polyps()).convert(mode), "JPEG", quality=quality)))
    pixels, habit = read(lossy.copy(), kind)
    assert np.mean(pixels != polyps() // 255) < 0.002
    assert habit == "grey"


@pytest.mark.parametrize(("size", "how"), [(48, "BOX"), (192, "BILINEAR"), (288, "BICUBIC"), (60, "LANCZOS")])
@pytest.mark.parametrize("mode", ["L", "RGB", "P"])
def test_resized_masks_are_thresholded(size, how, mode):
    small = Image.fromarray(polyps()).resize((size, size), Image.Resampling[how])
    pixels, habit = read(small.convert(mode))
    assert pixels.tolist() == (np.asarray(small) > 127).tolist()
    assert habit == "grey"


def bordered() -> np.ndarray:
    """Polyps of 1 inside of a border of 255, which is to be ignored."""
    whole = Image.new("L", (96, 96))
    ImageDraw.Draw(whole).ellipse((20, 14, 70, 50), fill=1, outline=255, width=2)
    return np.asarray(whole)


def patched(value: int, side: int) -> np.ndarray:
    rows = polyps().copy()
    rows[2 : 2 + side, 2 : 2 + side] = value
    return rows


def lined(*levels: int) -> np.ndarray:
    """Thin lines of these values, as vessels are, beside the polyps."""
    rows = polyps().copy()
    for place, value in enumerate(levels):
        rows[:, 2 + 4 * place : 4 + 4 * place] = value
    return rows


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "BMP"])
@pytest.mark.parametrize(
    ("rows", "values"),
    [
        (bordered(), "0, 1, 255"),
        (patched(1, 20), "0, 1, 255"),
        (patched(30, 20), "0, 30, 255"),
        (patched(128, 9), "0, 128, 255"),  # 0.9 % of the pixels
        (patched(254, 3), "0, 254, 255"),
        (np.maximum(patched(1, 5), lined(254)), "0, 1, 254, 255"),
        (lined(64, 128, 192), "0, 64, 128, 192, 255"),
        (np.array([[0, 1], [255, 0]], dtype=np.uint8), "0, 1, 255"),
        (np.array([[0, 250], [127, 128]], dtype=np.uint8), "0, 127, 128, 250"),
    ],
)
def test_a_few_values_without_loss_are_classes(rows, values, kind):
    assert reason(rows, kind).startswith(f"has the values {values}: a mask of two classes has two values; save")


@pytest.mark.parametrize(("kind", "words"), [("PNG", "has the values 0, .*"), ("JPEG", "has areas of about .*")])
@pytest.mark.parametrize("levels", [(0, 128, 255), (0, 85, 170, 255), (0, 50, 100, 150, 200, 250)])
def test_masks_of_more_than_two_classes_are_no_noise(kind, words, levels):
    bands = np.tile(np.repeat(np.array(levels, dtype=np.uint8), 16), (16 * len(levels), 1))
    with pytest.raises(DataError, match=f"{words}: a mask of two classes has two values"):
        read(bands, kind)


# dark and lossy ------------------------------------------------------------------------------------------------------
def test_noise_is_an_empty_mask_and_areas_are_not():
    noise = np.random.default_rng(0).integers(0, 20, (96, 96), dtype=np.uint8)
    for rows, habit in ((noise, "faint"), (noise * 0, ""), (noise * 0 + 3, "faint")):
        pixels = read(rows, "JPEG")
        assert not pixels[0].any()
        assert pixels[1] == habit
    for top in (1, 2, 10, 20):
        assert f"is stored with loss and has areas of {top} on 0: save" in reason(polyps(top), "JPEG", quality=90)
    for top in (40, 60, 80):
        assert "is stored with loss and no brighter than" in reason(polyps(top), "JPEG")


@pytest.mark.parametrize("quality", [50, 75, 95])
@pytest.mark.parametrize("top", [160, 200, 240])
def test_overshooting_edges_are_no_class(top, quality):
    pixels, habit = read(polyps(top), "JPEG", quality=quality)
    assert np.mean(pixels != polyps() // 255) < 0.01
    assert habit == "grey"


def test_loss_inside_of_a_tiff_is_loss():
    assert "is stored with loss" in reason(polyps(60), "TIFF", compression="jpeg")
    assert read(polyps(60), "TIFF", compression="tiff_lzw")[0].tolist() == (polyps() // 255).tolist()


# colours -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("colour", [RED, GREEN, (0, 0, 255), (255, 140, 0), (220, 220, 255), WHITE])
@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_a_colour_on_black_is_the_foreground(colour, kind):
    pixels, habit = read(painted(BLACK, colour), kind)
    assert np.mean(pixels != polyps() // 255) < (0.03 if kind == "JPEG" else 1e-9)  # JPEG blurs colours by two pixels
    assert habit == ("grey" if kind == "JPEG" else "")


@pytest.mark.parametrize(("back", "front"), [(WHITE, RED), (RED, WHITE), (GREEN, RED), ((0, 255, 0), (255, 255, 0))])
def test_other_pairs_of_colours_are_unclear(back, front):
    assert f"({', '.join(map(str, front))})" in reason(painted(back, front))
    assert "which of them is the background is unclear" in reason(painted(back, front), "JPEG")


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_two_colours_on_black_are_three_classes(kind):
    three = painted(BLACK, RED)
    three.paste((0, 255, 0), (0, 60, 40, 96))
    assert "which of them is the background is unclear" in reason(three, kind)


def indexed(values: tuple[int, int], palette: dict[int, tuple[int, ...]]) -> Image.Image:
    picture = Image.fromarray(np.where(polyps() > 0, values[1], values[0]).astype(np.uint8), "L")
    picture.putpalette([part for index in range(256) for part in palette.get(index, (7, 7, 7))])
    return picture


@pytest.mark.parametrize(
    ("palette", "turned", "habit"),
    [
        ({0: BLACK, 1: WHITE}, False, ""),
        ({0: WHITE, 1: BLACK}, True, "light"),  # as programs that shrink files order them
        ({0: (10,) * 3, 1: (200,) * 3}, False, ""),
        ({0: WHITE, 1: RED}, False, ""),
        ({0: BLACK, 1: (128, 0, 0)}, False, ""),
        ({0: (255, 0, 0), 1: (0, 130, 0)}, False, ""),  # as light as each other
        ({0: BLACK, 1: BLACK}, False, ""),
        ({0: BLACK, 255: RED}, False, ""),
        ({0: BLACK, 255: WHITE}, False, ""),
    ],
)
@pytest.mark.parametrize("kind", ["PNG", "TIFF", "BMP"])
def test_palettes_of_colours_count_by_index_and_of_greys_by_light(palette, turned, habit, kind):
    pixels = read(indexed(tuple(palette), palette), kind)
    assert pixels[0].tolist() == ((polyps() > 0) ^ turned).astype(int).tolist()
    assert pixels[1] == habit


def test_palettes_that_are_unclear():
    assert reason(indexed((3, 5), {3: RED, 5: GREEN})).startswith(
        "has (255, 0, 0), (0, 200, 0) at the palette indices 3, 5: which of them is the background is unclear"
    )
    assert "has (255, 0, 0), (0, 0, 0) at the palette indices 0, 1" in reason(indexed((0, 1), {0: RED, 1: BLACK}))
    three = indexed((0, 1), {0: BLACK, 1: RED, 255: (224, 224, 192)})
    three.paste(255, (0, 0, 20, 20))
    assert reason(three).startswith("has the palette indices 0, 1, 255: a mask of two classes has two")
    assert not read(indexed((0, 0), {0: RED}))[0].any()


# transparency --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("back", "front", "mode"),
    [((*BLACK, 255), (*WHITE, 255), "RGBA"), ((*BLACK, 0), (*RED, 128), "RGBA"), ((*BLACK, 0), (*WHITE, 0), "RGBA"),
     ((0, 255), (255, 255), "LA"), ((0, 0), (1, 255), "LA")],
)  # fmt: skip
def test_colour_is_read_when_transparency_does_not_disagree(back, front, mode):
    pixels, habit = read(painted(back, front, mode))
    assert pixels.tolist() == (polyps() // 255).tolist()
    assert habit == ""


@pytest.mark.parametrize(
    ("back", "front", "mode", "words"),
    [
        ((*WHITE, 0), (*WHITE, 255), "RGBA", "nothing but its transparency"),
        ((*BLACK, 255), (*BLACK, 0), "RGBA", "nothing but its transparency"),
        ((*RED, 40), (*RED, 200), "RGBA", "nothing but its transparency"),
        ((0, 0), (0, 255), "LA", "nothing but its transparency"),
        ((*WHITE, 0), (*BLACK, 255), "RGBA", "transparent in parts of its foreground"),
    ],
)
def test_masks_in_the_alpha_channel_are_refused(back, front, mode, words):
    assert words in reason(painted(back, front, mode))


def test_transparent_palettes():
    picture = indexed((0, 1), {0: WHITE, 1: RED})
    assert read(picture, transparency=0)[0].tolist() == (polyps() // 255).tolist()
    assert "transparent in parts of its foreground" in reason(picture, transparency=b"\xff\x00")


# class maps ----------------------------------------------------------------------------------------------------------
def test_class_maps_keep_their_ids():
    frame = Frame(2, classes=3)
    assert ids(encoded(grey([[0, 1], [2, 0]])), frame=frame) == [[0, 1], [2, 0]]
    palette = grey([[0, 1], [2, 0]])
    palette.putpalette([9, 9, 9, 200, 0, 0, 0, 200, 0])
    assert ids(encoded(palette), frame=frame) == [[0, 1], [2, 0]]
    assert ids(encoded(grey([[0, 1], [2, 0]]).convert("LA")), frame=frame) == [[0, 1], [2, 0]]


@pytest.mark.parametrize(
    ("data", "path", "classes", "words"),
    [
        (encoded(grey([[0, 1], [2, 3]])), "m.png", 3, "0, 1, 2, 3, but there are 3 classes"),
        (encoded(grey([[0, 1], [2, 3]])), "m.png", 2, "name the classes"),
        (encoded(Image.new("RGB", (2, 2), (1, 2, 0))), "m.png", 3, "colour mask"),
        (encoded(grey([[0, 1], [2, 0]]), "JPEG"), "m.jpg", 3, "save the mask as PNG"),
        (encoded(grey([[0.0, 1.0]], np.float32), "TIFF"), "m.tif", 2, "floating-point"),
        (b"", "m.png", 2, "is empty"),
    ],
)
def test_masks_that_cannot_be_understood(data, path, classes, words):
    with pytest.raises(DataError, match=words):
        decode_mask(data, path, Frame(2, classes=classes))


def test_masks_are_cropped_like_their_images():
    wide = encoded(grey([[255, 255, 0, 255, 0, 0]] * 2))
    assert decode_mask(wide, "m.png", Frame(2, fit="crop", classes=2))[0].tolist() == [[0, 1], [0, 1]]
