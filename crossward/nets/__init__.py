"""The catalogue of nets: one row per net. Modules are imported when a net is built, so listing nets needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from crossward.core.image_size import Size
from crossward.errors import ConfigError
from crossward.names import nearest
from crossward.nets.catalogue import CatalogueNet

if TYPE_CHECKING:
    from crossward.core.net import Net

NETS: Mapping[str, CatalogueNet] = MappingProxyType({
    "cnn": CatalogueNet("crossward.nets.cnn", "cnn", "classification", both_sides=True),
    "resnet18": CatalogueNet("crossward.nets.resnet", "resnet18", "classification"),
    "resnet50": CatalogueNet("crossward.nets.resnet", "resnet50", "classification"),
    "efficientnet-b0": CatalogueNet(
        "crossward.nets.efficientnet", "efficientnet_b0", "classification", both_sides=True
    ),
    "efficientnet-lite0": CatalogueNet("crossward.nets.efficientnet_lite", "efficientnet_lite0", "classification"),
    "resnet17": CatalogueNet("crossward.nets.resnet_shallow", "resnet17", "classification"),
    "resnet11": CatalogueNet("crossward.nets.resnet_shallow", "resnet11", "classification"),
    "resnet8": CatalogueNet("crossward.nets.resnet_shallow", "resnet8", "classification"),
    "resnet5": CatalogueNet("crossward.nets.resnet_shallow", "resnet5", "classification"),
    "resnext": CatalogueNet("crossward.nets.resnet", "resnext", "classification"),
    "senet": CatalogueNet("crossward.nets.resnet", "senet", "classification"),
    "shufflenet": CatalogueNet("crossward.nets.shufflenet", "shufflenet", "classification"),
    "squeezenet": CatalogueNet("crossward.nets.squeezenet", "squeezenet", "classification"),
    "mobilenet": CatalogueNet("crossward.nets.mobilenet", "mobilenet", "classification"),
    "densenet": CatalogueNet("crossward.nets.densenet", "densenet", "classification"),
    "vgg": CatalogueNet("crossward.nets.vgg", "vgg", "classification"),
    "unet": CatalogueNet("crossward.nets.unet", "unet", "segmentation"),
    "unetpp": CatalogueNet("crossward.nets.unetpp", "unetpp", "segmentation"),
    "fcn": CatalogueNet("crossward.nets.fcn", "fcn", "segmentation"),
    "resunet": CatalogueNet("crossward.nets.resunet", "resunet", "segmentation"),
})  # fmt: skip


def is_user_net(name: str) -> bool:
    """Whether the name is that of a user's own builder: "package.module:function"."""
    return ":" in name


def suggestion(name: str) -> str:
    """A hint for a name that is not in the catalogue."""
    form = 'A network of your own is named "package.module:function". ' if "." in name else ""
    return form + nearest(name, NETS)


def build(name: str, *, channels: int, classes: int, size: Size, **options: Any) -> Net:
    """A freshly initialised net for images of this size; torch.manual_seed decides its weights."""
    if is_user_net(name):
        from crossward.nets.user_net import load_user_net

        return load_user_net(name, channels=channels, classes=classes, size=size, **options)
    if name not in NETS:
        raise ConfigError(f"There is no net named {name!r}.", hint=suggestion(name))
    net = NETS[name]
    problems = [problem for key, value in options.items() if (problem := net.problem(key, value))]
    if problems:
        raise ConfigError(f"The net {name!r} cannot be built with these options.", details=problems)
    return net.build(channels=channels, classes=classes, size=size, **options)
