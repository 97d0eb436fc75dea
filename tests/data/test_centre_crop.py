"""fit = "centre:200": a square of so many pixels from the middle of every image, as MedMNIST prepares PBC."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from crossward.config.reading import config_from
from crossward.data.decode import Frame, crop_box, decode_image
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


@pytest.mark.parametrize("fit", ["centre", "centre:", "centre:0", "centre:-3", "centre:2.5", "center:200", "pad"])
def test_other_words_are_refused(fit):
    with pytest.raises(ConfigError):
        Frame(8, fit=fit)
    with pytest.raises(ConfigError, match=r"data\.fit"):
        config_from({"data": {"source": "folder", "path": "scans", "fit": fit}})


def test_it_is_a_setting():
    config = config_from({"data": {"source": "pbc", "path": "pbc.zip", "fit": "centre:200"}})
    assert config.data.fit == "centre:200"
