"""Bytes become uint8 arrays of one size; whatever is wrong with them is said in words."""

from __future__ import annotations

import struct
import zlib
from dataclasses import asdict

import numpy as np
import pytest
from PIL import Image

from crossward.data.decode import Frame, decode_image, decode_parts, habit_notes, is_image
from crossward.data.prepare import preparation
from crossward.errors import ConfigError, DataError
from crossward.testing.drawn_images import encoded, grey


def reason(data: bytes, path: str, frame: Frame = Frame(2)) -> str:
    with pytest.raises(DataError) as error:
        decode_image(data, path, frame)
    return error.value.what


def test_pixels_come_out_as_they_are():
    pixels, size = decode_image(encoded(grey([[0, 10], [20, 255]])), "a.png", Frame(2, 1))
    assert pixels[..., 0].tolist() == [[0, 10], [20, 255]]
    assert pixels.dtype == np.uint8
    assert size == (2, 2)
    assert decode_image(encoded(grey([[7, 7]])), "a.PNG", Frame(1, 3))[0].tolist() == [[[7, 7, 7]]]


def test_sixteen_bits_are_scaled_by_257():
    data = encoded(grey([[0, 257], [128 * 257 + 120, 65535]], np.uint16))
    assert decode_image(data, "a.png", Frame(2, 1))[0][..., 0].tolist() == [[0, 1], [128, 255]]
    tiff = encoded(grey([[0, 65535]], np.uint16), "TIFF")
    assert decode_image(tiff, "a.tif", Frame(2, 1))[0][0, :, 0].tolist() == [0, 255]


def with_significant_bits(png: bytes, bits: int) -> bytes:
    """A PNG with the chunk that says how many bits are in use."""
    body = b"sBIT" + bytes([bits])
    return png[:33] + struct.pack(">I", 1) + body + struct.pack(">I", zlib.crc32(body)) + png[33:]


def habit(data: bytes, frame: Frame) -> str:
    return decode_parts(data, "a.png", frame, [""])[0].habit


def test_twelve_bits_in_sixteen():
    twelve = encoded(grey([[0, 1365], [2730, 4095]], np.uint16))
    assert decode_image(twelve, "a.png", Frame(2, 1))[0].max() == 16  # almost black, and said to be
    assert habit(twelve, Frame(2, 1)) == "dark"
    (note,) = habit_notes([("a.png", "dark"), ("b.png", "dark")])
    assert note.startswith("2 image(s) use less than 1/8 of the range of their bits")
    assert "range:bits:12" in note
    ranges = [(twelve, (name,)) for name in ("range:bits:12", "range:0:4095", "range:percentiles:0:100")]
    for data, prepare in [*ranges, (with_significant_bits(twelve, 12), ())]:
        pixels, _ = decode_image(data, "a.png", Frame(2, 1, prepare=prepare))
        assert pixels[..., 0].tolist() == [[0, 85], [170, 255]]
        assert habit(data, Frame(2, 1, prepare=prepare)) == ""
    assert decode_image(twelve, "a.png", Frame(2, 3, prepare=("range:bits:12",)))[0][1, 0].tolist() == [170] * 3
    assert "do not fit into 11 bits" in reason(twelve, "a.png", Frame(2, 1, prepare=("range:bits:11",)))


def test_ranges_of_other_pictures():
    eight = encoded(grey([[10, 20], [30, 60]]))
    assert decode_image(eight, "a.png", Frame(2, 1, prepare=("range:10:60",)))[0][..., 0].tolist() == [
        [0, 51],
        [102, 255],
    ]
    floats = encoded(grey([[0.0, 0.5], [0.25, 1.0]], np.float32), "TIFF")
    frame = Frame(2, 1, prepare=("range:percentiles:0:100",))
    assert decode_image(floats, "a.tif", frame)[0][..., 0].tolist() == [[0, 128], [64, 255]]
    assert "no numbers" in reason(encoded(grey([[np.nan, 0.5]], np.float32), "TIFF"), "a.tif", frame)
    assert "is in colour" in reason(encoded(Image.new("RGB", (2, 2))), "a.png", Frame(2, 1, prepare=("range:0:9",)))
    assert "carry no window" in reason(eight, "a.png", Frame(2, 1, prepare=("window:tags",)))


def test_pixels_without_a_known_range_are_refused():
    assert "floating-point" in reason(encoded(grey([[0.5]], np.float32), "TIFF"), "a.tif")
    assert "from -3 to 70000" in reason(encoded(grey([[-3, 70000]], np.int32), "TIFF"), "a.tif")


@pytest.mark.parametrize(("mode", "kind"), [("P", "PNG"), ("P", "GIF"), ("RGBA", "PNG"), ("LA", "PNG"), ("1", "PNG"),
                                            ("CMYK", "TIFF"), ("CMYK", "JPEG"), ("RGB", "WEBP")])  # fmt: skip
@pytest.mark.parametrize("channels", [1, 3])
def test_every_mode_becomes_grey_or_colour(mode, kind, channels):
    white = Image.new("RGB", (4, 4), (255, 255, 255)).convert(mode)
    path = {"TIFF": "a.tif", "GIF": "a.gif", "PNG": "a.png", "JPEG": "a.jpg", "WEBP": "a.webp"}[kind]
    pixels, _ = decode_image(encoded(white, kind), path, Frame(2, channels))
    assert pixels.tolist() == np.full((2, 2, channels), 255).tolist()


def test_a_palette_with_transparency_keeps_its_colours():
    palette = Image.new("P", (2, 1), 1)
    palette.putpalette([0, 0, 0, 200, 100, 50])
    data = encoded(palette, transparency=b"\x00\x80")
    assert decode_image(data, "a.png", Frame(1))[0].tolist() == [[[200, 100, 50]]]


def test_exif_orientation_is_applied():
    exif = Image.Exif()
    exif[0x0112] = 6  # stored lying on its side: turn it by 90 degrees clockwise
    data = encoded(grey([[10, 20, 30], [40, 50, 60]]), exif=exif)
    pixels, size = decode_image(data, "a.png", Frame(3, 1, "stretch"))
    assert size == (2, 3)
    assert pixels[:, 0, 0].tolist() == [40, 50, 60]  # the lower row is now the left column


def test_stretch_takes_everything_and_crop_the_middle():
    wide = encoded(grey([[0, 0, 100, 100, 200, 200]] * 2))
    assert decode_image(wide, "a.png", Frame(2, 1, "crop"))[0][..., 0].tolist() == [[100, 100], [100, 100]]
    left, right = decode_image(wide, "a.png", Frame(2, 1))[0][0, :, 0]
    assert left < 60
    assert right > 140


def test_a_far_larger_jpeg_is_drafted_to_the_same_colours():
    big = Image.new("RGB", (512, 256), (200, 40, 90))
    pixels, size = decode_image(encoded(big, "JPEG", quality=95), "a.jpeg", Frame(8))
    assert size == (512, 256)
    assert np.abs(pixels.astype(int) - [200, 40, 90]).max() <= 3


def test_content_beats_the_extension():
    png = encoded(grey([[1]]))
    (decoded,) = decode_parts(png, "a.jpg", Frame(1, 1), [""])
    assert decoded.pixels.tolist() == [[[1]]]
    assert decoded.habit == "misnamed"
    assert decode_parts(png, "a.png", Frame(1, 1), [""])[0].habit == ""
    assert (
        reason(b"patient,label\n1,benign\n", "a.jpg")
        == "has the extension .jpg of JPEG, but its content is not an image"
    )
    assert 'extension ".dat"' in reason(png, "a.dat")
    assert is_image("x/A.JPG")
    assert not is_image("x/readme.md")


def test_empty_truncated_and_damaged_files_are_problems():
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8))
    for kind, path in (("BMP", "a.bmp"), ("JPEG", "a.jpg"), ("TIFF", "a.tif")):
        whole = encoded(noise, kind)
        for length in (len(whole) // 2, len(whole) - 1):
            assert "cannot be decoded" in reason(whole[:length], path)
    assert reason(b"", "a.png") == "is empty (0 bytes)"
    assert reason(encoded(noise)[:-1], "a.png") == "is cut short: its end is missing"
    damaged = bytearray(encoded(noise))
    damaged[len(damaged) // 2] ^= 255
    assert "cannot be decoded" in reason(bytes(damaged), "a.png")


def test_a_decompression_bomb_is_a_problem():
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", 60000, 60000, 8, 2, 0, 0, 0)
    bomb = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    words = "has more pixels than data.max_pixels = 100000000 allows; raise it if the memory allows"
    assert reason(bomb, "a.png") == words


def test_the_limit_of_pixels_can_be_lowered_and_raised():
    words = reason(encoded(Image.new("L", (30, 20))), "a.png", Frame(2, max_pixels=500))
    assert "has 30 x 20 pixels, more than data.max_pixels = 500 allows; raise it" in words
    large = encoded(Image.new("1", (20_000, 10_000)))  # 200 million, more than Pillow lets pass by itself
    assert "data.max_pixels = 100000000" in reason(large, "a.png")
    assert decode_image(large, "a.png", Frame(2, max_pixels=200_000_000))[1] == (20_000, 10_000)


def test_several_pages_are_refused():
    pages = encoded(grey([[1]]), "TIFF", save_all=True, append_images=[grey([[2]])])
    assert reason(pages, "a.tif") == "holds 2 pages: export one image per file"


def stored(rows: list[list[int]], dtype: type, signed: bool) -> bytes:
    """A TIFF whose numbers have a sign or none, which Pillow reads but writes only with 32 bits."""
    values = np.array(rows, dtype=dtype)
    high, wide = values.shape
    sizes = {256: wide, 257: high, 258: 8 * values.itemsize, 259: 1, 262: 1, 273: 8 + 2 + 12 * 10 + 4, 277: 1}
    tags = sizes | {278: high, 279: values.nbytes, 339: 2 if signed else 1}
    fields = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + fields + struct.pack("<I", 0) + values.tobytes()


CT = Frame(2, 1, prepare=("window:40:80",))
UNITS = [[-1000, 20], [40, 1000]]
SHADES = [[0, 64], [128, 255]]


def test_a_window_acts_on_the_sixteen_bits():
    offset = [[value + 1024 for value in row] for row in UNITS]
    for data, path in (
        (encoded(grey(offset, np.uint16)), "a.png"),
        (encoded(grey(offset, np.uint16), "TIFF"), "a.tif"),
        (stored(UNITS, np.int16, signed=True), "a.tif"),
        (encoded(grey(UNITS, np.int32), "TIFF"), "a.tif"),
    ):
        pixels, size = decode_image(data, path, CT)
        assert pixels[..., 0].tolist() == SHADES
        assert pixels.dtype == np.uint8
        assert size == (2, 2)


def test_a_window_comes_before_resizing_and_brightness_after():
    data = stored([[-1000, 1000], [-1000, 1000]], np.int16, signed=True)
    assert decode_image(data, "a.tif", Frame(1, 1, prepare=("window:40:80",)))[0].tolist() == [[[128]]]  # of 0 and 255
    assert decode_image(data, "a.tif", Frame(1, 1, prepare=("window:40:80", "brightness:0.2")))[0].tolist() == [[[51]]]


@pytest.mark.parametrize(
    ("data", "path", "words"),
    [
        (encoded(grey([[1, 2]])), "a.png", "is already 8 bits: the window cannot be applied"),
        (encoded(Image.new("RGB", (2, 2)), "JPEG"), "a.jpg", "is already 8 bits: the window cannot be applied"),
        (encoded(grey([[0.5]], np.float32), "TIFF"), "a.tif", "save Hounsfield units as signed 16 bits"),
        (encoded(grey([[0, 9]], np.uint16), "PPM"), "a.pgm", "is PPM: a window needs 16 bits as PNG or TIFF"),
        (stored([[0, 9]], np.uint32, signed=False), "a.tif", "has 32 bits without a sign"),
    ],
)
def test_images_without_hounsfield_units_have_no_window(data, path, words):
    assert words in reason(data, path, CT)


def test_hounsfield_units_without_a_window_are_told_of_it():
    words = reason(stored(UNITS, np.int16, signed=True), "a.tif")
    assert "from -1000 to 1000" in words
    assert 'prepare = ["window:40:80"] if these are Hounsfield units' in words


def test_colours_are_prepared_after_resizing():
    wide = np.zeros((2, 4, 3), dtype=np.uint8)
    wide[:, :2], wide[:, 2:] = (100, 200, 50), (50, 100, 25)
    frame = Frame(2, prepare=("shades-of-grey",))
    pixels, _ = decode_image(encoded(Image.fromarray(wide)), "a.png", frame)
    assert np.ptp(pixels.astype(int), axis=2).max() <= 2  # of 25, which is doubled and more
    plain, _ = decode_image(encoded(Image.fromarray(wide)), "a.png", Frame(2))
    assert np.array_equal(pixels, preparation(("shades-of-grey",))(plain[None])[0])
    assert pixels.flags.c_contiguous


@pytest.mark.parametrize(
    "wrong",
    [
        {"size": 0},
        {"size": 2, "channels": 17},
        {"size": (2, 0)},
        {"size": (2, 3), "fit": "centre:2"},
        {"size": 2, "fit": "pad"},
        {"size": 2, "prepare": ("sepia",)},
        {"size": 2, "prepare": ("window:40:80",)},
        {"size": 2, "channels": 1, "prepare": ("shades-of-grey",)},
    ],
)
def test_frames_that_cannot_be(wrong):
    with pytest.raises(ConfigError):
        Frame(**wrong)


def test_frames_are_compared_and_kept_by_what_is_written():
    frame = Frame(8, prepare=("brightness",))
    assert frame == Frame(8, prepare=("brightness",)) != Frame(8)
    kept = {"size": 8, "channels": 3, "fit": "stretch", "classes": 0, "prepare": ("brightness",)}
    assert asdict(frame) == kept | {"max_pixels": 100_000_000, "burned_in": False, "depth": 8}
