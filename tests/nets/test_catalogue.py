"""The catalogue of nets: descriptions and options read from the builders, and the contract of every net."""

from __future__ import annotations

import copy
import inspect
import pickle
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch

from crossward import nets
from crossward.core.net import Net
from crossward.errors import ConfigError
from crossward.nets import NETS, build
from crossward.nets.catalogue import CatalogueNet

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


NEW_NET = """
from torch import nn
from crossward.core.net import Net


def pooled_linear(*, channels: int, classes: int, size: int, hidden: int = 4, bias: bool = True) -> Net:
    \"\"\"The mean colour and a linear layer.

    hidden: width of the features.
    \"\"\"
    body = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, hidden, bias=bias))
    return Net(body, nn.Linear(hidden, classes), hidden)
"""


def test_names_and_descriptions():
    assert list(NETS)[:3] == ["cnn", "resnet18", "resnet50"]
    assert {*NETS} == {*SMALL}
    assert NETS["resnet18"].description == "ResNet-18 of any width, with the ImageNet stem or one for small images"
    assert NETS["resnet18"].options == {"stem": "auto", "width": 1.0, "norm": "batch"}


@pytest.mark.parametrize("name", NETS)
def test_options_and_description_are_those_of_the_builder(name: str):
    entry = NETS[name]
    builder = getattr(import_module(entry.module), entry.function)
    signature = inspect.signature(builder).parameters
    assert list(signature)[:3] == ["channels", "classes", "size"]
    assert {key: p.default for key, p in list(signature.items())[3:]} == entry.options
    assert inspect.getdoc(builder).startswith(f"{entry.description}.")


def test_adding_a_net_takes_one_function_and_one_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "nets_of_a_newcomer.py").write_text(NEW_NET)
    monkeypatch.syspath_prepend(str(tmp_path))
    row = CatalogueNet("nets_of_a_newcomer", "pooled_linear", "classification")
    monkeypatch.setattr(nets, "NETS", {**NETS, "pooled-linear": row})
    assert row.description == "The mean colour and a linear layer"
    assert row.options == {"hidden": 4, "bias": True}
    assert "nets_of_a_newcomer" not in sys.modules
    net = build("pooled-linear", channels=3, classes=2, size=8, hidden=5, bias=False)
    assert net.width == 5
    assert net.body[2].bias is None
    with pytest.raises(ConfigError) as error:
        build("pooled-linear", channels=3, classes=2, size=8, hiden=5, bias=1)
    assert error.value.details == (
        "hiden: there is no such option. Did you mean 'hidden'? Known: hidden, bias.",
        "bias: must be true or false, not 1.",
    )
    monkeypatch.delitem(sys.modules, "nets_of_a_newcomer")


def test_a_row_without_a_builder_is_an_error():
    with pytest.raises(ImportError, match=r"crossward\.nets\.cnn defines no function gnn"):
        _ = CatalogueNet("crossward.nets.cnn", "gnn", "classification").options
    with pytest.raises(ImportError, match=r"there is no source of crossward\.nets\.gnn"):
        _ = CatalogueNet("crossward.nets.gnn", "gnn", "classification").options


@pytest.mark.parametrize("name", NETS)
def test_contract(name: str):
    net = small(name).eval()
    x = torch.randn(2, 1, 24, 24)
    z = net.features(x)
    assert z.shape[1] == net.width
    assert torch.equal(net(x), net.head(z))
    assert net(x).shape == ((2, 3) if NETS[name].task == "classification" else (2, 3, 24, 24))
    assert {n.split(".")[0] for n, _ in net.named_parameters()} == {"body", "head"}


@pytest.mark.parametrize("name", NETS)
def test_gradient_reaches_every_parameter(name: str):
    torch.manual_seed(0)
    net = small(name)
    net(torch.randn(4, 1, 24, 24)).square().sum().backward()
    silent = [n for n, p in net.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert silent == []


@pytest.mark.parametrize("name", NETS)
def test_seed_decides_the_weights(name: str):
    def weights(seed: int) -> dict[str, torch.Tensor]:
        torch.manual_seed(seed)
        return small(name).state_dict()

    first, again, other = weights(1), weights(1), weights(2)
    assert all(torch.equal(first[n], again[n]) for n in first)
    assert any(not torch.equal(first[n], other[n]) for n in first)


@pytest.mark.parametrize("name", NETS)
def test_copies_and_channels_last_give_the_same(name: str):
    net = small(name).eval()
    x = torch.randn(2, 1, 24, 24)
    expected = net(x)
    assert torch.equal(copy.deepcopy(net)(x), expected)
    assert torch.equal(pickle.loads(pickle.dumps(net))(x), expected)
    rearranged = net.to(memory_format=torch.channels_last)(x.to(memory_format=torch.channels_last))
    torch.testing.assert_close(rearranged, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "options", "parts"),
    [
        ("resnet", {}, ["no net named 'resnet'", "Did you mean 'res"]),
        ("alexnet", {}, ["There is no net named 'alexnet'."]),
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
def test_wrong_names_are_refused(name: str, options: dict[str, object], parts: list[str]):
    with pytest.raises(ConfigError) as error:
        build(name, channels=1, classes=2, size=32, **options)
    assert [part for part in parts if part not in str(error.value)] == []


@pytest.mark.parametrize("name", [name for name in NETS if "width" in NETS[name].options])
@pytest.mark.parametrize("width", [float("inf"), float("nan"), float("-inf"), 0.0])
def test_a_width_is_a_finite_number_above_zero(name: str, width: float):
    with pytest.raises(ConfigError, match=f"The net '{name}' needs .*width"):
        build(name, channels=1, classes=2, size=24, width=width)


def test_a_whole_number_serves_where_a_number_is_asked():
    assert build("resnet18", channels=1, classes=2, size=16, width=1).width == 512


def test_listing_does_not_import_torch():
    code = (
        "import sys; from crossward.nets import NETS; "
        "[(net.description, net.options) for net in NETS.values()]; print('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
