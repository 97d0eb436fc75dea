"""LC-Fed's parts in numbers: gates that know the site, where heads disagree, the second head, and where gates go."""

from __future__ import annotations

import math
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from crossward.core.net import Net, NetSpec
from crossward.core.weights import Weights
from crossward.methods.lc_fed.calibration import (
    ChannelSelection,
    HeadCalibration,
    disagreement,
    foreground,
    frozen_head,
    gaussian_blur,
    gaussian_spots,
    peaks,
    record_input,
    selection_of,
    with_calibration,
)
from crossward.nets import build


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def by_hand() -> ChannelSelection:
    """Two channels, three sites with the embeddings e = (1, 0), (0, 2), (0, 0). Of pooled maps v, the hidden numbers
    are v_0 + e_0, v_1 - e_1, 0 and 0, and the first two are the gates before the sigmoid."""
    selection = ChannelSelection(2, 3)
    with torch.no_grad():
        selection.embed[0].weight.copy_(torch.tensor([[1.0, -3.0, 0.0], [0.0, 2.0, -1.0]]))
        selection.embed[2].weight.copy_(torch.eye(2))
        selection.excite[0].weight.zero_()
        selection.excite[0].weight[0] = torch.tensor([1.0, 0.0, 1.0, 0.0])
        selection.excite[0].weight[1] = torch.tensor([0.0, 1.0, 0.0, -1.0])
        selection.excite[2].weight.zero_()
        selection.excite[2].weight[0, 0] = selection.excite[2].weight[1, 1] = 1.0
    return selection


X = torch.tensor([[[[1.0, 3.0]], [[0.0, 1.0]]]])  # (1, 2, 1, 2): means 2 and 0.5, maxima 3 and 1


def test_gates_by_hand():
    """Of average and maximum with the site's embedding: the sum of both, then a sigmoid."""
    selection = by_hand()
    result = selection.gates(X, torch.eye(3))[0]
    expected = [[sigmoid(3 + 4), sigmoid(0.5 + 1)], [sigmoid(2 + 3), 0.5], [sigmoid(2 + 3), sigmoid(0.5 + 1)]]
    torch.testing.assert_close(result, torch.tensor(expected))
    selection.set_site(1)
    scale = torch.tensor([1 + sigmoid(5), 1.5])[None, :, None, None]
    torch.testing.assert_close(selection(X), X * scale)


@pytest.mark.parametrize(("logit", "scale"), [(0.0, 1.5), (-1000.0, 1.0), (1000.0, 2.0)])
def test_gates_that_are_forced(logit: float, scale: float):
    """At a gate of 0 the maps pass as they are, at 1 they are doubled."""
    selection = by_hand()
    with torch.no_grad():
        selection.excite[2].weight.copy_(logit * torch.ones(2, 4))
    torch.testing.assert_close(selection(X), X * scale)


def test_whose_the_gates_are():
    selection = by_hand()
    assert selection.site_number is None
    for site_number in (2, 0):
        selection.set_site(site_number)
        assert selection.site_number == site_number
        assert selection.site.sum() == 1
    selection.set_site(-1)  # the server
    assert selection.site_number is None


def test_the_contrast_is_the_mean_square_to_the_other_sites():
    selection = by_hand()
    selection.set_site(1)
    own, others = (sigmoid(5), 0.5), [(sigmoid(7), sigmoid(1.5)), (sigmoid(5), sigmoid(1.5))]
    expected = sum((a - b) ** 2 for other in others for a, b in zip(own, other, strict=True)) / 4
    assert selection.contrast(X).item() == pytest.approx(expected, rel=1e-5)
    selection.set_site(0)
    selection.contrast(X).backward()
    moved = selection.embed[0].weight.grad.abs().sum(0)
    assert moved[0] > 0
    assert moved[1:].tolist() == [0, 0]  # the others' embeddings stay


def test_one_site_alone_has_nobody_to_differ_from():
    selection = ChannelSelection(2, 1)
    selection.set_site(0)
    assert selection.contrast(X).item() == 0


@pytest.mark.parametrize(("width", "hidden"), [(5, 4), (64, 4), (128, 8), (256, 16)])
def test_the_squeeze(width: int, hidden: int):
    assert ChannelSelection(width, 3).excite[0].out_features == hidden


def test_disagreement_by_hand():
    own = torch.full((1, 1, 1, 2), 0.5)
    others = [own + 0.3, own - 0.4]
    torch.testing.assert_close(disagreement(own, others), torch.full((1, 1, 1, 2), math.sqrt((0.09 + 0.16) / 2)))
    assert not disagreement(own, [own, own]).any()
    assert not disagreement(own, []).any()


def test_probabilities_of_all_but_the_background():
    logits = torch.tensor([0.0, math.log(2.0), math.log(5.0)]).view(1, 3, 1, 1)
    torch.testing.assert_close(foreground(logits).flatten(), torch.tensor([2 / 8, 5 / 8]))


def test_peaks_by_hand():
    """0.5 is the highest; 0.2 is the highest of its window, 0.09 is below a fifth of the highest."""
    row = torch.tensor([0.5, 0.4, 0.0, 0.2, 0.1, 0.0, 0.09, 0.0]).view(1, 1, 1, 8)
    assert peaks(row, 1, 0.2).flatten().tolist() == [1, 0, 0, 1, 0, 0, 0, 0]
    assert peaks(row, 1, 0.1).flatten().tolist() == [1, 0, 0, 1, 0, 0, 1, 0]
    assert peaks(row, 3, 0.2).flatten().tolist() == [1, 0, 0, 0, 0, 0, 0, 0]
    assert peaks(row, 15, 0.0).flatten().tolist() == [1, 0, 0, 0, 0, 0, 0, 0]  # a window wider than the image
    assert not peaks(torch.zeros(2, 2, 4, 4), 1, 0.0).any()


def test_every_image_and_class_has_its_own_peak():
    apart = (
        torch.rand(3, 2, 8, 8, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 1e-2])[:, None, None]
    )
    assert peaks(apart, 15, 0.2).sum((2, 3)).tolist() == [[1, 1]] * 3


def test_the_window_is_a_square():
    apart = torch.zeros(1, 1, 5, 5)
    apart[0, 0, 1, 1], apart[0, 0, 3, 3] = 1.0, 0.9
    assert peaks(apart, 1, 0.2).sum() == 2
    assert peaks(apart, 2, 0.2).sum() == 1  # two to the right and two below


def test_spots_are_bells_of_height_one():
    point = torch.zeros(1, 1, 7, 7)
    point[0, 0, 3, 2] = 1
    result = gaussian_spots(point, 5)[0, 0]  # standard deviation 2
    assert result[3, 2] == 1
    assert result[3, 4].item() == pytest.approx(math.exp(-4 / 8))
    assert result[5, 3].item() == pytest.approx(math.exp(-5 / 8))
    assert gaussian_spots(point, 1)[0, 0, 3, 4] == 0  # beyond the radius
    assert gaussian_spots(torch.ones(1, 1, 7, 7), 5).unique().tolist() == [1]


def test_blurred_maps_are_weighted_means():
    assert torch.allclose(gaussian_blur(torch.full((2, 1, 8, 8), 0.3), 15), torch.full((2, 1, 8, 8), 0.3))
    step = torch.tensor([0.0, 0.0, 1.0]).view(1, 1, 1, 3)
    near, far = math.exp(-1 / (2 * 0.16)), 0.0  # radius 1: standard deviation 0.4
    expected = [far, near / (1 + 2 * near), 1 / (1 + near)]
    torch.testing.assert_close(gaussian_blur(step, 1).flatten(), torch.tensor(expected))
    p = torch.randn(2, 4, 8, 8).softmax(1)
    torch.testing.assert_close(gaussian_blur(p, 15).sum(1), torch.ones(2, 8, 8))


def heads(classes: int = 3, width: int = 2) -> tuple[HeadCalibration, nn.Conv2d, Tensor]:
    torch.manual_seed(0)
    return HeadCalibration(width, classes, 15, 0.2), nn.Conv2d(width, classes, 1), torch.randn(2, width, 8, 8)


def test_where_all_heads_agree_half_of_what_the_second_head_sees_are_the_plain_features():
    calibration, head, z = heads()
    logits = head(z)
    p = gaussian_blur(logits.softmax(1)[:, 1:], 15)
    seen = torch.cat([z, z, z + z * p[:, :1], z + z * p[:, 1:]], 1)
    for others in ([], [logits, logits]):
        torch.testing.assert_close(calibration(z, logits, others), calibration.head(seen))


def test_with_the_weights_of_the_first_head_it_is_the_first_head_where_all_agree():
    calibration, head, z = heads()
    with torch.no_grad():
        calibration.head.weight.zero_()
        calibration.head.weight[:, :2, 1, 1] = head.weight[:, :, 0, 0]
        calibration.head.bias.copy_(head.bias)
    logits = head(z)
    torch.testing.assert_close(calibration(z, logits, [logits]), logits)
    assert not torch.allclose(calibration(z, logits, [logits * 0]), logits)


def test_the_second_head_by_hand_where_heads_disagree():
    """A single pixel of a single feature: both maps are known."""
    calibration = HeadCalibration(1, 2, 15, 0.2)
    with torch.no_grad():
        calibration.head.weight.zero_()
        calibration.head.weight[:, :, 1, 1] = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        calibration.head.bias.zero_()
    z, even = torch.full((1, 1, 1, 1), 3.0), torch.zeros(1, 2, 1, 1)
    sure = torch.tensor([0.0, 4.0]).view(1, 2, 1, 1)
    assert calibration(z, even, [sure]).flatten().tolist() == [3 * 2.0, 3 * 1.5]  # a peak of 1; p = 0.5
    assert calibration(z, even, [even]).flatten().tolist() == [3 * 1.0, 3 * 1.5]


def test_features_that_are_coarser_than_the_logits():
    calibration, head, z = heads()
    logits = nn.functional.interpolate(head(z), size=(16, 16))
    assert calibration(z, logits, [logits]).shape == (2, 3, 16, 16)


@pytest.mark.parametrize(("name", "width"), [("unet", 16), ("unetpp", 16), ("resunet", 16)])
@pytest.mark.parametrize("size", [16, 19])
def test_the_gates_are_at_the_end_of_the_encoder(name: str, width: int, size: int):
    spec = NetSpec(1, size, 3, sites=4)
    net = with_calibration(
        build(name, channels=1, classes=3, size=size, base=4, levels=3), spec, radius=15, threshold=0.2
    )
    assert isinstance(net.body.down[-1][1], ChannelSelection)
    assert selection_of(net).embed[0].weight.shape == (width, 4)
    x = torch.randn(2, 1, size, size)
    selection_of(net).set_site(0)
    net.eval()
    one = net.features(x)
    assert one.shape == (2, 4, size, size)
    selection_of(net).set_site(3)
    assert not torch.equal(net.features(x), one)
    z = net.features(x)
    assert net.calibration(z, net.head(z), [net.head(z)]).shape == (2, 3, size, size)


def plain() -> Net:
    return Net(nn.Conv2d(1, 5, 3, padding=1), nn.Conv2d(5, 3, 1), 5)


@pytest.mark.parametrize("name", ["fcn", "plain"])
def test_without_such_an_encoder_the_gates_are_on_the_features(name: str):
    net = plain() if name == "plain" else build("fcn", channels=1, classes=3, size=16, base=5)
    before = deepcopy(net.body).eval()
    net = with_calibration(net, NetSpec(1, 16, 3, sites=2), radius=15, threshold=0.2)
    selection = selection_of(net)
    assert selection.embed[0].weight.shape == (5, 2)
    with torch.no_grad():
        selection.excite[2].weight.zero_()
    x = torch.randn(2, 1, 16, 16)
    torch.testing.assert_close(net.eval().features(x), 1.5 * before(x))


def test_every_part_is_reached_by_the_losses():
    net = with_calibration(
        build("unet", channels=1, classes=2, size=16, base=4, levels=3),
        NetSpec(1, 16, 2, sites=2),
        radius=3,
        threshold=0.2,
    )
    selection_of(net).set_site(1)
    z = net.features(torch.randn(2, 1, 16, 16))
    logits = net.head(z)
    (logits.square().mean() + net.calibration(z.detach(), logits.detach(), []).square().mean()).backward()
    assert [n for n, p in net.named_parameters() if p.grad is None or not p.grad.any()] == []


def test_another_head_is_a_copy():
    head = nn.Conv2d(2, 3, 1)
    other = frozen_head(head, Weights({"weight": torch.zeros(3, 2, 1, 1), "bias": torch.ones(3)}))
    assert other(torch.randn(1, 2, 4, 4)).unique().tolist() == [1]
    assert head.weight.any()
    assert head.weight.requires_grad
    assert not other.weight.requires_grad


def test_a_module_is_overheard_for_a_while():
    module = nn.Identity()
    with record_input(module) as inputs:
        for value in (1.0, 2.0):
            module(torch.tensor(value))
    assert inputs == [torch.tensor(2.0)]
    module(torch.tensor(3.0))
    assert inputs == [torch.tensor(2.0)]
