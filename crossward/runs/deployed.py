"""Deployed: a trained network taken out of a run directory, ready to predict or to be exported."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from crossward.config.reading import config_from, method_of
from crossward.core.method import restore_predictor
from crossward.core.net import NetSpec
from crossward.core.samples import Samples
from crossward.core.site import PREDICT_BATCH, Site
from crossward.core.training import Training
from crossward.core.tree import Tree
from crossward.data.decode import Frame, crop_box, decode_image
from crossward.errors import ConfigError, DataError
from crossward.nets import NETS
from crossward.runs.architectures import NetPlan
from crossward.tasks import task as make_task

if TYPE_CHECKING:
    from PIL.Image import Image

Size = tuple[int, int]  # width, height


class Deployed:
    def __init__(self, about: Mapping[str, Any], stored: Tree, site: str | None = None) -> None:
        """`about` is run.json, `stored` what `core.method.export_predictor` kept of the site."""
        config = config_from(about["config"])
        method = method_of(config)
        net_facts = about.get("nets", {}).get(site, about["net"])
        self.classes = tuple(about["task"]["classes"])
        self.size = about["images"]["size"][0]
        self.channels = net_facts["channels"]
        self.shrink = net_facts.get("shrink", 1)
        self.mean = tuple(about["images"]["mean"])
        self.std = tuple(about["images"]["std"])
        self.fit = getattr(config.data, "fit", "stretch")
        self.prepare = getattr(config.data, "prepare", ())
        spec = NetSpec(
            self.channels,
            net_facts["size"],
            len(self.classes),
            text=about.get("text", {}).get("numbers", 0),
            mean=self.mean,
            std=self.std,
            sites=len(about["sites"]),
        )
        plan = _without_start(NetPlan(**net_facts))
        net = method.build(plan(), spec)
        task = make_task(about["task"]["name"], self.classes, **config.task)
        no_images = self._samples(torch.zeros(0, self.size, self.size, self.channels, dtype=torch.uint8))
        self._site = Site(
            0, "deployed", net, task, no_images, no_images, no_images, Training(), architecture=plan.architecture
        )
        self._predictor = restore_predictor(method, self._site, stored)

    @property
    def task(self) -> str:
        return self._site.task.name

    def predict(self, images: Tensor) -> Tensor:
        """(N, H, W, C) uint8 images -> (N, K) probabilities, or (N, H, W) uint8 class maps."""
        if images.shape[1:] != (self.size, self.size, self.channels):
            raise ConfigError(
                f"images of {tuple(images.shape[1:])} for a net of {self.size} px, {self.channels} channels"
            )
        return self._site.predict(self._predictor, self._samples(images))

    def read(self, files: Sequence[Path]) -> Iterator[tuple[list[Path], Tensor, list[Size]]]:
        """Image files as the network wants them, some at a time, with their own upright sizes; every file that cannot
        be read is named at once."""
        frame = Frame(self.size, self.channels, self.fit, prepare=self.prepare)
        problems, good = [], []
        for file in files:
            try:
                decode_image(file.read_bytes(), file.name, Frame(1, self.channels, self.fit, prepare=self.prepare))
                good.append(file)
            except (OSError, DataError) as error:
                problems.append(f"{file}: {error}")
        if problems:
            raise DataError(f"{len(problems)} of {len(files)} images cannot be read", details=problems)
        for at in range(0, len(good), PREDICT_BATCH):
            some = good[at : at + PREDICT_BATCH]
            pixels, sizes = zip(*(decode_image(file.read_bytes(), file.name, frame) for file in some), strict=True)
            yield some, torch.from_numpy(np.stack(pixels)), list(sizes)

    def mask(self, classes: Tensor, size: Size) -> Image:
        """A class map as a grey picture of the size of its image; what the network was not shown is background."""
        from PIL import Image

        left, top, right, bottom = (round(edge) for edge in crop_box(size, self.fit))
        shades = (classes * (255 // (len(self.classes) - 1))).numpy()
        shown = Image.fromarray(shades).resize((right - left, bottom - top), Image.Resampling.NEAREST)
        whole = Image.new("L", size)
        whole.paste(shown, (left, top))
        return whole

    def module(self) -> nn.Module:
        """Pixels in [0, 1], (B, C, H, W), to probabilities: for export."""
        return _Whole(self._site.model, self._predictor, self.mean, self.std, self.shrink)

    def _samples(self, images: Tensor) -> Samples:
        targets = torch.zeros(len(images), dtype=torch.int64)
        return Samples(images, targets, torch.arange(len(images)), self.mean, self.std, shrink=self.shrink)


def _without_start(plan: NetPlan) -> NetPlan:
    """The plan without the file of weights that training started from: it is not needed any more."""
    if plan.name not in NETS:
        return plan
    return replace(plan, options={key: value for key, value in plan.options.items() if key != "start"})


class _Whole(nn.Module):
    """Normalisation, network and softmax in one."""

    def __init__(
        self, net: nn.Module, predictor: Any, mean: Sequence[float], std: Sequence[float], shrink: int
    ) -> None:
        super().__init__()
        self.net, self.shrink = net, shrink
        self._predictor = predictor
        self.mean, self.std = (torch.tensor(v).view(1, -1, 1, 1) for v in (mean, std))

    def forward(self, pixels: Tensor) -> Tensor:
        pixels = F.avg_pool2d(pixels, self.shrink) if self.shrink > 1 else pixels
        logits: Tensor = self._predictor((pixels - self.mean) / self.std)
        return logits.softmax(1)
