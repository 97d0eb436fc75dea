"""The test images of a run and what its networks make of them: features, and where they look. Needs the images, which
the run directory does not hold: they are loaded as the configuration says, if they are still there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from crossward.config.reading import config_from
from crossward.data.federation import Federation
from crossward.data.manifest import from_manifest
from crossward.errors import CrosswardError, StorageError
from crossward.report.source import ReportRun
from crossward.runs.deployed import Deployed

COMMON = "common test set"
BATCH = 32  # images of which gradients are kept at a time


@dataclass(frozen=True)
class HeldImages:
    """The test images of one holder: a site, or the federation."""

    holder: str  # the site's name, or COMMON
    images: Tensor  # (n, H, W, C) uint8
    targets: Tensor  # (n,) classes, or (n, H, W) class maps


def open_images(run: ReportRun) -> Federation:
    """The images of a run as they were shared out; raises CrosswardError in words if they are not there any more."""
    if run.result.across_hospitals:
        raise StorageError("the images are at the hospitals, not here")
    try:
        collection, _ = config_from(run.result.config).data.load()
    except (OSError, ImportError) as error:
        raise StorageError(f"the images cannot be loaded ({type(error).__name__})") from error
    return from_manifest(collection, dict(run.partition))


def images_by_holder(federation: Federation) -> list[HeldImages]:
    """Those of every site that has some, then the common ones."""
    collection = federation.collection
    holders = [(site.name, site.test) for site in federation.sites] + [(COMMON, federation.server.test)]
    return [HeldImages(name, collection.images[rows], collection.targets[rows]) for name, rows in holders if len(rows)]


def reason_in_words(error: CrosswardError) -> str:
    """Why images are not there, without paths or names of rows."""
    return error.what.splitlines()[0][:200]


def features(network: Deployed, images: Tensor) -> Tensor:
    """(N, width): in front of the head; of a segmentation, the mean over pixels."""
    parts = []
    with torch.inference_mode():
        for x in network.inputs(images):
            z = network.network.features(x)
            parts.append(z.flatten(2).mean(2) if z.ndim > 2 else z)
    return torch.cat(parts).float().clone()


def grad_cam(network: Deployed, images: Tensor, classes: Sequence[int]) -> Tensor | None:
    """(N, H, W) from 0 to 1: which pixels speak for a class (Grad-CAM: Selvaraju et al., ICCV 2017), read off the last
    convolution of the body. None if there is none, or if the method's predictions have no gradient."""
    layers = [module for module in network.network.body.modules() if isinstance(module, nn.Conv2d)]
    if not layers:
        return None
    maps = []
    for start in range(0, len(images), BATCH):
        wanted = torch.as_tensor(classes[start : start + BATCH])
        for x in network.inputs(images[start : start + BATCH]):
            found = _grad_cam(network, layers[-1], x, wanted[: len(x)])
            if found is None:
                return None
            maps.append(found)
            wanted = wanted[len(x) :]
    together = torch.cat(maps)[:, None]
    return F.interpolate(together, size=tuple(images.shape[1:3]), mode="bilinear", align_corners=False)[:, 0]


def _grad_cam(network: Deployed, layer: nn.Module, x: Tensor, classes: Tensor) -> Tensor | None:
    kept: list[Tensor] = []
    hook = layer.register_forward_hook(lambda module, inputs, output: kept.append(output))
    try:
        with torch.enable_grad():
            logits = network.logits(x.clone().requires_grad_())
    finally:
        hook.remove()
    if not kept or not logits.requires_grad or kept[-1].ndim != 4:
        return None
    chosen = logits[torch.arange(len(x)), classes.to(logits.device)].sum()
    gradient: Tensor | None = torch.autograd.grad(chosen, kept[-1], allow_unused=True)[0]
    if gradient is None:
        return None
    weights = gradient.mean((2, 3), keepdim=True)
    heat = F.relu((weights * kept[-1]).sum(1)).detach()  # (B, h, w)
    largest = heat.flatten(1).max(1).values.clamp_min(1e-12)
    return (heat / largest[:, None, None]).float()


def site_of(run: ReportRun, holder: str) -> str | None:
    """Whose network predicts the images of a holder: with personal networks, a site's own."""
    if not run.about["personal"]:
        return None
    return str(run.about["sites"][0]) if holder == COMMON else holder
