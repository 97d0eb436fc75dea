"""The test images of a run, and their features. A run directory holds no images: they are loaded as the configuration
says, if they are still there."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from crossward.data.federation import Federation
from crossward.errors import CrosswardError
from crossward.report.source import ReportRun
from crossward.runs.deployed import Deployed
from crossward.runs.stored_images import load_images

COMMON = "common test set"


@dataclass(frozen=True)
class HeldImages:
    """The test images of one holder: a site, or the federation."""

    holder: str  # the site's name, or COMMON
    images: Tensor  # (n, H, W, C) uint8
    targets: Tensor  # (n,) classes, or (n, H, W) class maps


def open_images(run: ReportRun) -> Federation:
    """The images of a run as they were shared out; raises CrosswardError in words if they are not there any more."""
    return load_images(run.result, run.partition)


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


def site_of(run: ReportRun, holder: str) -> str | None:
    """Whose network predicts the images of a holder: with personal networks, a site's own."""
    if not run.about["personal"]:
        return None
    return str(run.about["sites"][0]) if holder == COMMON else holder
