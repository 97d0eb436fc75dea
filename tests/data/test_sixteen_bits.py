"""Pixels of 16 bits: what a file of more than 8 holds reaches a batch, whatever kind of file it is."""

from __future__ import annotations

import io
import pickle
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from crossward.core.bit_depth import grey_levels, in_eight_bits, widened
from crossward.core.samples import Samples
from crossward.data.archives import open_files
from crossward.data.augment import augmentation
from crossward.data.cache import ImagePaths, decode_files
from crossward.data.collection import Collection
from crossward.data.decode import Decoded, Frame, decode_image, decode_parts
from crossward.data.near_duplicates import image_hashes
from crossward.data.prepare import preparation
from crossward.data.shown_pixels import shown_pixels
from crossward.data.sources import npz
from crossward.data.value_range import Window
from crossward.errors import ConfigError, DataError

RAMP = np.arange(64 * 64, dtype=np.uint16).reshape(64, 64)  # every value of 12 bits once
IN_16_BITS = np.rint(RAMP / 4095 * 65535).astype(np.uint16)
TWELVE = ("range:bits:12",)


def saved(values: np.ndarray, suffix: str) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(values).save(stream, {"png": "PNG", "tif": "TIFF", "jpg": "JPEG", "jp2": "JPEG2000"}[suffix])
    return stream.getvalue()


def colour_png(bits: int) -> bytes:
    """2 x 1 pixels in colour of 16 bits, which Pillow reads and cannot write."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    row = b"\0" + struct.pack(">6H", 1, 2, 3, 400, 500, 600) if bits == 16 else b"\0\1\2\3\4\5\6"
    head = struct.pack(">IIBBBBB", 2, 1, bits, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(row)) + chunk(b"IEND", b"")


def colour_tiff(bits: int) -> bytes:
    """2 x 1 pixels in colour, which Pillow reads and cannot write."""
    pixels = np.arange(6, dtype="<u2" if bits == 16 else "u1").tobytes()
    entries = [(256, 3, 1, 2), (257, 3, 1, 1), (258, 3, 3, 8), (259, 3, 1, 1), (262, 3, 1, 2)]
    entries += [(273, 4, 1, 14), (277, 3, 1, 3), (278, 3, 1, 1), (279, 4, 1, len(pixels))]
    head = b"II*\0" + struct.pack("<I", 14 + len(pixels)) + struct.pack("<3H", bits, bits, bits)
    directory = struct.pack("<H", len(entries)) + b"".join(struct.pack("<HHII", *entry) for entry in entries)
    return head + pixels + directory + struct.pack("<I", 0)


def colour_jp2(bits: int) -> bytes:
    data = bytearray(saved(np.zeros((1, 2, 3), dtype=np.uint8), "jp2"))
    data[data.find(b"\xff\x51") + 40] = bits - 1
    return bytes(data)


def ppm(white: int) -> bytes:
    pixels = np.array([[1, 2, 3], [4, 5, 6]], dtype=">u2" if white > 255 else "u1").tobytes()
    return f"P6\n# made by hand\n2 1\n{white}\n".encode() + pixels


# decoding -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_a_ramp_of_12_bits_stays_one_to_the_value(suffix):
    pixels, _ = decode_image(saved(RAMP, suffix), f"a.{suffix}", Frame(64, 1, prepare=TWELVE, depth=16))
    assert pixels.dtype == np.uint16
    assert np.array_equal(pixels[..., 0], IN_16_BITS)
    eight, _ = decode_image(saved(RAMP, suffix), f"a.{suffix}", Frame(64, 1, prepare=TWELVE))
    assert eight.dtype == np.uint8
    assert len(np.unique(eight)) == 256


def test_pages_and_grey_in_three_channels(tmp_path):
    layers = [Image.fromarray(RAMP), Image.fromarray(RAMP[::-1].copy())]
    layers[0].save(tmp_path / "a.tif", save_all=True, append_images=layers[1:])
    data = (tmp_path / "a.tif").read_bytes()
    pages, _ = decode_image(data, "a.tif", Frame(64, 2, prepare=TWELVE, depth=16))
    assert np.array_equal(pages, np.stack([IN_16_BITS, IN_16_BITS[::-1]], 2))
    three, _ = decode_image(saved(RAMP, "png"), "a.png", Frame(64, 3, prepare=TWELVE, depth=16))
    assert np.array_equal(three, np.stack([IN_16_BITS] * 3, 2))


def test_a_smaller_image_is_the_mean_of_its_pixels_to_half_a_step():
    pixels, size = decode_image(saved(RAMP, "png"), "a.png", Frame((32, 16), 1, depth=16))
    assert size == (64, 64)
    floats = Image.fromarray(RAMP.astype(np.float32)).resize((16, 32), Image.Resampling.BILINEAR)
    assert np.abs(pixels[..., 0] - np.asarray(floats)).max() <= 0.5
    assert len(np.unique(pixels)) > 256


def test_a_window_uses_the_whole_range():
    hounsfield = np.arange(-2000, 2096, dtype=np.int16).reshape(64, 64)
    pixels, _ = decode_image(saved(hounsfield, "tif"), "a.tif", Frame(64, 1, prepare=("window:0:4000",), depth=16))
    assert (pixels.min(), pixels.max()) == (0, 65535)
    assert len(np.unique(pixels)) == 4001  # black up to -2000, white from 2000 on
    assert Window(40, 80)(np.array([-1, 0, 20, 80, 99]), 16).tolist() == [0, 0, 16384, 65535, 65535]


def test_dicom_and_nifti(tmp_path):
    pytest.importorskip("pydicom")
    nibabel = pytest.importorskip("nibabel")
    import dicom_corpus

    dataset = dicom_corpus.with_pixels(dicom_corpus.image(), RAMP, bits=12, photometric="MONOCHROME1")
    [decoded] = decode_parts(dicom_corpus.stored(dataset), "a.dcm", Frame(64, 1, prepare=TWELVE, depth=16), [""])
    assert isinstance(decoded, Decoded), decoded
    assert np.array_equal(np.sort(decoded.pixels.ravel()), np.sort(65535 - IN_16_BITS.ravel()))
    voxels = np.arange(4096, dtype=np.int16).reshape(64, 64, 1)
    nibabel.Nifti1Image(voxels, np.eye(4)).to_filename(tmp_path / "a.nii")
    frame = Frame(64, 1, prepare=("range:0:4095",), depth=16)
    slice_, _ = decode_image((tmp_path / "a.nii").read_bytes(), "a.nii", frame, "axial:0")
    assert np.array_equal(np.sort(slice_.ravel()), IN_16_BITS.ravel())


def test_8_bits_are_as_bright_in_16_and_said_to_be_no_finer():
    colours = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    for channels in (1, 3):
        plain, _ = decode_image(saved(colours, "png"), "a.png", Frame(8, channels))
        [deep] = decode_parts(saved(colours, "png"), "a.png", Frame(8, channels, depth=16), [""])
        assert isinstance(deep, Decoded)
        assert np.array_equal(deep.pixels, plain.astype(np.uint16) * 257)
        assert deep.habit == "8 bits"


def test_operations_on_16_bits_agree_with_those_on_8():
    colours = np.random.default_rng(0).integers(0, 256, (2, 9, 7, 3), dtype=np.uint8)
    for names in (("brightness:0.4",), ("shades-of-grey:12", "brightness")):
        eight = preparation(names, 3)(colours).astype(float)
        deep = preparation(names, 3)(colours.astype(np.uint16) * np.uint16(257))
        assert deep.dtype == np.uint16
        assert np.abs(deep / 257 - eight).max() <= 0.5 + 1e-3


@pytest.mark.parametrize(
    ("name", "data"),
    [("a.png", colour_png(16)), ("a.ppm", ppm(65535)), ("a.tif", colour_tiff(16)), ("a.jp2", colour_jp2(16))],
)
def test_colours_of_16_bits_are_refused_with_a_way_forward(name, data):
    [reason] = decode_parts(data, name, Frame((1, 2), 3, depth=16), [""])
    assert isinstance(reason, DataError), reason
    assert "has 16 bits of each channel, and pictures of several channels are read with 8" in reason.what
    assert "set data.depth = 8" in reason.what


@pytest.mark.parametrize(
    ("name", "data"),
    [("a.png", colour_png(8)), ("a.ppm", ppm(255)), ("a.tif", colour_tiff(8)), ("a.jp2", colour_jp2(8))],
)
def test_colours_of_8_bits_are_read(name, data):
    [read] = decode_parts(data, name, Frame((1, 2), 3, depth=16), [""])
    assert isinstance(read, Decoded), read
    assert read.pixels.dtype == np.uint16


def test_frames_of_other_bits_are_refused():
    with pytest.raises(ConfigError, match="depth is 12") as error:
        Frame(8, depth=12)
    assert "8 or 16" in error.value.hint


# cache and batches ----------------------------------------------------------------------------------------------------
@pytest.fixture
def ramps(tmp_path) -> Path:
    for number in range(4):
        (tmp_path / "ramps").mkdir(exist_ok=True)
        (tmp_path / "ramps" / f"{number}.png").write_bytes(saved(np.roll(RAMP, number * 7), "png"))
        mask = Image.fromarray(np.uint8(255) * (1000 * number < RAMP).astype(np.uint8))
        mask.save(tmp_path / "ramps" / f"{number}_mask.png")
    return tmp_path / "ramps"


def read(folder: Path, cache: Path, depth: int, classes: int = 0):
    rows = [ImagePaths(f"{n}.png", f"{n}_mask.png" if classes else "") for n in range(4)]
    with open_files(folder) as files:
        return decode_files(files, rows, Frame(64, 1, "stretch", classes, TWELVE, depth=depth), cache)


def test_the_cache_holds_16_bits_and_is_found_again(ramps, tmp_path):
    first = read(ramps, tmp_path / "cache", 16, classes=2)
    assert first.images.dtype == torch.uint16
    assert first.masks is not None
    assert first.masks.dtype == torch.uint8
    assert first.file is not None
    assert first.file.stat().st_size == 2 * first.images.numel()
    for number in range(4):
        assert np.array_equal(first.images[number, ..., 0].numpy(), np.roll(IN_16_BITS, number * 7))
    written = first.file.stat().st_mtime_ns
    again = read(ramps, tmp_path / "cache", 16, classes=2)
    assert again.file == first.file
    assert first.file.stat().st_mtime_ns == written
    assert torch.equal(again.images, first.images)
    assert read(ramps, tmp_path / "cache", 8, classes=2).file != first.file


def collection_of(images: torch.Tensor, file: Path | None = None) -> Collection:
    names = tuple(map(str, range(len(images))))
    targets = torch.zeros(len(images), dtype=torch.int64)
    return Collection("ramps", "classification", ("a",), images, targets, names, names, file=file)


def test_a_collection_goes_to_another_process_with_its_bits(ramps, tmp_path):
    decoded = read(ramps, tmp_path / "cache", 16)
    for collection in (
        collection_of(decoded.images, decoded.file),
        collection_of(decoded.images).mapped(tmp_path / "images", tmp_path / "masks"),
    ):
        there = pickle.loads(pickle.dumps(collection))
        assert there.depth == 16
        assert torch.equal(there.images, decoded.images)


def samples_of(images: torch.Tensor, augment=None) -> Samples:
    channels = images.shape[3]
    return Samples(
        images,
        torch.zeros(len(images), dtype=torch.int64),
        torch.arange(len(images)),
        (0.5,) * channels,
        (0.25,) * channels,
        augment,
    )


def test_a_batch_has_every_value(ramps, tmp_path):
    images = read(ramps, tmp_path / "cache", 16).images
    x, _ = samples_of(images).take(torch.tensor([2, 0]))
    assert len(x.unique()) == 4096
    expected = (images[[2, 0]].double() / 65535 - 0.5) / 0.25
    assert (x.permute(0, 2, 3, 1).double() - expected).abs().max() < 1e-6


@pytest.mark.parametrize("channels", [1, 3])
def test_pixels_of_16_bits_are_augmented_as_those_of_8_are(channels):
    """The same images in 8 bits and, as bright, in 16 give the same batches, but for the last bit of the floats."""
    rng = torch.Generator().manual_seed(0)
    eight = torch.randint(0, 256, (12, 56, 56, channels), dtype=torch.uint8, generator=rng)
    names = ("hflip", "vflip", "rot90", "crop:4", "crop:4:zero", "rotate:10", "jitter", "blur:1")
    augment = augmentation(names, (0.5,) * channels, (0.25,) * channels)
    batches = [
        list(samples_of(images, augment).shuffled(5, torch.Generator().manual_seed(1)))
        for images in (eight, widened(eight, 16))
    ]
    for (x, _), (deep, _) in zip(*batches, strict=True):
        assert x.stride() == deep.stride()
        assert torch.allclose(x, deep, atol=1e-5)


def test_a_device_without_uint16_gets_the_same_floats():
    from crossward.core.bit_depth import as_bits, as_floats

    every = torch.arange(65536).to(torch.uint16).view(1, 256, 256, 1)
    assert torch.equal(as_floats(as_bits(every)).flatten(), torch.arange(65536.0))
    on_device = (as_bits(every).to(torch.int32) & 0xFFFF).to(torch.float32)  # what as_floats does there
    assert torch.equal(on_device, as_floats(as_bits(every)))


# what people and audits see -------------------------------------------------------------------------------------------
def test_hashes_and_thumbnails_are_those_of_8_bits():
    eight = torch.randint(0, 256, (5, 20, 24, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    deep = widened(eight, 16)
    assert torch.equal(in_eight_bits(deep), eight)
    assert torch.equal(grey_levels(deep), eight.float())
    assert np.array_equal(image_hashes(deep).hashes, image_hashes(eight).hashes)
    assert np.array_equal(image_hashes(deep).flat, image_hashes(eight).flat)
    assert torch.equal(shown_pixels(deep), shown_pixels(eight))


# arrays ---------------------------------------------------------------------------------------------------------------
def array_file(folder: Path, images: np.ndarray) -> Path:
    parts = ("train", "val", "test")
    content = {f"{part}_images": images for part in parts}
    np.savez(folder / "a.npz", **content, **{f"{part}_labels": np.arange(len(images)) % 2 for part in parts})
    return folder / "a.npz"


def test_arrays_of_16_bits(tmp_path, monkeypatch):
    ramps = np.stack([RAMP, RAMP[::-1]])
    file = array_file(tmp_path, ramps)
    images = npz.read(file, depth=16).images
    assert images.dtype == torch.uint16
    assert np.array_equal(images[:2, ..., 0].numpy(), ramps)
    ranged = npz.read(file, depth=16, prepare=TWELVE).images
    assert np.array_equal(ranged[0, ..., 0].numpy(), IN_16_BITS)
    monkeypatch.setattr(npz, "budget", lambda name: 0)  # mapped from the cache
    for _ in range(2):
        mapped = npz.read(file, depth=16, prepare=TWELVE)
        assert mapped.file is not None
        assert torch.equal(mapped.images, ranged)
    smaller = npz.read(file, depth=16, size=16, channels=3, prepare=TWELVE).images
    assert smaller.shape[1:] == (16, 16, 3)
    assert abs(float(smaller.float().mean()) - 32767.5) < 50


def test_arrays_of_8_bits_are_refused(tmp_path):
    file = array_file(tmp_path, np.zeros((2, 8, 8), dtype=np.uint8))
    with pytest.raises(DataError) as error:
        npz.read(file, depth=16)
    assert "train_images is uint8, which data.depth = 16 would make no finer" in error.value.details[0]
