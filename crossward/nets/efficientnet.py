"""EfficientNet-B0 (Tan and Le, ICML 2019), built by MONAI, and what it shares with EfficientNet-Lite0."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple, cast

from torch import nn

from crossward.core.image_size import Size, sides, size_words
from crossward.core.net import Net
from crossward.errors import ConfigError
from crossward.nets.layers import require_size_and_width
from crossward.nets.pretrained import load_weights_file
from crossward.nets.requirements import require_rates

STEM = 32  # channels of the first convolution
TOP = 1280  # channels of the last convolution
EPS = 1e-3  # of BatchNorm
HALVINGS = 5  # of an image on its way through the net
MIN_SIZE = 16  # pixels a side


class Stage(NamedTuple):
    repeats: int
    kernel: int
    stride: int  # of its first block
    expansion: int
    channels: int


STAGES = (
    Stage(1, 3, 1, 1, 16),
    Stage(2, 3, 2, 6, 24),
    Stage(2, 5, 2, 6, 40),
    Stage(3, 3, 2, 6, 80),
    Stage(3, 5, 1, 6, 112),
    Stage(4, 5, 2, 6, 192),
    Stage(1, 3, 1, 6, 320),
)


class ModuleNames(NamedTuple):
    """The names that a library gives the modules of an EfficientNet.

    The parts of a block are: expansion, its norm, depthwise convolution, its norm, squeeze, excitation, projection, its
    norm. Blocks of the first stage lack the first two.
    """

    stem: tuple[str, str]  # convolution, norm
    block: str  # format of a block's name
    block_parts: tuple[str, ...]
    first_block_parts: tuple[str, ...]
    top: tuple[str, str]  # convolution, norm
    classifier: str

    def modules(self) -> Iterator[str]:
        """The full names of all modules, in the same order for every library."""
        yield from (*self.stem, *self.top, self.classifier)
        number = 0
        for index, stage in enumerate(STAGES):
            parts = self.first_block_parts if stage.expansion == 1 else self.block_parts
            for place in range(stage.repeats):
                block = self.block.format(stage=index, ordinal=index + 1, place=place, number=number)
                yield from (f"{block}.{part}" for part in parts)
                number += 1


BLOCK_PARTS = ("_expand_conv", "_bn0", "_depthwise_conv", "_bn1", "_se_reduce", "_se_expand", "_project_conv", "_bn2")
B0 = ModuleNames(
    ("body.stem.1", "body.stem.2"), "body.stage{ordinal}.{place}", BLOCK_PARTS, BLOCK_PARTS[2:],
    ("body.top.1", "body.top.2"), "head.1",
)  # fmt: skip
MONAI = ModuleNames(
    ("_conv_stem", "_bn0"), "_blocks.{stage}.{number}", BLOCK_PARTS, BLOCK_PARTS[2:], ("_conv_head", "_bn1"), "_fc"
)  # fmt: skip
EFFICIENTNET_PYTORCH = MONAI._replace(block="_blocks.{number}")
TORCHVISION = ModuleNames(
    ("features.0.0", "features.0.1"), "features.{ordinal}.{place}.block",
    ("0.0", "0.1", "1.0", "1.1", "2.fc1", "2.fc2", "3.0", "3.1"), ("0.0", "0.1", "1.fc1", "1.fc2", "2.0", "2.1"),
    ("features.8.0", "features.8.1"), "classifier.1",
)  # fmt: skip
TIMM = ModuleNames(
    ("conv_stem", "bn1"), "blocks.{stage}.{place}",
    ("conv_pw", "bn1", "conv_dw", "bn2", "se.conv_reduce", "se.conv_expand", "conv_pwl", "bn3"),
    ("conv_dw", "bn1", "se.conv_reduce", "se.conv_expand", "conv_pw", "bn2"), ("conv_head", "bn2"), "classifier",
)  # fmt: skip


def efficientnet_b0(
    *,
    channels: int,
    classes: int,
    size: Size,
    start: str = "",
    width: float = 1.0,
    dropout: float = 0.2,
    drop_connect: float = 0.2,
    norm_momentum: float = 0.01,
) -> Net:
    """EfficientNet-B0 of any width, started at random or from a file of weights.

    start: "" (random) or a safetensors file, with our names or those of MONAI, efficientnet_pytorch, timm or
        torchvision, all of width 1. Weights of torchvision, and of timm except its tf_ ones, were trained with other
        padding in convolutions that halve the image and another eps of BatchNorm: they are a start for training and do
        not give the same predictions.
    width: scales all channels, stem and top included, by the paper's rule.

    Importing MONAI takes seconds. Its padding depends on the image size, hence `size`.
    """
    require_size_and_width("efficientnet-b0", min(sides(size)), width, MIN_SIZE)
    _require_alike(size)
    require_rates("efficientnet-b0", dropout=dropout, drop_connect=drop_connect, norm_momentum=norm_momentum)
    if start == "imagenet":
        raise ConfigError(
            "The net 'efficientnet-b0' has no ImageNet weights of its own.",
            hint="Set start to a .safetensors file, such as timm's or torchvision's, or use efficientnet-lite0.",
        )
    body = _body(channels, min(sides(size)), width, drop_connect, norm_momentum)
    features = cast(nn.Conv2d, body.get_submodule("top.1")).out_channels
    net = Net(body, classifier(classes, dropout, features), features)
    if start:
        names = module_translation(B0, MONAI, EFFICIENTNET_PYTORCH, TORCHVISION, TIMM)
        load_weights_file(net, start, "efficientnet-b0", names)
    return net


def _require_alike(size: Size) -> None:
    """Padding is fixed when the net is built, by whether a side is odd at each of five halvings: the same for both."""
    height, width = sides(size)
    for _ in range(HALVINGS):
        if height % 2 != width % 2:
            raise ConfigError(
                f"The net 'efficientnet-b0' cannot take images of {size_words(size)}.",
                hint=f"Choose a height and a width that are multiples of {2**HALVINGS}, or another net.",
            )
        height, width = -(-height // 2), -(-width // 2)


def classifier(classes: int, dropout: float, features: int = TOP) -> nn.Sequential:
    return nn.Sequential(nn.Dropout(dropout), nn.Linear(features, classes))


def module_translation(ours: ModuleNames, *theirs: ModuleNames) -> dict[str, str]:
    """Names of other libraries' modules -> names of ours; modules that we lack are left out."""
    translation = {}
    for library in theirs:
        for our_name, their_name in zip(ours.modules(), library.modules(), strict=True):
            if not our_name.endswith("."):  # a part that we lack has an empty name
                translation[their_name] = our_name
    return translation


def _body(channels: int, size: int, width: float, drop_connect: float, momentum: float) -> nn.Sequential:
    """From images to (B, TOP) at width 1; a sequence, so that a method can split it."""
    from monai.networks.nets.efficientnet import EfficientNet

    in_channels = (STEM, *(stage.channels for stage in STAGES[:-1]))
    net = EfficientNet(
        [f"r{r}_k{k}_s{s}{s}_e{e}_i{i}_o{o}_se0.25" for i, (r, k, s, e, o) in zip(in_channels, STAGES, strict=True)],
        in_channels=channels,
        num_classes=1,  # its classifier is not used
        width_coefficient=width,
        image_size=size,
        norm=("batch", {"eps": EPS, "momentum": momentum}),
        drop_connect_rate=drop_connect,
    )
    part = dict(net.named_children())
    stages = {f"stage{n}": nn.Sequential(*stage.children()) for n, stage in enumerate(part["_blocks"].children(), 1)}
    return nn.Sequential(
        OrderedDict(
            stem=nn.Sequential(part["_conv_stem_padding"], part["_conv_stem"], part["_bn0"], nn.SiLU(inplace=True)),
            **stages,
            top=nn.Sequential(part["_conv_head_padding"], part["_conv_head"], part["_bn1"], nn.SiLU(inplace=True)),
            pool=nn.AdaptiveAvgPool2d(1),
            flatten=nn.Flatten(),
        )
    )
