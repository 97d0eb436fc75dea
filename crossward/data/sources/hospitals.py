"""Images that are at the hospitals of a federation: each site says where its own are, the run how they are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from crossward.core.pixel_range import Depth
from crossward.data.archives import Files
from crossward.data.sources.dicom import unlabelled_dicom
from crossward.data.sources.settings import Channels, Fit, ImageSize, Loaded, Operations, SourceSettings
from crossward.data.sources.unlabelled import UnlabelledImages
from crossward.errors import ConfigError


class HospitalsSettings(SourceSettings):
    source: Literal["hospitals"]
    prepare: Operations = ()
    size: ImageSize | None = None  # None: as each site reads its own
    channels: Channels | None = None
    depth: Depth = 8  # bits of a pixel that sites keep
    fit: Fit = "stretch"
    classes: tuple[str, ...] | None = None  # all of them in their order; None: those of most sites

    def load(self) -> Loaded:
        raise ConfigError(
            "the images of this configuration are at the hospitals, not here",
            hint="Run it by `crossward federation run`; or name images of this machine in [data], by source and path.",
        )

    def find_images(self, files: Files, listing: Sequence[str], *, named: bool = False) -> UnlabelledImages:
        """All frames of DICOM files, or else pictures. Which slices of volumes the sites read, the run does not say."""
        return unlabelled_dicom(files, listing, "all") or super().find_images(files, listing, named=named)
