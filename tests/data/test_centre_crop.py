"""fit = "centre:200": a square of so many pixels from the middle of every image, as MedMNIST prepares PBC."""

from __future__ import annotations

from io import BytesIO
from zipfile import ZipFile

import numpy as np
import pytest
from PIL import Image

from crossward.config.reading import config_from
from crossward.data.decode import Frame, crop_box, decode_image
from crossward.data.sources import folder
from crossward.errors import ConfigError


def png(pixels: np.ndarray, format: str = "PNG", **options) -> bytes:
    data = BytesIO()
    Image.fromarray(pixels).save(data, format, **options)
    return data.getvalue()


def test_the_middle_is_kept_pixel_by_pixel():
    pixels = np.arange(63, dtype=np.uint8).reshape(7, 9)
    image, size = decode_image(png(pixels), "a.png", Frame(3, 1, "centre:3"))
    assert image[..., 0].tolist() == pixels[2:5, 3:6].tolist()
    assert size == (9, 7)


def test_a_photograph_is_cropped_before_it_is_shrunk():
    """A JPEG may be decoded at a part of its size: the square is still 200 of its 360 pixels."""
    photograph = np.zeros((360, 363, 3), dtype=np.uint8)
    photograph[80:280, 81:281] = 250  # the middle
    image, _ = decode_image(png(photograph, "JPEG", quality=95), "a.jpg", Frame(28, fit="centre:200"))
    assert image[1:-1, 1:-1].min() > 200
    assert image.mean() > 215
    wider, _ = decode_image(png(photograph, "JPEG", quality=95), "a.jpg", Frame(28, fit="centre:300"))
    assert wider[0].max() < 20


def test_an_image_smaller_than_the_square_is_cropped_to_its_own():
    assert crop_box((100, 80), "centre:200", 64) == crop_box((100, 80), "crop", 64)


@pytest.mark.parametrize(
    ("size", "box"),
    [
        ((363, 360), (81, 80, 281, 280)),  # as published: the same as centre:200
        ((64, 65), (14, 14, 50, 50)),  # a copy that was shrunk: 36 of 64 are 200 of 360
        ((2, 3), (0, 1, 1, 2)),
        ((1, 1), (0, 0, 1, 1)),
    ],
)
def test_a_share_of_the_smaller_side_is_the_same_part_of_a_copy_that_was_shrunk(size, box):
    assert crop_box(size, "centre:200/360", 28) == box


def test_images_that_are_too_small_for_the_square_are_told(gallery, tmp_path):
    """Whoever asks for the middle of images should hear that there was nothing to cut off."""
    for name, size in {"a/1.png": (363, 360), "a/2.png": (64, 65), "b/3.png": (64, 64)}.items():
        gallery.image(name, size)

    def told(fit: str) -> tuple[str, ...]:
        return folder.read(gallery.root, size=28, fit=fit, cache=tmp_path / "cache")[0].notes

    [note] = told("centre:200")
    assert note.startswith('2 image(s) are smaller than the square of fit = "centre:N"')
    assert note.endswith("first: a/2.png, b/3.png")
    assert told("centre:64") == told("centre:200/360") == told("crop") == ()


def test_real_blood_cells_show_the_middle_that_medmnist_keeps(real_file):
    """The copies at hand are of 64 pixels, not 363 x 360: of these, too, the middle 200/360 is what is left."""
    with ZipFile(real_file("PBC_dataset_normal_DIB.zip")) as archive:
        names = [name for name in archive.namelist() if name.endswith(".jpg")][::2000]
        files = {name: archive.read(name) for name in names}
    for name, data in files.items():
        picture = Image.open(BytesIO(data)).convert("RGB")
        short = min(picture.size)
        published = picture.resize((363, 360), Image.Resampling.BICUBIC)  # as large as the original
        expected = np.asarray(published.crop((81, 80, 281, 280)).resize((28, 28), Image.Resampling.BILINEAR))
        cropped, _ = decode_image(data, name, Frame(28, fit="centre:200/360"))
        whole, _ = decode_image(data, name, Frame(28, fit="stretch"))
        assert short < 200
        assert np.abs(cropped - expected.astype(float)).mean() < 8
        assert np.abs(whole - expected.astype(float)).mean() > 20


WRONG = [*(f"centre:{wrong}" for wrong in ("", "0", "-3", "2.5", "2/", "/2", "2/0")), "centre", "center:200", "pad"]


@pytest.mark.parametrize("fit", WRONG)
def test_other_words_are_refused(fit):
    with pytest.raises(ConfigError):
        Frame(8, fit=fit)
    with pytest.raises(ConfigError, match=r"data\.fit"):
        config_from({"data": {"source": "folder", "path": "scans", "fit": fit}})


def test_it_is_a_setting():
    config = config_from({"data": {"source": "pbc", "path": "pbc.zip", "fit": "centre:200"}})
    assert config.data.fit == "centre:200"
