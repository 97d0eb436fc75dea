"""A site's own images: where they are, and what the check reports."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from crossward.errors import ConfigError
from crossward.hospitals.kit import read_site
from crossward.hospitals.site_images import check_images, site_settings


@pytest.fixture
def kit(kit_folder):
    return read_site(kit_folder / "sites" / "south")


@pytest.fixture
def images(tmp_path):
    """Two images of cats, one of a dog, and a file that is no image."""
    rng = np.random.default_rng(0)
    for name in ("cat/1.png", "cat/2.png", "dog/1.png"):
        file = tmp_path / "images" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (9, 9, 3), dtype=np.uint8)).save(file)
    (tmp_path / "images" / "dog" / "2.png").write_text("no image")
    return tmp_path / "images"


def test_a_site_without_data_is_refused(kit):
    with pytest.raises(ConfigError, match="has no \\[data\\], and --data is not given"):
        site_settings(kit, None)


def test_a_path_that_is_not_there_is_refused(kit, tmp_path):
    with pytest.raises(ConfigError, match="there is no such file or folder"):
        site_settings(kit, tmp_path / "absent")


@pytest.mark.parametrize(("name", "source"), [("images.csv", "table"), ("images.npz", "npz"), ("images", "folder")])
def test_the_source_follows_from_the_path(kit, tmp_path, name, source):
    (tmp_path / name).touch()
    assert site_settings(kit, tmp_path / name) == {"data": {"source": source, "path": str(tmp_path / name)}}


def test_the_check_counts_images_and_leaves_bad_files_out(kit, images):
    check = check_images(site_settings(kit, images))
    assert check.classes == ("cat", "dog")
    assert check.counts == (2, 1)
    assert check.images == 3
    assert len(check.left_out) == 1
    assert "2.png" in check.left_out[0]


def test_the_check_says_which_images_are_almost_the_same(kit, images):
    rng = np.random.default_rng(1)
    large = Image.fromarray(rng.integers(0, 256, (6, 6, 3), dtype=np.uint8)).resize((60, 60), Image.Resampling.BICUBIC)
    large.save(images / "cat" / "3.png")
    large.resize((40, 40)).save(images / "dog" / "3.jpg", quality=60)
    (note,) = check_images(site_settings(kit, images)).notes
    assert note.startswith("1 pair(s) of images are almost the same, 1 of them with another label; first: cat/3.png")
