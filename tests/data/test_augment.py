"""Augmentation: masks follow their images, chance comes from the generator alone, and words are understood."""

from __future__ import annotations

import pickle

import pytest
import torch

from crossward.data import augment
from crossward.data.augment import Step, augmentation
from crossward.errors import ConfigError

torch.set_num_threads(1)
GEOMETRIC = ("hflip", "vflip", "rot90", "crop:2", "rotate:30", "crop:2:zero", "rotate:30:zero")
ALL = (*GEOMETRIC, "jitter:0.2", "blur:1.0", "blur5x9")


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def batch(n: int = 16, size: tuple[int, int] = (6, 6), channels: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(n, channels, *size, generator=seeded(9))
    return x, torch.randint(0, 3, (n, *size), generator=seeded(8))


def augmented(name: str, x: torch.Tensor, y: torch.Tensor, rng: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    return augmentation([name])(x, y, rng)


@pytest.mark.parametrize(("flip", "axis"), [("hflip", -1), ("vflip", -2)])
def test_flips_turn_some_images_over_and_leave_the_others(flip, axis):
    x, y = batch(40)
    moved, masks = augmented(flip, x, y, seeded())
    turned = (torch.rand(40, generator=seeded()) < 0.5).tolist()
    assert 5 < sum(turned) < 35
    for i, flipped in enumerate(turned):
        assert torch.equal(moved[i], x[i].flip(axis) if flipped else x[i])
        assert torch.equal(masks[i], y[i].flip(axis) if flipped else y[i])


def test_quarter_turns_are_all_drawn_and_half_turns_only_off_the_square():
    x, y = batch(40)
    moved, masks = augmented("rot90", x, y, seeded())
    turns = [[k for k in range(4) if torch.equal(moved[i], x[i].rot90(k, (-2, -1)))] for i in range(40)]
    assert {k for (k,) in turns} == {0, 1, 2, 3}
    assert all(torch.equal(masks[i], y[i].rot90(k, (-2, -1))) for i, (k,) in enumerate(turns))
    x, y = batch(20, (4, 6))
    moved, _ = augmented("rot90", x, y, seeded())
    assert all(any(torch.equal(moved[i], x[i].rot90(k, (-2, -1))) for k in (0, 2)) for i in range(20))


def test_a_crop_is_a_window_of_the_reflected_image():
    x, y = batch(8)
    moved, masks = augmented("crop:2", x, y, seeded())
    shift = torch.randint(-2, 3, (2, 8, 1), generator=seeded()) + 2
    wide = torch.nn.functional.pad(x, (2, 2, 2, 2), mode="reflect")
    mask = torch.nn.functional.pad(y[:, None].float(), (2, 2, 2, 2), mode="reflect")[:, 0].long()
    for i, (down, right) in enumerate(zip(shift[0, :, 0].tolist(), shift[1, :, 0].tolist())):
        assert torch.equal(moved[i], wide[i, :, down : down + 6, right : right + 6])
        assert torch.equal(masks[i], mask[i, down : down + 6, right : right + 6])


def test_a_zero_padded_crop_is_a_window_of_the_image_in_a_black_frame():
    """As torchvision pads before it normalises: a black pixel is -mean / std."""
    x, y = batch(8, channels=3)
    mean, std = (0.5, 0.2, 0.1), (0.25, 0.1, 0.5)
    moved, masks = augmentation(["crop:2:zero"], mean, std)(x, y + 1, seeded())
    shift = torch.randint(-2, 3, (2, 8, 1), generator=seeded()) + 2
    wide = torch.empty(8, 3, 10, 10)
    wide[:] = torch.tensor([-m / s for m, s in zip(mean, std)]).view(1, 3, 1, 1)
    wide[:, :, 2:8, 2:8] = x
    mask = torch.nn.functional.pad(y + 1, (2, 2, 2, 2))
    for i, (down, right) in enumerate(zip(shift[0, :, 0].tolist(), shift[1, :, 0].tolist())):
        assert torch.equal(moved[i], wide[i, :, down : down + 6, right : right + 6])
        assert torch.equal(masks[i], mask[i, down : down + 6, right : right + 6])
    assert (masks == 0).any()


def test_the_corners_of_a_rotation_can_be_black():
    x, y = torch.full((20, 1, 9, 9), 3.0), torch.ones(20, 9, 9, dtype=torch.int64)
    moved, masks = augmentation(["rotate:45:zero"], (0.5,), (0.25,))(x, y, seeded())
    assert torch.isclose(moved, torch.where(moved < 0, -2.0, 3.0)).all()
    assert torch.equal(masks == 0, moved[:, 0] == -2.0)
    assert (moved[:, :, 4, 4] > 0).all()  # the centre stays
    corners = moved[:, 0, [0, 0, 8, 8], [0, 8, 0, 8]]
    assert (corners == -2.0).float().mean() > 0.5
    reflected, _ = augmentation(["rotate:45"], (0.5,), (0.25,))(x, y, seeded())
    assert (reflected > 2.9).all()


def test_a_crop_wider_than_the_image_is_refused():
    with pytest.raises(ConfigError, match="crop:6"):
        augmented("crop:6", *batch(), seeded())


@pytest.mark.parametrize("size", [(9, 9), (7, 11)])
def test_rotation_keeps_the_centre_and_small_angles_change_little(size):
    x, y = batch(6, size)
    moved, masks = augmented("rotate:40.0", x, y, seeded())
    middle = (size[0] // 2, size[1] // 2)
    assert torch.allclose(moved[:, :, middle[0], middle[1]], x[:, :, middle[0], middle[1]], atol=1e-5)
    assert torch.equal(masks[:, middle[0], middle[1]], y[:, middle[0], middle[1]])
    assert not torch.allclose(moved, x, atol=0.1)
    still, same = augmented("rotate:1e-4", x, y, seeded())
    assert torch.allclose(still, x, atol=1e-3)
    assert torch.equal(same, y)


def test_rotation_is_rigid_in_pixels_also_off_the_square():
    x = torch.zeros(32, 1, 31, 41)
    x[:, :, 14:17, 28:31] = 1.0  # a spot 9 pixels right of the centre
    moved, _ = augmented("rotate:90.0", x, torch.zeros(32, dtype=torch.int64), seeded())
    down, right = torch.meshgrid(torch.arange(31.0) - 15, torch.arange(41.0) - 20, indexing="ij")
    mass = moved[:, 0].sum((1, 2))
    distance = torch.hypot((moved[:, 0] * down).sum((1, 2)) / mass, (moved[:, 0] * right).sum((1, 2)) / mass)
    assert torch.allclose(distance, torch.full((32,), 9.0), atol=0.1)


def test_masks_move_with_their_images():
    y = torch.randint(0, 2, (24, 16, 16), generator=seeded(3))
    y = torch.nn.functional.interpolate(y[:, None, ::4, ::4].float(), scale_factor=4)[:, 0].long()  # blocks of 4 x 4
    x = y[:, None].float()
    for name in GEOMETRIC:
        moved, masks = augmentation([name])(x, y, seeded(5))
        assert masks.dtype == y.dtype
        assert not torch.equal(masks, y)
        assert ((moved[:, 0] > 0.5).long() == masks).float().mean() > 0.97


def test_jitter_by_hand_and_on_images_only():
    x, y = batch(5)
    moved, masks = augmented("jitter:0.3", x, y, seeded())
    rng = seeded()
    contrast = 0.7 + 0.6 * torch.rand(5, generator=rng)
    brightness = -0.3 + 0.6 * torch.rand(5, generator=rng)
    for i in range(5):
        assert torch.allclose(moved[i], (x[i] - x[i].mean()) * contrast[i] + x[i].mean() + brightness[i], atol=1e-6)
    assert masks is y


def test_blur_spreads_a_spot_by_a_normal_density_and_keeps_flat_images():
    x = torch.zeros(1, 1, 15, 15)
    x[0, 0, 7, 7] = 1.0
    moved, _ = augmented("blur:2.0", x, torch.zeros(1, dtype=torch.int64), seeded())
    sigma = 2.0 * torch.rand(1, generator=seeded())
    density = torch.exp(-(torch.arange(-6.0, 7.0) ** 2) / (2 * sigma**2))
    density /= density.sum()
    assert torch.allclose(moved[0, 0, 1:14, 1:14], density[:, None] * density, atol=1e-6)
    flat, _ = augmented("blur:4.0", torch.full((3, 2, 1, 5), 0.5), torch.zeros(3, dtype=torch.int64), seeded())
    assert torch.allclose(flat, torch.full((3, 2, 1, 5), 0.5), atol=1e-6)


def convolved(image: torch.Tensor, sigma: float) -> torch.Tensor:
    """(C, H, W) with a kernel of 9 rows and 5 columns over reflected edges, pixel by pixel."""
    down = torch.arange(-4.0, 5.0)[:, None]
    right = torch.arange(-2.0, 3.0)
    kernel = torch.exp(-(down**2 + right**2) / (2 * sigma**2))
    kernel /= kernel.sum()
    wide = torch.nn.functional.pad(image[None], (2, 2, 4, 4), mode="reflect")[0]
    _, height, width = image.shape
    parts = [[(wide[:, i : i + 9, j : j + 5] * kernel).sum((1, 2)) for j in range(width)] for i in range(height)]
    return torch.stack([torch.stack(row, 1) for row in parts], 1)


@pytest.mark.parametrize("most", [5.0, 2.0])
def test_blur5x9_is_a_convolution_of_five_by_nine(most):
    x, y = batch(4, (11, 7))
    moved, same = augmented(f"blur5x9:{most}", x, y, seeded())
    sigmas = 0.1 + (most - 0.1) * torch.rand(4, generator=seeded())
    for image, blurred, sigma in zip(x, moved, sigmas.tolist()):
        assert torch.allclose(blurred, convolved(image, sigma), atol=1e-5)
    assert same is y


def test_blur5x9_reaches_two_pixels_across_and_four_down():
    x = torch.zeros(1, 1, 15, 15)
    x[0, 0, 7, 7] = 1.0
    moved, _ = augmented("blur5x9", x, torch.zeros(1), seeded())
    rows, columns = torch.nonzero(moved[0, 0]).T
    assert rows.min() == 3
    assert rows.max() == 11
    assert columns.min() == 5
    assert columns.max() == 9


@pytest.mark.parametrize("size", [(1, 1), (4, 4), (3, 9), (20, 20)])
def test_blur5x9_keeps_flat_images_however_small(size):
    flat = torch.full((3, 2, *size), 0.5)
    moved, _ = augmented("blur5x9", flat, torch.zeros(3), seeded())
    assert torch.allclose(moved, flat, atol=1e-6)
    narrow, _ = augmented("blur5x9:1e-6", batch(3, size)[0], torch.zeros(3), seeded())
    assert torch.allclose(narrow, batch(3, size)[0])


@pytest.mark.parametrize("name", ALL)
def test_each_operation_keeps_shapes_formats_labels_and_its_input(name):
    operation = augmentation([name])
    labels = torch.arange(16)
    for channels in (1, 3):
        plain, _ = batch(16, (8, 6), channels)
        for x in (plain, plain.contiguous(memory_format=torch.channels_last)):
            before = x.clone()
            moved, y = operation(x, labels, seeded())
            again, _ = operation(x, labels, seeded())
            other, _ = operation(x, labels, seeded(1))
            assert moved.shape == x.shape
            assert moved.dtype == x.dtype
            assert moved.is_contiguous(memory_format=torch.channels_last) == x.is_contiguous(
                memory_format=torch.channels_last
            )
            assert torch.equal(y, labels)
            assert torch.equal(x, before)
            assert torch.equal(moved, again)
            assert not torch.equal(moved, other)


def test_operations_do_not_touch_the_global_generator():
    before = torch.get_rng_state()
    augmentation(ALL)(*batch(), seeded())
    assert torch.equal(torch.get_rng_state(), before)


def test_an_augmentation_can_go_to_another_process_and_be_compared():
    augment = augmentation(["hflip", "crop", "rotate:15"])
    assert augment.steps == (Step("hflip"), Step("crop", 4), Step("rotate", 15.0))
    assert pickle.loads(pickle.dumps(augment)) == augment
    first = augment(*batch(), seeded())
    second = pickle.loads(pickle.dumps(augment))(*batch(), seeded())
    assert torch.equal(first[0], second[0])
    assert augmentation([]) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("hflop", 'did you mean "hflip"'),
        ("rotation:10", 'did you mean "rotate"'),
        ("crop:4.5", '"4.5" is not a whole number'),
        ("rotate:ten", '"ten" is not a number'),
        ("rotate:", '"" is not a number'),
        ("jitter:nan", "above 0 and at most 1"),
        ("blur:-1", "above 0 and at most 16"),
        ("blur5x9:17", "above 0 and at most 16"),
        ("crop:0", "above 0"),
        ("hflip:3", "takes no number"),
        ("crop:4:zeros", 'crop takes one number and ":zero", not ":zeros" after it'),
        ("crop:zero:4", '"zero" is not a whole number'),
        ("crop:4:5:zero", 'crop takes one number and ":zero", not ":5" after it'),
        ("jitter:0.2:zero", 'jitter moves no pixels in from outside; ":zero" is for crop, rotate'),
        ("hflip:zero", "hflip moves no pixels in from outside"),
        ("blur:1:2", "blur takes one number"),
    ],
)
def test_words_that_cannot_be_understood_are_refused(text, words):
    with pytest.raises(ConfigError) as caught:
        augmentation(["vflip", text])
    assert words in str(caught.value)
    assert len(caught.value.details) == 1


@pytest.mark.parametrize(("height", "width"), [(28, 28), (33, 48), (64, 17)])
@pytest.mark.parametrize("count", [1, 3, 8])
def test_the_places_of_a_rotation_are_those_of_affine_grid_to_the_bit(count, height, width):
    for seed in range(5):
        rng = torch.Generator().manual_seed(seed)
        theta = augment.draw_rotations(augment.Images(count, height, width), 180.0, rng)
        expected = torch.nn.functional.affine_grid(theta, [count, 1, height, width], align_corners=False)
        assert torch.equal(augment.rotated_places(theta, height, width), expected)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", ["rotate:30", "rotate:30:zero"])
def test_a_rotation_is_the_same_where_matrices_are_multiplied_otherwise(name, channels, monkeypatch):
    rng = torch.Generator().manual_seed(0)
    x = torch.rand(11, 30, 26, channels, generator=rng).permute(0, 3, 1, 2)
    y = torch.randint(0, 3, (11, 30, 26), generator=rng)
    before = x.clone(), y.clone()
    rotate = augment.augmentation([name], (0.5,) * channels, (0.25,) * channels)
    summed = rotate(x, y, torch.Generator().manual_seed(1))
    assert torch.equal(x, before[0])  # what the caller has stays
    assert torch.equal(y, before[1])
    monkeypatch.setattr(augment, "_sums_are_exact", lambda *_: False)
    multiplied = rotate(x, y, torch.Generator().manual_seed(1))
    for one, other in zip(summed, multiplied, strict=True):
        assert torch.equal(one, other)
        assert one.stride() == other.stride()
    assert not torch.equal(summed[0], x)
