"""Images that are not square, or have other channels than grey and colour: runs, their pictures, their predictions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import crossward
from crossward.data.decode import Frame, decode_image, decode_parts
from crossward.data.sources import npz
from crossward.errors import ConfigError, DataError

RNG = np.random.default_rng(0)
PARTITION = {"kind": "iid", "sites": 2, "local_split": [0.6, 0.2, 0.2]}


def noise(*shape: int) -> np.ndarray:
    return RNG.integers(0, 256, shape, dtype=np.uint8)


def pages(file: Path, layers: np.ndarray) -> None:
    """(C, H, W) as a TIFF of C pages."""
    first, *others = [Image.fromarray(layer) for layer in layers]
    first.save(file, save_all=True, append_images=others)


@pytest.fixture
def wide_folder(tmp_path) -> Path:
    for label in ("benign", "malignant"):
        folder = tmp_path / "wide" / label
        folder.mkdir(parents=True)
        for number in range(12):
            Image.fromarray(noise(40, 60, 3)).save(folder / f"{number}.png")
    return tmp_path / "wide"


@pytest.fixture
def contrasts(tmp_path) -> Path:
    """Volumes of four contrasts each, with masks, as the Medical Segmentation Decathlon has them."""
    pytest.importorskip("nibabel")
    import nibabel

    for number in range(12):
        for folder, voxels in (("images", noise(20, 28, 2, 4)), ("labels", noise(20, 28, 2) // 128)):
            (tmp_path / "brains" / folder).mkdir(parents=True, exist_ok=True)
            image = nibabel.Nifti1Image(voxels, np.diag([2.0, 2.0, 2.0, 1.0]))
            image.to_filename(tmp_path / "brains" / folder / f"case{number}.nii.gz")
    return tmp_path / "brains"


def test_classification_of_wide_images(config, wide_folder, cli, tmp_path):
    data = {"source": "folder", "path": str(wide_folder), "size": [20, 30], "augment": ["hflip", "rot90", "rotate:10"]}
    result = crossward.run(config(data=data, partition=PARTITION, run={"rounds": 1}))
    assert result.about["images"]["size"] == [20, 30]
    network = result.deployed()
    assert network.predict(noise(3, 20, 30, 3)).shape == (3, 2)
    with pytest.raises(ConfigError, match=r"images of \(30, 20, 3\) for a net of 20 x 30 px"):
        network.predict(noise(3, 30, 20, 3))
    assert cli("report", result.folder, "--output", tmp_path / "report.html").code == 0


def test_segmentation_of_four_contrasts(config, contrasts, cli, tmp_path):
    data = {"source": "nifti", "path": str(contrasts), "size": [24, 16], "channels": 4}
    net = {"name": "unet", "base": 4, "levels": 2}
    result = crossward.run(config(data=data, partition=PARTITION, run={"rounds": 1}, net=net))
    assert result.about["net"] | {"options": {}} == {
        "name": "unet", "channels": 4, "classes": 2, "size": [24, 16], "options": {}, "shrink": 1,
    }  # fmt: skip
    assert list((result.folder / "pictures").rglob("*.png"))
    assert result.deployed().predict(noise(2, 24, 16, 4)).shape == (2, 24, 16)
    assert cli("report", result.folder, "--output", tmp_path / "report.html").code == 0


def test_arrays_of_five_channels(config, tmp_path):
    content = {}
    for part in ("train", "val", "test"):
        content[f"{part}_images"] = noise(16, 18, 24, 5)
        content[f"{part}_labels"] = np.arange(16) % 2
    np.savez(tmp_path / "five.npz", **content)
    result = crossward.run(
        config(data={"source": "npz", "path": str(tmp_path / "five.npz")}, partition=PARTITION, run={"rounds": 1})
    )
    assert (result.about["net"]["channels"], result.about["net"]["size"]) == (5, [18, 24])
    with pytest.raises(ConfigError, match=r"channels = 3, but the images of .* have 5"):
        npz.read(tmp_path / "five.npz", channels=3)


def test_sixteen_bits_become_eight_by_a_range(tmp_path):
    values = RNG.integers(0, 4096, (8, 6, 6)).astype(np.uint16)
    content = {f"{part}_images": values for part in ("train", "val", "test")}
    np.savez(
        tmp_path / "deep.npz", **content, **{f"{part}_labels": np.arange(8) % 2 for part in ("train", "val", "test")}
    )
    with pytest.raises(DataError, match="is not in the layout") as error:
        npz.read(tmp_path / "deep.npz")
    assert "Networks see 8 bits" in error.value.hint
    images = npz.read(tmp_path / "deep.npz", prepare=("range:0:4095",)).images
    expected = np.rint(values / 4095 * 255)
    assert np.abs(images[:8, ..., 0].numpy() - expected).max() <= 1


def test_the_pages_of_a_tiff_are_channels(tmp_path):
    layers = noise(4, 8, 12)
    pages(tmp_path / "a.tif", layers)
    pixels, size = decode_image((tmp_path / "a.tif").read_bytes(), "a.tif", Frame((8, 12), 4))
    assert size == (12, 8)
    assert np.array_equal(pixels, layers.transpose(1, 2, 0))


def test_a_crop_has_the_proportions_of_the_frame(tmp_path):
    picture = np.zeros((40, 100), dtype=np.uint8)
    picture[:, 10:90] = 200  # twice as wide as high
    Image.fromarray(picture).save(tmp_path / "a.png")
    pixels, _ = decode_image((tmp_path / "a.png").read_bytes(), "a.png", Frame((20, 40), 1, "crop"))
    assert pixels.shape == (20, 40, 1)
    assert pixels[:, 1:-1].min() == 200  # the filter looks a little past the edges


@pytest.mark.parametrize(
    ("name", "channels", "words"),
    [
        ("a.tif", 5, "is TIFF of 4 page(s), where data.channels = 5"),
        ("a.tif", 3, "holds 4 pages: export one image per file"),
        ("b.png", 4, "is PNG of 1 page(s), where data.channels = 4 are the pages of a TIFF"),
    ],
)
def test_files_of_other_channels_are_refused_with_a_way_forward(tmp_path, name, channels, words):
    pages(tmp_path / "a.tif", noise(4, 8, 8))
    Image.fromarray(noise(8, 8, 4)).save(tmp_path / "b.png")
    [reason] = decode_parts((tmp_path / name).read_bytes(), name, Frame(8, channels), [""])
    assert isinstance(reason, DataError)
    assert words in reason.what


def test_volumes_of_several_contrasts_say_how_they_are_read(contrasts, config):
    data = {"source": "nifti", "path": str(contrasts), "size": 16}
    with pytest.raises(DataError) as error:
        crossward.run(config(data=data, partition=PARTITION))
    assert "holds 4 volumes: set data.channels = 4" in " ".join(error.value.details)


def test_sources_of_colour_pictures_refuse_other_channels(config, tmp_path):
    with pytest.raises(ConfigError) as error:
        crossward.run(config(data={"source": "ham10000", "path": str(tmp_path), "channels": 4}))
    assert "1 (grey) or 3 (colour)" in f"{error.value} {error.value.details}"


def test_thumbnails_of_many_channels_show_the_first():
    from crossward.report.page_pictures import thumbnail

    image = torch.from_numpy(noise(100, 120, 5))
    assert torch.equal(thumbnail(image), image[..., :1].expand(100, 120, 3))
