"""efficientnet-lite0: shapes, known counts, padding, and its ImageNet weights against a plain evaluation of them."""

from __future__ import annotations

import math
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from crossward.core.net import Net, NetSpec
from crossward.errors import ConfigError
from crossward.methods.fedbm.split_body import split_body
from crossward.nets import build
from crossward.nets import efficientnet as b0
from crossward.nets.cost import cost
from crossward.nets.efficientnet_lite import LITE0, InvertedResidual, SamePaddedConv2d, round_filters
from crossward.nets.pretrained import LITE0_FILE, LITE0_PACKAGE

torch.set_num_threads(1)


def lite(channels: int = 3, classes: int = 5, size: int = 32, **options: float | str) -> Net:
    return build("efficientnet-lite0", channels=channels, classes=classes, size=size, **options)


def map_sides(net: Net, x: Tensor) -> list[int]:
    """The sides of the maps behind stem, stages and top."""
    sides = []
    for part in net.body[:-2]:
        x = part(x)
        sides.append(x.shape[-1])
    return sides


def test_known_parameter_counts():
    net = lite(classes=1000, size=224)
    costs = cost(net, 3, 224)
    assert costs.parameters == 4_652_008
    assert 0.37e9 < costs.flops / 2 < 0.41e9  # 407 million multiply-adds are published, norms and pooling among them
    assert sum(p.numel() for p in lite(channels=1).parameters()) == 4_652_008 - 995 * 1281 - 32 * 2 * 9


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (28, [14, 14, 7, 4, 2, 2, 1, 1, 1]),
        (32, [16, 16, 8, 4, 2, 2, 1, 1, 1]),
        (72, [36, 36, 18, 9, 5, 5, 3, 3, 3]),
        (224, [112, 112, 56, 28, 14, 14, 7, 7, 7]),
    ],
)
def test_maps_are_halved_and_rounded_up(size: int, expected: list[int]):
    net = lite(size=size, width=0.1).eval()
    x = torch.randn(1, 3, size, size)
    assert map_sides(net, x) == expected
    assert net.features(x).shape == (1, 1280) == (1, net.width)


def test_pixels_are_padded_as_tensorflow_does():
    """A kernel of ones counts the pixels that it sees: even sizes are padded right and below, odd ones evenly."""
    for kernel, pixels, counts in [(3, 4, [3, 2]), (3, 5, [2, 3, 2]), (5, 6, [4, 5, 3]), (5, 7, [3, 5, 5, 3])]:
        layer = SamePaddedConv2d(1, 1, kernel, 2, bias=False)
        nn.init.ones_(layer.weight)
        counted = layer(torch.ones(1, 1, pixels, pixels))[0, 0]
        assert counted.tolist() == torch.outer(torch.tensor(counts), torch.tensor(counts)).tolist()


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(("kernel", "side"), [(3, (1, 1)), (3, (2, 2)), (5, (1, 2)), (5, (3, 3)), (5, (4, 7))])
def test_gradients_on_maps_smaller_than_the_kernel(kernel: int, side: tuple[int, int], stride: int):
    layer = SamePaddedConv2d(4, 4, kernel, stride, groups=4, bias=False)
    x = torch.randn(3, 4, *side).to(memory_format=torch.channels_last).requires_grad_()
    results = []
    for mode in (True, False):  # our own gradient, then PyTorch's
        out = layer.train(mode)(x)
        results.append((out, *torch.autograd.grad(out.square().sum(), (x, layer.weight))))
    assert "SmallDepthwise" in str(results[0][0].grad_fn)
    assert "SmallDepthwise" not in str(results[1][0].grad_fn)
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_frozen_kernels_and_images_have_no_gradient():
    layer = SamePaddedConv2d(4, 4, 5, groups=4, bias=False)
    layer(torch.randn(2, 4, 2, 2)).sum().backward()  # nothing below wants a gradient
    assert layer.weight.grad.shape == (4, 1, 5, 5)
    layer.requires_grad_(False)
    x = torch.randn(2, 4, 2, 2, requires_grad=True)
    layer(x).sum().backward()
    assert x.grad.shape == x.shape


def test_the_body_can_be_split():
    split = split_body(lite(size=64, width=0.25).body, NetSpec(3, 64, 5))
    assert split.shape == (16, 8, 8)  # behind the third stage: 40 channels, a quarter of them in steps of 8


def test_widths():
    assert [round_filters(stage.channels, 1.0) for stage in b0.STAGES] == [16, 24, 40, 80, 112, 192, 320]
    assert [round_filters(stage.channels, 0.5) for stage in b0.STAGES] == [8, 16, 24, 40, 56, 96, 160]
    assert round_filters(24, 0.1) == 8
    net = lite(width=0.5)
    assert net.body.stem[0].out_channels == 32
    assert net.body.top[0].in_channels == 160
    assert net.width == 1280


def test_the_head_is_a_dropout_and_a_linear_layer():
    net = lite(dropout=0.3)
    assert [name for name, _ in net.head.named_parameters()] == ["1.weight", "1.bias"]
    assert net.head[0].p == 0.3


def test_norms_are_as_published_or_faster():
    norms = [m for m in lite().modules() if isinstance(m, nn.BatchNorm2d)]
    assert {(m.eps, m.momentum) for m in norms} == {(1e-3, 0.01)}
    assert {m.momentum for m in lite(norm_momentum=0.1).modules() if isinstance(m, nn.BatchNorm2d)} == {0.1}


def test_whole_images_skip_a_block_as_torch_is_seeded():
    block = InvertedResidual(8, 8, 3, 1, 1, drop=0.5, momentum=0.01)
    x = torch.randn(64, 8, 2, 2)
    outs = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        outs.append(block(x).detach())
    assert torch.equal(outs[0], outs[1])
    assert not torch.equal(outs[0], outs[2])
    away = outs[0] - x
    skipped = away.flatten(1).abs().sum(1) == 0
    assert 10 < int(skipped.sum()) < 54
    full = block.residual(x).detach()
    torch.testing.assert_close(away[~skipped], 2 * full[~skipped], rtol=1e-4, atol=1e-5)  # 1 / (1 - drop) of it
    block.eval()
    assert torch.equal(block(x), block.residual(x) + x)


def test_later_blocks_are_skipped_more_often():
    drops = [m.drop for m in lite(drop_connect=0.32).modules() if isinstance(m, InvertedResidual)]
    assert drops[0] == 0
    assert all(math.isclose(b - a, 0.02) for a, b in pairwise(drops))
    assert math.isclose(drops[-1], 0.3)


@pytest.mark.parametrize(
    ("size", "options", "message"),
    [
        (15, {}, "at least 16 x 16"),
        (32, {"width": 0.0}, "width of at least"),
        (32, {"dropout": 1.0}, "dropout: 1.0"),
        (32, {"drop_connect": -0.1}, "drop_connect: -0.1"),
        (32, {"norm_momentum": float("nan")}, "norm_momentum: nan"),
        (32, {"start": "imagenet", "width": 0.5}, "at width 1, not 0.5"),
        (32, {"start": "nowhere.safetensors"}, "no such file"),
    ],
)
def test_wrong_values(size: int, options: dict[str, float | str], message: str):
    with pytest.raises(ConfigError) as error:
        lite(size=size, **options)
    assert message in str(error.value)


def test_a_file_of_our_own_of_any_width(tmp_path: Path):
    file = tmp_path / "a.safetensors"
    there = lite(width=0.25)
    save_file(there.state_dict(), file)
    here = lite(width=0.25, start=str(file))
    assert all(torch.equal(value, here.state_dict()[name]) for name, value in there.state_dict().items())
    with pytest.raises(ConfigError, match="are not those of the net 'efficientnet-lite0'"):
        lite(width=0.5, start=str(file))


def test_names_of_timm():
    names = b0.module_translation(LITE0, b0.TIMM)
    assert names["blocks.0.0.conv_pw"] == "body.stage1.0.residual.3"
    assert names["blocks.2.1.conv_dw"] == "body.stage3.1.residual.3"
    assert names["blocks.6.0.bn3"] == "body.stage7.0.residual.7"
    modules = dict(lite(width=0.1).named_modules())
    assert all(ours in modules for ours in names.values())
    assert not any("se." in theirs for theirs in names)


# the ImageNet weights -----------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def published() -> dict[str, Tensor]:
    package = find_spec(LITE0_PACKAGE)
    if package is None:
        pytest.skip("the published weights are not installed")
    return torch.load(Path(package.submodule_search_locations[0], LITE0_FILE), weights_only=True)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def trained(published: dict[str, Tensor], cache: Path, monkeypatch: pytest.MonkeyPatch) -> Net:
    monkeypatch.setenv("CROSSWARD_CACHE", str(cache))
    return lite(classes=1000, size=224, start="imagenet").eval()


def plain(state: dict[str, Tensor], x: Tensor) -> Tensor:
    """Logits by the published file alone: convolution, norm, ReLU6, in order, with TensorFlow's padding."""

    def convolved(x: Tensor, name: str, stride: int = 1, groups: int = 1) -> Tensor:
        kernel = state[f"{name}.weight"]
        pads: list[int] = []
        for pixels in (x.shape[3], x.shape[2]):
            total = max((math.ceil(pixels / stride) - 1) * stride + kernel.shape[-1] - pixels, 0)
            pads += [total // 2, total - total // 2]
        return F.conv2d(F.pad(x, pads), kernel, stride=stride, groups=groups)

    def normed(x: Tensor, name: str) -> Tensor:
        statistics = [state[f"{name}.{part}"] for part in ("running_mean", "running_var", "weight", "bias")]
        return F.batch_norm(x, *statistics, eps=1e-3)

    x = F.relu6(normed(convolved(x, "_conv_stem", 2), "_bn0"))
    halving = {1, 3, 5, 11}
    for k in range(16):
        at = f"_blocks.{k}."
        y = x
        if k:
            y = F.relu6(normed(convolved(y, f"{at}_expand_conv"), f"{at}_bn0"))
        y = convolved(y, f"{at}_depthwise_conv", 2 if k in halving else 1, y.shape[1])
        y = normed(convolved(F.relu6(normed(y, f"{at}_bn1")), f"{at}_project_conv"), f"{at}_bn2")
        x = x + y if x.shape == y.shape else y
    x = F.relu6(normed(convolved(x, "_conv_head"), "_bn1"))
    return F.linear(x.mean((2, 3)), state["_fc.weight"], state["_fc.bias"])


@pytest.mark.parametrize("size", [33, 50, 64, 224])
def test_imagenet_weights_give_what_a_plain_evaluation_gives(size: int, trained: Net, published: dict[str, Tensor]):
    x = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(size))
    with torch.no_grad():
        expected = plain(published, x)
        assert expected.abs().max() > 5
        torch.testing.assert_close(trained(x), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(("picture", "label"), [("china", 698), ("flower", 985)])
def test_imagenet_weights_know_a_palace_and_a_daisy(picture: str, label: int, trained: Net):
    sklearn = find_spec("sklearn")
    if sklearn is None:
        pytest.skip("the photographs come with scikit-learn")
    with Image.open(Path(sklearn.submodule_search_locations[0], f"datasets/images/{picture}.jpg")) as opened:
        w, h = opened.size
        edge = (w - h) // 2
        square = opened.crop((edge, 0, edge + h, h)).resize((224, 224), Image.Resampling.BICUBIC)
    pixels = torch.from_numpy(np.asarray(square).copy()).permute(2, 0, 1)[None]
    with torch.no_grad():
        assert int(trained((pixels.float() - 127) / 128).argmax()) == label


def test_grey_images_and_other_classes_start_from_the_rest(trained: Net):
    torch.manual_seed(3)
    random = lite(channels=1, classes=7)
    after = torch.get_rng_state()
    torch.manual_seed(3)
    net = lite(channels=1, classes=7, start="imagenet")
    assert torch.equal(torch.get_rng_state(), after)
    fresh = {"body.stem.0.weight", "head.1.weight", "head.1.bias"}
    here, known = net.state_dict(), trained.state_dict()
    assert all(torch.equal(here[name], random.state_dict()[name]) for name in fresh)
    rest = [name for name in here if name not in fresh and not name.endswith("num_batches_tracked")]
    assert all(torch.equal(here[name], known[name]) for name in rest)
    assert net(torch.randn(2, 1, 32, 32)).shape == (2, 7)
