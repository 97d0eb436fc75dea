"""Nets: a table of names; modules are imported when one is built, so that torch is not needed to list or describe."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from crossward.errors import ConfigError
from crossward.names import nearest

if TYPE_CHECKING:
    from crossward.core.net import Net


class Entry(NamedTuple):
    module: str
    attribute: str
    task: str  # the task whose logits it gives
    description: str
    options: Mapping[str, Any]  # with their defaults, equal to the signature of `attribute`


NETS: Mapping[str, Entry] = MappingProxyType({
    "cnn": Entry(
        "crossward.nets.cnn", "cnn", "classification",
        "two 5x5 convolutions and two fully connected layers, for small images",
        MappingProxyType({"projection": 0}),
    ),
    "resnet18": Entry(
        "crossward.nets.resnet", "resnet18", "classification",
        "ResNet-18 of any width, with the ImageNet stem or one for small images",
        MappingProxyType({"stem": "auto", "width": 1.0, "norm": "batch"}),
    ),
    "resnet50": Entry(
        "crossward.nets.resnet", "resnet50", "classification",
        "ResNet-50 of any width, with the ImageNet stem or one for small images",
        MappingProxyType({"stem": "auto", "width": 1.0, "norm": "batch"}),
    ),
    "efficientnet-b0": Entry(
        "crossward.nets.efficientnet", "efficientnet_b0", "classification",
        "EfficientNet-B0 of any width, started at random or from a file of weights",
        MappingProxyType({"start": "", "width": 1.0, "dropout": 0.2, "drop_connect": 0.2, "norm_momentum": 0.01}),
    ),
    "efficientnet-lite0": Entry(
        "crossward.nets.efficientnet_lite", "efficientnet_lite0", "classification",
        "EfficientNet-Lite0 of any width, started at random, from ImageNet weights or from a file of weights",
        MappingProxyType({"start": "", "width": 1.0, "dropout": 0.2, "drop_connect": 0.2, "norm_momentum": 0.01}),
    ),
    "resnet17": Entry(
        "crossward.nets.resnet_shallow", "resnet17", "classification",
        "17 layers: five bottlenecks without expansion; MH-pFLGB's for images of full resolution",
        MappingProxyType({"stem": "auto", "width": 1.0, "norm": "batch"}),
    ),
    "resnet11": Entry(
        "crossward.nets.resnet_shallow", "resnet11", "classification",
        "11 layers: three bottlenecks without expansion; MH-pFLGB's for half the resolution",
        MappingProxyType({"stem": "auto", "width": 1.0, "norm": "batch"}),
    ),
    "resnet8": Entry(
        "crossward.nets.resnet_shallow", "resnet8", "classification",
        "8 layers: two bottlenecks without expansion; MH-pFLGB's for a quarter of the resolution",
        MappingProxyType({"stem": "auto", "width": 1.0, "norm": "batch"}),
    ),
    "resnet5": Entry(
        "crossward.nets.resnet_shallow", "resnet5", "classification",
        "5 layers: one bottleneck without expansion; MH-pFLGB's for an eighth of the resolution",
        MappingProxyType({"stem": "auto", "width": 1.0, "norm": "batch"}),
    ),
    "resnext": Entry(
        "crossward.nets.resnet", "resnext", "classification",
        "ResNeXt-26 (32x2d) of any width, with the ImageNet stem or one for small images",
        MappingProxyType({"stem": "auto", "width": 1.0, "norm": "batch"}),
    ),
    "senet": Entry(
        "crossward.nets.resnet", "senet", "classification",
        "SE-ResNet-18 of any width, with the ImageNet stem or one for small images",
        MappingProxyType({"stem": "auto", "width": 1.0, "norm": "batch"}),
    ),
    "shufflenet": Entry(
        "crossward.nets.shufflenet", "shufflenet", "classification",
        "ShuffleNetV2 of any width, with the ImageNet stem or one for small images",
        MappingProxyType({"stem": "auto", "width": 1.0}),
    ),
    "squeezenet": Entry(
        "crossward.nets.squeezenet", "squeezenet", "classification",
        "SqueezeNet v1.1 of any width, with a linear head; it has no BatchNorm",
        MappingProxyType({"stem": "auto", "width": 1.0, "dropout": 0.5}),
    ),
    "mobilenet": Entry(
        "crossward.nets.mobilenet", "mobilenet", "classification",
        "MobileNetV2 of any width, with the ImageNet stem or one for small images",
        MappingProxyType({"stem": "auto", "width": 1.0}),
    ),
    "densenet": Entry(
        "crossward.nets.densenet", "densenet", "classification",
        "small DenseNet-BC of any growth, with the ImageNet stem or one for small images",
        MappingProxyType({"stem": "auto", "width": 1.0}),
    ),
    "vgg": Entry(
        "crossward.nets.vgg", "vgg", "classification",
        "VGG-16 with BatchNorm of any width, for any image size",
        MappingProxyType({"width": 1.0, "dropout": 0.5}),
    ),
    "unet": Entry(
        "crossward.nets.unet", "unet", "segmentation",
        "compact U-Net with skip connections, for any image size",
        MappingProxyType({"base": 16, "levels": 4, "up": "bilinear"}),
    ),
    "unetpp": Entry(
        "crossward.nets.unetpp", "unetpp", "segmentation",
        "U-Net++ with nested skip connections, for any image size",
        MappingProxyType({"base": 16, "levels": 4, "up": "bilinear"}),
    ),
    "fcn": Entry(
        "crossward.nets.fcn", "fcn", "segmentation",
        "FCN-8s on a VGG-16 of any width, which sums three scales",
        MappingProxyType({"base": 16}),
    ),
    "resunet": Entry(
        "crossward.nets.resunet", "resunet", "segmentation",
        "U-Net of residual units with strides in place of pooling",
        MappingProxyType({"base": 16, "levels": 4}),
    ),
})  # fmt: skip

KINDS: Mapping[type, str] = MappingProxyType({int: "a whole number", float: "a number", str: "text"})


def names() -> tuple[str, ...]:
    return tuple(NETS)


def describe(name: str) -> tuple[str, dict[str, Any]]:
    """One line about the net, and its options with their defaults."""
    entry = _entry(name)
    return entry.description, dict(entry.options)


def is_own(name: str) -> bool:
    """Whether a person brings this net: "package.module:function"."""
    return ":" in name


def meant(name: str) -> str:
    """A hint for a name that is not known."""
    own = 'A network of your own is named "package.module:function". ' if "." in name else ""
    return own + nearest(name, NETS)


def build(name: str, *, channels: int, classes: int, size: int, **options: Any) -> Net:
    """A freshly initialised net for images of `size` x `size` pixels; torch.manual_seed decides its weights."""
    if is_own(name):
        from crossward.nets.user_net import adopted

        return adopted(name, channels=channels, classes=classes, size=size, **options)
    entry = _entry(name)
    wrong = [line for key, value in options.items() if (line := _objection(entry, key, value))]
    if wrong:
        raise ConfigError(f"The net {name!r} cannot be built with these options.", details=wrong)
    make = getattr(import_module(entry.module), entry.attribute)
    return cast("Net", make(channels=channels, classes=classes, size=size, **options))


def _entry(name: str) -> Entry:
    if name not in NETS:
        raise ConfigError(f"There is no net named {name!r}.", hint=meant(name))
    return NETS[name]


def _objection(entry: Entry, key: str, value: object) -> str:
    if key not in entry.options:
        return f"{key}: there is no such option. {nearest(key, entry.options)}"
    kind = type(entry.options[key])
    accepted = (int, float) if kind is float else kind
    if isinstance(value, bool) or not isinstance(value, accepted):
        return f"{key}: must be {KINDS[kind]}, not {value!r}."
    return ""
