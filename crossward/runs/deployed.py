"""Deployed: a trained network taken out of a run directory, ready to predict or to be exported."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from crossward.config.reading import config_from, method_of
from crossward.core.bit_depth import PIXEL_TYPES
from crossward.core.image_size import as_size, sides
from crossward.core.method import restore_predictor
from crossward.core.net import Net, NetSpec
from crossward.core.pixel_range import brightest
from crossward.core.samples import Samples
from crossward.core.site import Site, predict_batch_size
from crossward.core.training import Training
from crossward.core.tree import Tree
from crossward.data.bad_files import BadFile
from crossward.data.decode import MOST_PIXELS, Decoded, Frame, crop_box, decode_parts
from crossward.data.prepare import Pixels
from crossward.errors import DataError
from crossward.foreign import printable
from crossward.nets import NETS
from crossward.runs.architectures import NetPlan
from crossward.runs.new_images import NewImage, named_images
from crossward.runs.pixels import as_images
from crossward.tasks import multi_label
from crossward.tasks import task as make_task

if TYPE_CHECKING:
    from PIL.Image import Image

Size = tuple[int, int]  # width, height
NO_LABEL = "none"  # what is said of an image without any of several labels


class Deployed:
    def __init__(self, about: Mapping[str, Any], stored: Tree, site: str | None = None) -> None:
        """`about` is run.json, `stored` what `core.method.export_predictor` kept of the site."""
        config = config_from(about["config"])
        method = method_of(config)
        net_facts = about.get("nets", {}).get(site, about["net"])
        self.classes = tuple(about["task"]["classes"])
        self.size = as_size(*about["images"]["size"])
        self.channels = net_facts["channels"]
        self.depth = about["images"].get("depth", 8)
        self.shrink = net_facts.get("shrink", 1)
        self.mean = tuple(about["images"]["mean"])
        self.std = tuple(about["images"]["std"])
        self.fit = getattr(config.data, "fit", "stretch")
        self.prepare = getattr(config.data, "prepare", ())
        self.source = config.data  # which says what of a folder is an image
        spec = NetSpec(
            self.channels,
            as_size(*sides(net_facts["size"])),
            len(self.classes),
            text=about.get("text", {}).get("numbers", 0),
            mean=self.mean,
            std=self.std,
            sites=len(about["sites"]),
        )
        plan = _without_start(NetPlan(**{**net_facts, "size": spec.size}))
        net = method.build(plan(), spec)
        task = make_task(about["task"]["name"], self.classes, **config.task)
        none = self._samples(torch.zeros(0, *sides(self.size), self.channels, dtype=PIXEL_TYPES[self.depth]))
        self._no_images = none
        self._site = Site(0, "deployed", net, task, none, none, none, Training(), architecture=plan.architecture)
        self._predictor = restore_predictor(method, self._site, stored)

    @property
    def task(self) -> str:
        return self._site.task.name

    @overload
    def predict(self, images: Tensor) -> Tensor: ...

    @overload
    def predict(self, images: Pixels) -> NDArray[Any]: ...

    def predict(self, images: Tensor | Pixels) -> Tensor | NDArray[Any]:
        """(N, H, W, C) images, uint8 or as `depth` says uint16 -> (N, K) probabilities, or (N, H, W) uint8 class maps.

        Grey images may be (N, H, W); one image may come without N, and is a batch of one. Given a numpy array, an array
        is returned; given a tensor, a tensor.
        """
        predicted = self._site.predict(
            self._predictor, self._samples(as_images(images, self.size, self.channels, self.depth))
        )
        return predicted.numpy() if isinstance(images, np.ndarray) else predicted

    def probabilities(self, images: Tensor) -> Tensor:
        """(N, H, W, C) images -> (N, K) probabilities, or (N, K, H, W) of each pixel."""
        samples = self._samples(as_images(images, self.size, self.channels, self.depth))
        self._site.model.eval()
        with torch.inference_mode():
            parts = [shares(self._predictor(x), self.task) for x, _ in samples.in_order(predict_batch_size(samples))]
        return torch.cat(parts).clone()

    def predicted_label(self, probabilities: Tensor) -> str:
        """What (K,) probabilities say of an image: the likeliest class, or all labels above 0.5, as in "edema|mass"."""
        if self.task != multi_label.NAME:
            return str(self.classes[int(probabilities.argmax())])
        found = (probabilities > multi_label.THRESHOLD).nonzero()[:, 0].tolist()
        return "|".join(self.classes[k] for k in found) or NO_LABEL

    @property
    def network(self) -> Net:
        """The network itself, in evaluation mode."""
        return self._site.model.eval()

    def inputs(self, images: Tensor) -> Iterator[Tensor]:
        """(N, H, W, C) images as the network takes them: (B, C, H, W), normalised, some at a time."""
        samples = self._samples(as_images(images, self.size, self.channels, self.depth))
        for x, _ in samples.in_order(predict_batch_size(samples)):
            yield x

    def logits(self, x: Tensor) -> Tensor:
        """What this site would predict of a batch of `inputs`; gradients flow where the method lets them."""
        return self._predictor(x)

    @property
    def frame(self) -> Frame:
        """What every image file becomes."""
        return Frame(
            self.size,
            self.channels,
            self.fit,
            prepare=self.prepare,
            max_pixels=getattr(self.source, "max_pixels", MOST_PIXELS),
            burned_in=getattr(self.source, "burned_in", "") == "keep",
            depth=self.depth,
        )

    def read(self, files: Iterable[Path]) -> Iterator[tuple[list[Path], Tensor, list[Size]]]:
        """Image files as the network wants them, some at a time, with their own upright sizes. Files that cannot be
        read are left out; a DataError after the last good one names all of them."""
        images = [image for file in files for image in named_images(file, self.source)]
        problems: list[BadFile] = []
        for batch, pixels, sizes in self.read_images(images, problems):
            yield [Path(image.name) for image in batch], pixels, sizes
        if problems:
            raise unreadable(problems, len(images), "good")

    def read_images(
        self, images: Iterable[NewImage], problems: list[BadFile]
    ) -> Iterator[tuple[list[NewImage], Tensor, list[Size]]]:
        """The images that can be read, some at a time; the others are added to `problems`, each with its reason."""
        batch: list[NewImage] = []
        pixels: list[Pixels] = []
        sizes: list[Size] = []
        most = predict_batch_size(self._no_images)
        for _, same_file in groupby(images, key=lambda image: image.place or image.name):
            for image, decoded in self._decoded([*same_file]):
                if isinstance(decoded, Exception):
                    problems.append(BadFile(image.name, None, _reason(decoded)))
                    continue
                batch.append(image)
                pixels.append(decoded.pixels)
                sizes.append(decoded.size)
                if len(batch) == most:
                    yield batch, torch.from_numpy(np.stack(pixels)), sizes
                    batch, pixels, sizes = [], [], []
        if batch:
            yield batch, torch.from_numpy(np.stack(pixels)), sizes

    def _decoded(self, images: Sequence[NewImage]) -> Iterable[tuple[NewImage, Decoded | Exception]]:
        """The images of one file, which is opened once, each decoded or with what is wrong."""
        first = images[0]
        try:
            return zip(images, decode_parts(first.read(), first.path, self.frame, [one.part for one in images]))
        except (OSError, DataError, MemoryError) as error:
            return [(image, error) for image in images]

    def class_map(self, predicted: Tensor, size: Size) -> Tensor:
        """A predicted class map, (height, width) as its image; what the network was not shown is background."""
        from PIL import Image

        left, top, right, bottom = (round(edge) for edge in crop_box(size, self.fit, self.size))
        shown = Image.fromarray(predicted.numpy()).resize((right - left, bottom - top), Image.Resampling.NEAREST)
        whole = Image.new("L", size)
        whole.paste(shown, (left, top))
        return torch.from_numpy(np.array(whole))

    def mask_picture(self, class_map: Tensor) -> Image:
        """A class map as a grey picture: 0 for the background, the last class white."""
        from PIL import Image

        return Image.fromarray((class_map * (255 // (len(self.classes) - 1))).numpy())

    def module(self) -> nn.Module:
        """For export: (N, H, W, C) pixels to (probabilities, logits), or to (probabilities, class map)."""
        white = brightest(self.depth)
        return _Whole(self._site.model, self._predictor, self.mean, self.std, white, self.shrink, self.task).eval()

    def _samples(self, images: Tensor) -> Samples:
        targets = torch.zeros(len(images), dtype=torch.int64)
        return Samples(images, targets, torch.arange(len(images)), self.mean, self.std, shrink=self.shrink)


def shares(logits: Tensor, task: str) -> Tensor:
    """Logits as probabilities: of classes that exclude each other, or of labels that do not."""
    return logits.sigmoid() if task == multi_label.NAME else logits.softmax(1)


def _without_start(plan: NetPlan) -> NetPlan:
    """The plan without the file of weights that training started from: it is not needed any more."""
    if plan.name not in NETS:
        return plan
    return replace(plan, options={key: value for key, value in plan.options.items() if key != "start"})


def unreadable(problems: Sequence[BadFile], images: int, rest: str) -> DataError:
    """The error that names every image that could not be read; `rest` says what the others are: good, predicted."""
    others = images - len(problems)
    what = f"the other one is {rest}" if others == 1 else f"the other {others} are {rest}"
    return DataError(
        f"{len(problems)} of {images} images cannot be read" + (f"; {what}" if others else ""),
        details=[printable(str(problem)) for problem in problems],
    )


def _reason(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return "does not fit into memory"
    return error.strerror or type(error).__name__ if isinstance(error, OSError) else str(error)


class _Whole(nn.Module):
    """Normalisation, network and softmax, or sigmoid, in one."""

    def __init__(
        self,
        net: nn.Module,
        predictor: Any,
        mean: Sequence[float],
        std: Sequence[float],
        white: int,
        shrink: int,
        task: str,
    ) -> None:
        super().__init__()
        self.net, self.white, self.shrink, self.task = net, white, shrink, task
        self._predictor = predictor
        self.mean, self.std = (nn.Buffer(torch.tensor(v).view(1, -1, 1, 1)) for v in (mean, std))

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        scaled = pixels.permute(0, 3, 1, 2).to(torch.float32) / self.white
        seen = F.avg_pool2d(scaled, self.shrink) if self.shrink > 1 else scaled
        logits: Tensor = self._predictor((seen - self.mean) / self.std)
        maps = self.task == "segmentation"
        return shares(logits, self.task), logits.argmax(1).to(torch.uint8) if maps else logits
