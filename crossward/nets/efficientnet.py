"""EfficientNet-B0 (Tan and Le, ICML 2019), MONAI's, and what it shares with its Lite relative."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple, cast

from torch import nn

from crossward.core.net import Net
from crossward.errors import ConfigError
from crossward.nets.layers import require_frame
from crossward.nets.pretrained import from_file
from crossward.nets.requirements import require_rates

STEM, TOP = 32, 1280  # channels of the first and the last convolution
EPS = 1e-3  # of BatchNorm
LEAST = 16  # pixels


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


class Names(NamedTuple):
    """What a library calls the modules of an EfficientNet. In a block: expansion, its norm, depthwise convolution, its
    norm, squeeze, excitation, projection, its norm; a block of the first stage lacks the first two."""

    stem: tuple[str, str]  # convolution, norm
    block: str
    full: tuple[str, ...]
    first: tuple[str, ...]
    top: tuple[str, str]
    classifier: str

    def modules(self) -> Iterator[str]:
        yield from (*self.stem, *self.top, self.classifier)
        number = 0
        for stage, (repeats, *_, expansion, _) in enumerate(STAGES):
            for place in range(repeats):
                at = self.block.format(stage=stage, ordinal=stage + 1, place=place, number=number)
                yield from (f"{at}.{part}" for part in (self.first if expansion == 1 else self.full))
                number += 1


INSIDE = ("_expand_conv", "_bn0", "_depthwise_conv", "_bn1", "_se_reduce", "_se_expand", "_project_conv", "_bn2")
B0 = Names(
    ("body.stem.1", "body.stem.2"), "body.stage{ordinal}.{place}", INSIDE, INSIDE[2:],
    ("body.top.1", "body.top.2"), "head.1",
)  # fmt: skip
MONAI = Names(
    ("_conv_stem", "_bn0"), "_blocks.{stage}.{number}", INSIDE, INSIDE[2:], ("_conv_head", "_bn1"), "_fc"
)  # fmt: skip
EFFICIENTNET_PYTORCH = MONAI._replace(block="_blocks.{number}")
TORCHVISION = Names(
    ("features.0.0", "features.0.1"), "features.{ordinal}.{place}.block",
    ("0.0", "0.1", "1.0", "1.1", "2.fc1", "2.fc2", "3.0", "3.1"), ("0.0", "0.1", "1.fc1", "1.fc2", "2.0", "2.1"),
    ("features.8.0", "features.8.1"), "classifier.1",
)  # fmt: skip
TIMM = Names(
    ("conv_stem", "bn1"), "blocks.{stage}.{place}",
    ("conv_pw", "bn1", "conv_dw", "bn2", "se.conv_reduce", "se.conv_expand", "conv_pwl", "bn3"),
    ("conv_dw", "bn1", "se.conv_reduce", "se.conv_expand", "conv_pw", "bn2"), ("conv_head", "bn2"), "classifier",
)  # fmt: skip


def efficientnet_b0(
    *,
    channels: int,
    classes: int,
    size: int,
    start: str = "",
    width: float = 1.0,
    dropout: float = 0.2,
    drop_connect: float = 0.2,
    norm_momentum: float = 0.01,
) -> Net:
    """`start`: "" (random) or a safetensors file, with our names or those of MONAI, efficientnet_pytorch, timm or
    torchvision. Weights of torchvision, and of timm but for its tf_ ones, were trained with other padding where a
    convolution halves the image and another eps of BatchNorm: a start for training, not the same predictions. All of
    these have width 1.

    `width`: every number of channels is scaled, stem and top too, by the paper's rule.

    Importing MONAI takes seconds. It pads for the image size that it is told, hence `size`.
    """
    require_frame("efficientnet-b0", size, width, LEAST)
    require_rates("efficientnet-b0", dropout=dropout, drop_connect=drop_connect, norm_momentum=norm_momentum)
    if start == "imagenet":
        raise ConfigError(
            "The net 'efficientnet-b0' has no ImageNet weights of its own.",
            hint="Set start to a .safetensors file, such as timm's or torchvision's, or use efficientnet-lite0.",
        )
    body = _body(channels, size, width, drop_connect, norm_momentum)
    features = cast(nn.Conv2d, body.get_submodule("top.1")).out_channels
    net = Net(body, classifier(classes, dropout, features), features)
    if start:
        from_file(net, start, "efficientnet-b0", translation(B0, MONAI, EFFICIENTNET_PYTORCH, TORCHVISION, TIMM))
    return net


def classifier(classes: int, dropout: float, features: int = TOP) -> nn.Sequential:
    return nn.Sequential(nn.Dropout(dropout), nn.Linear(features, classes))


def translation(ours: Names, *theirs: Names) -> dict[str, str]:
    """Their modules and ours; those that we lack are left out."""
    return {b: a for names in theirs for a, b in zip(ours.modules(), names.modules(), strict=True) if a[-1] != "."}


def _body(channels: int, size: int, width: float, drop_connect: float, momentum: float) -> nn.Sequential:
    """In sequence, from images to (B, TOP) at width 1, so that it can be cut."""
    from monai.networks.nets.efficientnet import EfficientNet

    before = (STEM, *(stage.channels for stage in STAGES))
    made = EfficientNet(
        [f"r{r}_k{k}_s{s}{s}_e{e}_i{b}_o{c}_se0.25" for b, (r, k, s, e, c) in zip(before, STAGES, strict=False)],
        in_channels=channels,
        num_classes=1,  # its classifier is not used
        width_coefficient=width,
        image_size=size,
        norm=("batch", {"eps": EPS, "momentum": momentum}),
        drop_connect_rate=drop_connect,
    )
    part = dict(made.named_children())
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
