"""The table of nets: its options match the constructors, and what every net promises."""

from __future__ import annotations

import copy
import inspect
import pickle
import subprocess
import sys
from importlib import import_module

import pytest
import torch

from crossward.core.net import Net
from crossward.errors import ConfigError
from crossward.nets import NETS, build, describe, names

torch.set_num_threads(1)
NARROW = (
    "resnet17",
    "resnet11",
    "resnet8",
    "resnet5",
    "resnext",
    "senet",
    "shufflenet",
    "squeezenet",
    "mobilenet",
    "densenet",
    "vgg",
)
SMALL = {
    "cnn": {},
    "resnet18": {"width": 0.125},
    "resnet50": {"width": 0.125},
    "efficientnet-b0": {"width": 0.25},
    "efficientnet-lite0": {"width": 0.25},
    "unet": {"base": 4},
    "unetpp": {"base": 4},
    "fcn": {"base": 4},
    "resunet": {"base": 4},
} | {name: {"width": 0.125} for name in NARROW}


def small(name: str, classes: int = 3) -> Net:
    return build(name, channels=1, classes=classes, size=24, **SMALL[name])


def test_names_and_descriptions():
    assert names()[:3] == ("cnn", "resnet18", "resnet50")
    assert {*names()} == {*SMALL}
    description, options = describe("resnet18")
    assert "ResNet-18" in description
    assert options == {"stem": "auto", "width": 1.0, "norm": "batch"}


@pytest.mark.parametrize("name", names())
def test_options_equal_the_signature(name: str):
    entry = NETS[name]
    signature = inspect.signature(getattr(import_module(entry.module), entry.attribute)).parameters
    assert list(signature)[:3] == ["channels", "classes", "size"]
    assert {key: p.default for key, p in list(signature.items())[3:]} == describe(name)[1]


@pytest.mark.parametrize("name", names())
def test_contract(name: str):
    net, x = small(name).eval(), torch.randn(2, 1, 24, 24)
    z = net.features(x)
    assert z.shape[1] == net.width
    assert torch.equal(net(x), net.head(z))
    assert net(x).shape == ((2, 3) if NETS[name].task == "classification" else (2, 3, 24, 24))
    assert {n.split(".")[0] for n, _ in net.named_parameters()} == {"body", "head"}


@pytest.mark.parametrize("name", names())
def test_gradient_reaches_every_parameter(name: str):
    torch.manual_seed(0)
    net = small(name)
    net(torch.randn(4, 1, 24, 24)).square().sum().backward()
    silent = [n for n, p in net.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert silent == []


@pytest.mark.parametrize("name", names())
def test_seed_decides_the_weights(name: str):
    def weights(seed: int) -> dict[str, torch.Tensor]:
        torch.manual_seed(seed)
        return small(name).state_dict()

    first, again, other = weights(1), weights(1), weights(2)
    assert all(torch.equal(first[n], again[n]) for n in first)
    assert any(not torch.equal(first[n], other[n]) for n in first)


@pytest.mark.parametrize("name", names())
def test_copies_and_channels_last_give_the_same(name: str):
    net, x = small(name).eval(), torch.randn(2, 1, 24, 24)
    expected = net(x)
    assert torch.equal(copy.deepcopy(net)(x), expected)
    assert torch.equal(pickle.loads(pickle.dumps(net))(x), expected)
    rearranged = net.to(memory_format=torch.channels_last)(x.to(memory_format=torch.channels_last))
    torch.testing.assert_close(rearranged, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("resnet", {}, ["no net named 'resnet'", "Did you mean 'res"]),
        ("resnet-50", {}, ["Did you mean 'resnet50'?"]),
        ("U-Net", {}, ["Did you mean 'unet'?", "cnn, resnet18, resnet50, efficientnet-b0"]),
        ("resnet18", {"widht": 0.5}, ["Did you mean 'width'?", "stem, width, norm"]),
        ("cnn", {"projections": 1, "zzz": 2}, ["projections: there is no such option", "zzz: there is no such option"]),
        ("cnn", {"projection": 2.5}, ["projection: must be a whole number, not 2.5"]),
        ("cnn", {"projection": True}, ["must be a whole number"]),
        ("resnet18", {"width": "wide"}, ["width: must be a number, not 'wide'"]),
        ("unet", {"up": 2}, ["up: must be text, not 2"]),
        ("efficientnet", {}, ["Did you mean 'efficientnet-b0'?"]),
        ("hospital_b.Crash", {}, ['A network of your own is named "package.module:function".', "Known: cnn"]),
        ("efficientnet-lite0", {"start": True}, ["start: must be text, not True"]),
    ],
)
def test_wrong_names_are_refused(name: str, options: dict[str, object], says: list[str]):
    with pytest.raises(ConfigError) as error:
        build(name, channels=1, classes=2, size=32, **options)
    assert [s for s in says if s not in str(error.value)] == []


@pytest.mark.parametrize("name", [name for name in names() if "width" in NETS[name].options])
@pytest.mark.parametrize("width", [float("inf"), float("nan"), float("-inf"), 0.0])
def test_a_width_is_a_finite_number_above_zero(name: str, width: float):
    with pytest.raises(ConfigError, match=f"The net '{name}' needs .*width"):
        build(name, channels=1, classes=2, size=24, width=width)


def test_describe_refuses_unknown_names():
    with pytest.raises(ConfigError, match="no net named 'alexnet'"):
        describe("alexnet")


def test_a_whole_number_serves_where_a_number_is_asked():
    assert build("resnet18", channels=1, classes=2, size=16, width=1).width == 512


def test_listing_does_not_import_torch():
    code = "import sys, crossward.nets as n; [n.describe(k) for k in n.names()]; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
