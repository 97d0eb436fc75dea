"""AuditedRun: a finished run with its images and networks, as attacks need them; opened when first asked for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from crossward.audits.canaries import CanaryKind
from crossward.audits.finding import NotMeasured
from crossward.config.reading import config_from
from crossward.config.schema import Config
from crossward.core.seeds import derive
from crossward.data.federation import Federation, Split
from crossward.errors import StorageError
from crossward.runs.build import PreparedRun, prepare
from crossward.runs.deployed import Deployed
from crossward.runs.result import Result
from crossward.runs.run_directory import RunDir
from crossward.runs.stored_images import load_images


@dataclass(frozen=True)
class AuditOptions:
    """What people chose for an audit."""

    which: str = "best"  # the network: of the best round, or of the last
    reference: Path | None = None  # another run, whose network never saw the images that are attacked
    train_reference: bool = False  # train such a network, if there is none
    canaries: int = 0  # to plant into a repetition of the run; 0: none
    canary_kind: CanaryKind = "auto"
    images: bool = False  # whether pictures of patients may be written
    seconds: float = 60.0  # for an attack that could go on without end
    seed: int = 0


class AuditedRun:
    def __init__(self, result: Result, options: AuditOptions) -> None:
        if result.about["status"] != "finished":
            raise StorageError(
                f"{result.folder} has not finished: it is {result.about['status']}",
                hint=f"Finish it by `crossward resume {result.folder}`.",
            )
        self.result, self.options = result, options

    @property
    def about(self) -> dict[str, Any]:
        return self.result.about

    @property
    def method(self) -> str:
        return str(self.about["method"]["name"])

    @property
    def task(self) -> str:
        return str(self.about["task"]["name"])

    @cached_property
    def config(self) -> Config:
        return config_from(self.result.config)

    @cached_property
    def federation(self) -> Federation:
        """The images of the run, as they were shared out."""
        return load_images(self.result)

    @cached_property
    def prepared(self) -> PreparedRun:
        """The run as it was before round 1."""
        if self.result.across_hospitals:
            raise StorageError("the images are at the hospitals, not here")
        return prepare(self.config, self.result.partition)

    @property
    def rundir(self) -> RunDir:
        return RunDir(self.result.folder)

    @cached_property
    def privacy(self) -> dict[str, Any]:
        """What the run says of its noise; empty if it has none."""
        ended = self.result.folder / "privacy.json"
        return self.rundir.read("privacy.json") if ended.exists() else dict(self.about.get("privacy") or {})

    @cached_property
    def groups(self) -> dict[str, str]:
        """Image -> patient, lesion or slide, where it is known."""
        collection = self.federation.collection
        pairs = zip(collection.ids, collection.groups or (), strict=False)
        return {image: group for image, group in pairs if group}

    def training_sites(self) -> list[Split]:
        """Sites with something to train on. Where training was pooled, all of them trained."""
        sites = [split for split in self.federation.sites if len(split.train)]
        if not sites:
            raise NotMeasured("no site trained on anything")
        return sites

    def networks(self) -> Iterator[tuple[Split, Deployed]]:
        """Each site with the network that it would use: its own, or the one of all."""
        common = None if self.about["personal"] else self.result.deployed(which=self.options.which)
        for split in self.training_sites():
            yield split, common or self.result.deployed(split.name, self.options.which)

    def rng(self, purpose: str) -> torch.Generator:
        return torch.Generator().manual_seed(derive(self.options.seed, "audit", purpose))

    def some(self, rows: Tensor, most: int, purpose: str) -> Tensor:
        """At most so many of the rows, by chance, in their order."""
        if len(rows) <= most:
            return rows
        chosen = torch.randperm(len(rows), generator=self.rng(purpose))[:most]
        return rows[chosen.sort().values]
