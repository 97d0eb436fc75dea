"""Grids of images, pixel by pixel, and their files."""

from __future__ import annotations

import pytest
import torch
from PIL import Image, ImageFont

from crossward.errors import StorageError
from crossward.runs import pictures
from crossward.runs.pictures import GAP, MARGIN, WIDEST, grid, write

PAPER = (255, 255, 255)


def coloured(rows: int, columns: int, height: int, width: int, channels: int = 3) -> torch.Tensor:
    """Each image of one value: 10 times its row and its column."""
    values = torch.arange(rows)[:, None] * 10 + torch.arange(columns)
    return values[..., None, None, None].expand(rows, columns, height, width, channels).to(torch.uint8)


def left_of(*names: str) -> int:
    """Where images begin: after the widest name and a margin on either side of it."""
    font = ImageFont.load_default(pictures.TEXT)
    return 2 * MARGIN + max(round(font.getlength(name)) for name in names)


def has_ink(picture: Image.Image, box: tuple[int, int, int, int]) -> bool:
    return picture.crop(box).convert("L").getextrema()[0] < 100


@pytest.mark.parametrize(
    ("height", "width", "shown"),
    [
        (28, 28, (56, 56)),
        (27, 27, (81, 81)),
        (64, 64, (64, 64)),
        (56, 56, (56, 56)),
        (1, 1, (56, 56)),
        (20, 30, (60, 90)),
    ],
)
def test_sizes(height, width, shown):
    picture = grid(coloured(2, 3, height, width), ["a", "b"])
    tall, wide = shown
    assert picture.mode == "RGB"
    assert picture.width == left_of("a", "b") + 3 * wide + 2 * GAP + MARGIN
    assert picture.height == MARGIN + 2 * tall + GAP + MARGIN


def test_images_are_where_they_belong_with_white_between():
    picture, left = grid(coloured(2, 3, 28, 28), ["a", "b"]), left_of("a", "b")
    for row in range(2):
        for column in range(3):
            x, y, shade = left + column * (56 + GAP), MARGIN + row * (56 + GAP), (10 * row + column,) * 3
            assert picture.crop((x, y, x + 56, y + 56)).getcolors() == [(56 * 56, shade)]
    gap = picture.crop((left + 56, 0, left + 56 + GAP, picture.height))
    assert gap.getcolors() == [(GAP * picture.height, PAPER)]
    between = picture.crop((left, MARGIN + 56, picture.width, MARGIN + 56 + GAP))
    assert [colour for _, colour in between.getcolors()] == [PAPER]
    assert picture.getpixel((0, 0)) == picture.getpixel((picture.width - 1, picture.height - 1)) == PAPER


def test_a_pixel_becomes_a_square_of_its_colour():
    images = torch.zeros(1, 1, 28, 28, 3, dtype=torch.uint8)
    images[0, 0, 3, 5] = torch.tensor([200, 100, 50])  # row 3, column 5
    picture, left = grid(images, ["a"]), left_of("a")
    coloured_at = [
        (x - left, y - MARGIN)
        for x in range(left, left + 56)
        for y in range(MARGIN, MARGIN + 56)
        if picture.getpixel((x, y)) == (200, 100, 50)
    ]
    assert coloured_at == [(10, 6), (10, 7), (11, 6), (11, 7)]
    assert picture.getpixel((left, MARGIN)) == (0, 0, 0)


def test_grey_images():
    grey, colour = (grid(coloured(2, 2, 28, 28, channels), ["a", "b"]) for channels in (1, 3))
    assert grey.tobytes() == colour.tobytes()


def test_names_are_written_beside_their_rows():
    picture, left = grid(coloured(3, 1, 60, 60) + 150, ["platelet", "", "ig"]), left_of("platelet")
    rows = [(0, MARGIN + y, left, MARGIN + y + 60) for y in (0, 60 + GAP, 120 + 2 * GAP)]
    assert [has_ink(picture, row) for row in rows] == [True, False, True]
    assert not has_ink(picture, (left - MARGIN, 0, picture.width, picture.height))  # all of it is left of the images
    short = picture.crop(rows[2])
    assert not has_ink(short, (0, 0, left // 2, 60))  # and ends where images begin


def test_long_names_are_broken_between_words():
    names = ["actinic keratoses and intraepithelial carcinoma", "Benign_keratosis_like_lesions_and_others", "W" * 40]
    font = ImageFont.load_default(pictures.TEXT)
    words, marks, none = (pictures._lines(name, font) for name in names)
    assert len(words) == len(marks) == 2
    assert " ".join(words) == names[0]
    assert "".join(marks) == names[1]
    assert marks[0].endswith("_")
    assert "".join(none) == names[2]
    assert all(font.getlength(line) <= WIDEST for lines in (words, marks, none) for line in lines)
    picture = grid(coloured(3, 1, 28, 28), names)
    assert picture.width <= 2 * MARGIN + WIDEST + 56 + MARGIN


def test_rows_grow_with_a_name_of_many_lines():
    name = " ".join(["metamyelocytes"] * 8)
    lines = pictures._lines(name, ImageFont.load_default(pictures.TEXT))
    picture = grid(coloured(2, 1, 28, 28) + 7, [name, "b"])
    tall = pictures.LINE * len(lines)
    assert tall > 56
    assert picture.height == 2 * MARGIN + 2 * tall + GAP
    x = picture.width - MARGIN - 1
    top = MARGIN + tall // 2 - 28  # images stay in the middle of their row
    assert [picture.getpixel((x, y)) for y in (top - 1, top, top + 55, top + 56)] == [PAPER, (7,) * 3, (7,) * 3, PAPER]


@pytest.mark.parametrize(
    ("images", "labels"),
    [
        (coloured(2, 2, 4, 4)[0], ["a", "b"]),
        (coloured(2, 2, 4, 4, 2), ["a", "b"]),
        (coloured(2, 2, 4, 4, 4), ["a", "b"]),
        (coloured(2, 2, 4, 4).permute(0, 1, 4, 2, 3), ["a", "b"]),
        (coloured(2, 2, 4, 4).float(), ["a", "b"]),
        (coloured(2, 0, 4, 4), ["a", "b"]),
        (coloured(0, 2, 4, 4), []),
        (coloured(2, 2, 4, 4), ["a"]),
        (coloured(2, 2, 4, 4), ["a", "b", "c"]),
    ],
)
def test_what_is_no_grid_is_refused(images, labels):
    with pytest.raises(ValueError, match="a grid"):
        grid(images, labels)


def test_a_picture_is_written_whole(tmp_path):
    picture = grid(coloured(2, 2, 28, 28), ["a", "b"])
    write(tmp_path / "pictures" / "round-1.png", picture)
    assert [file.name for file in (tmp_path / "pictures").iterdir()] == ["round-1.png"]
    with Image.open(tmp_path / "pictures" / "round-1.png") as back:
        assert (back.format, back.size, back.tobytes()) == ("PNG", picture.size, picture.tobytes())


def test_a_picture_that_cannot_be_written_leaves_nothing(tmp_path):
    (tmp_path / "taken.png").mkdir()
    (tmp_path / "file").touch()
    for place in (tmp_path / "taken.png", tmp_path / "file" / "a.png"):
        with pytest.raises(StorageError, match="cannot write"):
            write(place, grid(coloured(1, 1, 4, 4), ["a"]))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["file", "taken.png"]


def test_columns_have_names_above_them():
    images = coloured(1, 2, 56, 56)
    bare = grid(images, ["a"])
    named = grid(images, ["a"], ["north", "a hospital with a long name"])
    added = named.height - bare.height
    assert added >= 3 * pictures.LINE  # the longer name takes several lines
    assert named.width == bare.width
    below = [picture.crop((0, picture.height - 56 - MARGIN, *picture.size)).tobytes() for picture in (bare, named)]
    assert below[0] == below[1]
    left = left_of("a")
    for column in range(2):
        start = left + column * (56 + GAP)
        assert has_ink(named, (start, MARGIN, start + 56, added + MARGIN))


def test_names_must_be_those_of_the_columns():
    with pytest.raises(ValueError, match="2 columns with 1 names"):
        grid(coloured(1, 2, 56, 56), ["a"], ["north"])
