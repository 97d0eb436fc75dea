"""Segmentation: losses and metrics by hand and against MONAI."""

from __future__ import annotations

import json
import math
import pickle

import pytest
import torch
from torch.nn import functional as F

from crossward.errors import ConfigError
from crossward.losses import dice_loss
from crossward.tasks import task
from crossward.tasks.segmentation import Segmentation

torch.set_num_threads(1)
POLYP = Segmentation()
ORGANS = Segmentation(("background", "liver", "spleen"))


def square(top: int, left: int, side: int, size: int = 16, value: int = 1) -> torch.Tensor:
    image = torch.zeros(1, size, size, dtype=torch.uint8)
    image[0, top : top + side, left : left + side] = value
    return image


def test_dice_loss_by_hand():
    # p(foreground) = 3/4 everywhere on 2 x 2 pixels, one of which is foreground: 1 - 2 * 3/4 / (3 + 1)
    logits = torch.zeros(1, 2, 2, 2)
    logits[:, 1] = math.log(3.0)
    y = torch.tensor([[[1, 0], [0, 0]]])
    assert dice_loss(logits, y).item() == pytest.approx(1 - 1.5 / 4, abs=1e-5)


@pytest.mark.parametrize("k", [2, 4])
def test_dice_loss_equal_to_monai(k: int):
    from monai.losses.dice import DiceLoss

    g = torch.Generator().manual_seed(k)
    logits = 3 * torch.randn(3, k, 9, 7, generator=g)
    y = torch.randint(0, k, (3, 9, 7), generator=g)
    y[0] = 0  # an image without foreground
    ours, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    loss = dice_loss(ours, y)
    expected = DiceLoss(to_onehot_y=True, softmax=True, include_background=False)(theirs, y[:, None])
    assert loss.item() == pytest.approx(expected.item(), abs=1e-6)
    loss.backward()
    expected.backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_objectives():
    g = torch.Generator().manual_seed(0)
    logits, y = torch.randn(2, 3, 8, 8, generator=g), torch.randint(0, 3, (2, 8, 8), generator=g)
    assert torch.equal(ORGANS.loss(logits, y), dice_loss(logits, y))
    both = Segmentation(ORGANS.classes, "dice+ce").loss(logits, y)
    torch.testing.assert_close(both, dice_loss(logits, y) + F.cross_entropy(logits, y))


def test_dice_loss_in_half_precision_does_not_overflow():
    logits = torch.zeros(1, 2, 400, 400, dtype=torch.float16)  # 80 000 foreground pixels exceed float16
    assert dice_loss(logits, torch.ones(1, 400, 400, dtype=torch.int64)).item() == pytest.approx(1 - 1 / 1.5, abs=1e-4)


def test_vectors_flatten_pixels():
    z = torch.arange(2 * 3 * 2 * 2).view(2, 3, 2, 2).float()
    y = torch.tensor([[[0, 1], [0, 0]], [[1, 1], [0, 1]]])
    rows, labels = POLYP.vectors(z, y)
    assert rows.shape == (8, 3)
    assert labels.tolist() == [0, 1, 0, 0, 1, 1, 0, 1]
    assert rows[1].tolist() == z[0, :, 0, 1].tolist()
    assert rows[6].tolist() == z[1, :, 1, 0].tolist()


@pytest.mark.parametrize(("coarse", "fine"), [((2, 2), (4, 4)), ((3, 2), (7, 5)), ((4, 4), (4, 8))])
def test_vectors_take_the_nearest_label(coarse: tuple[int, int], fine: tuple[int, int]):
    y = torch.randint(0, 3, (2, *fine), generator=torch.Generator().manual_seed(1))
    rows, labels = ORGANS.vectors(torch.zeros(2, 5, *coarse), y)
    assert rows.shape == (2 * coarse[0] * coarse[1], 5)
    nearest = F.interpolate(y[:, None].float(), size=coarse, mode="nearest").long()
    assert torch.equal(labels, nearest.flatten())


def test_counts_and_prediction():
    assert ORGANS.counts(square(0, 0, 3, value=2)).tolist() == [16 * 16 - 9, 0, 9]
    logits = torch.zeros(1, 3, 2, 2)
    logits[0, 2, 0, 1] = 1.0
    prediction = ORGANS.prediction(logits)
    assert prediction.dtype == torch.uint8
    assert prediction.tolist() == [[[0, 2], [0, 0]]]


def test_overlap_by_hand():
    # 4 x 4 squares shifted by 2: 8 common pixels of 16 and 16; the second image is empty in both
    prediction = torch.cat([square(0, 0, 4), torch.zeros(1, 16, 16, dtype=torch.uint8)])
    y = torch.cat([square(0, 2, 4), torch.zeros(1, 16, 16, dtype=torch.uint8)])
    m = POLYP.metrics(prediction, y.long(), full=False)
    assert m["dice"] == pytest.approx((0.5 + 1) / 2)
    assert m["iou"] == pytest.approx((8 / 24 + 1) / 2)
    assert m["dice_per_class"] == [None, pytest.approx(0.75)]
    assert m["iou_per_class"] == [None, pytest.approx((1 / 3 + 1) / 2)]
    assert m["n"] == 2
    assert "hd95" not in m


def test_several_classes_by_hand():
    # liver found exactly, spleen missed
    y = square(0, 0, 2) + square(8, 8, 2, value=2)
    m = ORGANS.metrics(square(0, 0, 2), y, full=False)
    assert m["dice_per_class"] == [None, 1.0, 0.0]
    assert m["dice"] == m["iou"] == 0.5


def test_dice_equal_to_monai():
    from monai.metrics.meandice import compute_dice

    g = torch.Generator().manual_seed(3)
    prediction, y = (torch.randint(0, 3, (4, 12, 10), generator=g) for _ in range(2))
    one_hot = [F.one_hot(t, 3).movedim(3, 1) for t in (prediction, y)]
    theirs = compute_dice(*one_hot, include_background=False)
    m = ORGANS.metrics(prediction.to(torch.uint8), y, full=False)
    assert m["dice_per_class"][1:] == pytest.approx(theirs.mean(0).tolist())


@pytest.mark.filterwarnings("error")
def test_hausdorff_by_hand_and_undefined_pairs():
    # single pixels (0, 0) and (3, 4) are 5 apart; one missed, one invented and one empty image are undefined
    empty = torch.zeros(1, 16, 16, dtype=torch.uint8)
    prediction = torch.cat([square(0, 0, 1), empty, square(2, 2, 2), empty])
    y = torch.cat([square(3, 4, 1), square(2, 2, 2), empty, empty])
    m = POLYP.metrics(prediction, y)
    assert m["hd95"] == pytest.approx(5.0)
    assert m["hd95_undefined"] == 3
    assert json.loads(json.dumps(m, allow_nan=False)) == m


@pytest.mark.filterwarnings("ignore")  # monai warns of the empty pair
def test_hausdorff_averages_pairs_of_all_classes_as_monai():
    from monai.metrics.hausdorff_distance import compute_hausdorff_distance

    y = torch.cat([square(1, 1, 5) + square(9, 9, 4, value=2), square(4, 4, 6)])
    prediction = torch.cat([square(2, 1, 5) + square(9, 11, 4, value=2), square(4, 7, 6)])
    one_hot = [F.one_hot(t.long(), 3).movedim(3, 1) for t in (prediction, y)]
    theirs = compute_hausdorff_distance(*one_hot, include_background=False, percentile=95)
    m = ORGANS.metrics(prediction, y)
    assert m["hd95"] == pytest.approx((theirs[0, 0] + theirs[0, 1] + theirs[1, 0]).item() / 3)
    assert m["hd95_undefined"] == 1  # the spleen is in neither map of the second image


def frames_with_and_without_a_polyp() -> torch.Tensor:
    """Two frames with a polyp of 4 x 4 pixels, two without any."""
    empty = torch.zeros(1, 16, 16, dtype=torch.uint8)
    return torch.cat([square(0, 0, 4), square(8, 8, 4), empty, empty])


def test_a_model_that_sees_nothing_is_seen_through():
    truth = frames_with_and_without_a_polyp()
    m = POLYP.metrics(torch.zeros_like(truth), truth.long())
    assert m["dice"] == 0.5  # empty frames count as right
    assert m["dice_positive"] == 0.0
    assert m["false_positive_rate"] == 0.0
    assert m["n_positive"] == 2
    assert m["n_negative"] == 2


def test_positive_and_negative_frames_are_scored_apart():
    truth = frames_with_and_without_a_polyp()
    prediction = torch.cat([square(0, 2, 4), square(8, 8, 4), square(3, 3, 1), truth[3:]])
    m = POLYP.metrics(prediction, truth.long(), full=False)
    assert m["dice_positive"] == pytest.approx((0.5 + 1.0) / 2)
    assert m["false_positive_rate"] == 0.5
    assert m["dice"] == pytest.approx((0.5 + 1.0 + 0.0 + 1.0) / 4)


def test_positives_are_counted_by_class():
    y = torch.cat([square(0, 0, 2) + square(8, 8, 2, value=2), square(4, 4, 2)])
    m = ORGANS.metrics(y, y.long(), full=False)
    assert m["n_positive"] == 3
    assert m["n_negative"] == 1  # the second image has no spleen


def test_a_missed_or_invented_polyp_costs_the_diagonal():
    truth = frames_with_and_without_a_polyp()
    prediction = torch.cat([square(0, 0, 4), torch.zeros_like(truth[:1]), square(3, 3, 1), truth[3:]])
    m = POLYP.metrics(prediction, truth.long())
    diagonal = (16**2 + 16**2) ** 0.5
    assert m["hd95"] == 0.0  # the one frame where both show something
    assert m["hd95_penalised"] == pytest.approx(2 * diagonal / 3)  # found, missed, invented; both empty is no pair
    assert m["hd95_penalties"] == 2


def test_hausdorff_is_symmetric():
    truth = square(2, 2, 6) + square(12, 12, 1)
    prediction = square(3, 5, 4)
    forth = POLYP.metrics(prediction, truth)["hd95"]
    back = POLYP.metrics(truth, prediction)["hd95"]
    assert forth == back
    assert forth > 2  # the far pixel counts, whichever side it is on


def test_one_far_pixel_in_twenty_does_not_count_in_hd95():
    """The border of the square has 36 pixels: the 95th percentile of 36 zeros and one distance is 0, and their maximum
    is not."""
    truth = square(2, 2, 10)
    assert POLYP.metrics(truth + square(14, 14, 1), truth)["hd95"] == 0.0
    many = truth + square(14, 0, 1) + square(14, 2, 1) + square(14, 4, 1)  # 3 of 39 are more than a twentieth
    assert POLYP.metrics(many, truth)["hd95"] > 0.0


def test_without_frames_of_a_sort_there_is_no_figure():
    positive = POLYP.metrics(square(0, 0, 4), square(0, 0, 4), full=False)
    assert positive["false_positive_rate"] is None
    negative = POLYP.metrics(torch.zeros(1, 8, 8, dtype=torch.uint8), torch.zeros(1, 8, 8, dtype=torch.int64))
    assert negative["dice_positive"] is None
    assert negative["hd95_penalised"] is None


def test_nothing_to_compare():
    m = POLYP.metrics(torch.zeros(0, 8, 8, dtype=torch.uint8), torch.zeros(0, 8, 8, dtype=torch.int64))
    assert m == {
        "dice": None, "iou": None, "dice_per_class": [None, None], "iou_per_class": [None, None],
        "dice_positive": None, "false_positive_rate": None, "n": 0, "n_positive": 0, "n_negative": 0,
        "hd95": None, "hd95_undefined": 0, "hd95_penalised": None, "hd95_penalties": 0,
    }  # fmt: skip


def test_built_by_name():
    built = task("segmentation", ("background", "polyp"), objective="dice+ce")
    assert built == Segmentation(("background", "polyp"), "dice+ce")
    assert pickle.loads(pickle.dumps(built)) == built
    assert built.name == "segmentation"
    assert built.main == "dice"
    with pytest.raises(ConfigError) as error:
        task("segmentation", ("background", "polyp"), objective="jaccard")
    assert "dice+ce" in str(error.value)
    with pytest.raises(ConfigError, match="at most 256"):
        task("segmentation", tuple(map(str, range(257))))
