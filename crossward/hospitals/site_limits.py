"""SiteLimits: how much of a hospital's machine a coordinator may use, and what it may ask so that answers tell little
of single images. The table [limits] of site.toml.

A question that would exceed a limit is refused before any work starts. What cannot be known before, the minutes and
the main memory of a step, is watched by the site's worker, see `site_worker`.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, Gt
from pydantic import ConfigDict, Strict

from crossward.config.schema import Config
from crossward.core.image_size import sides
from crossward.core.method import COMMON_STEPS
from crossward.core.training import Training
from crossward.data.archives import open_files
from crossward.data.decode import is_image
from crossward.errors import CrosswardError
from crossward.hospitals.limits_key import read_tagged, write_tagged
from crossward.hospitals.refusal import Refusal
from crossward.hospitals.site_tables import read_table
from crossward.privacy.secure_steps import STEP_NAMES
from crossward.settings import Section

LIMITS_TABLE = "limits"
MIB = 1 << 20
USAGE_FILE = "usage.json"
STORED_FOLDERS = ("memory", "weights")  # what a site stores for runs
PASSES = "epochs"  # options of methods and plugins that end so are passes over the images
STEPS = ("steps", "iterations")  # and these are batches
RATES = "_lr"  # and these are learning rates

KNOWN_RUNS = 1000  # whose steps are counted; the oldest is forgotten
FOLDS_OF_IMAGES = "a fold"

Whole = Annotated[int, Strict(), Gt(0)]


class LimitExceeded(Refusal):
    """The coordinator asks for more of this site's machine than its site.toml allows."""


class SiteLimits(Section):
    """What a site's machine and images are limited to. The last keys are off here, for sites within one process; for a
    site with a site.toml they are on, see `DefaultLimits`."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    pixels: Whole = 512  # of an image's side, as the run wants images to be read
    images_a_round: Whole = 2_000_000  # that a step may train on: epochs x images
    minutes: Annotated[float, Gt(0)] = 60.0  # that a step may take
    threads: Whole = 16  # that it may use
    message_mib: Whole = 1024  # of one message from the coordinator
    memory_mib: Whole = 8192  # of main memory, for the site's worker
    cache_mib: Whole = 20480  # of decoded images on the disk
    disk_mib: Whole = 20480  # of the folders memory and weights
    rounds_a_day: Whole = 1000
    questions_a_day: Whole = 10_000
    steps_a_day: Whole = 3000  # of training: each tells something
    steps_a_run: Whole = 3000
    min_images: Whole = 1  # that this site trains on in a run, and that a fold of a cross validation has
    min_class_images: Whole = 1  # of each class that it trains on
    min_batch: Whole = 1  # images in a batch
    max_lr: Annotated[float, Gt(0)] = 10.0
    check_weights: Annotated[bool, Strict()] = False  # leave a run whose weights no training makes
    update_noise: Annotated[float, Ge(0)] = 0.0  # on weights that leave, as a multiple of how training changed them

    @classmethod
    def read(cls, file: Path) -> SiteLimits:
        """The limits in a TOML file, which may have other tables; the defaults if it has no [limits]."""
        return read_table(file, LIMITS_TABLE, DefaultLimits, "the limits are") or DefaultLimits()

    def refuse_above(self, key: str, amount: float, what: str) -> None:
        """Refuse an amount above the limit `key`; `what` names it in the error."""
        limit = getattr(self, key)
        if amount > limit:
            raise LimitExceeded(
                f"{what}, and this site allows no more than {LIMITS_TABLE}.{key} = {limit:g}"
                if isinstance(limit, float)
                else f"{what}, and this site allows no more than {LIMITS_TABLE}.{key} = {limit}",
                hint="Ask for less, or ask the people at this site to change their site.toml.",
            )

    # before a run -----------------------------------------------------------------------------------------------------
    def check_message(self, size: int) -> None:
        self.refuse_above("message_mib", size / MIB, f"a message of {size / MIB:.0f} MiB")

    def check_config(self, config: Config, site_data: Mapping[str, Any]) -> None:
        """Refuse a run that wants images larger than allowed, unless this site itself set their size, or too many
        threads."""
        size = getattr(config.data, "size", None)
        if size is not None and "size" not in site_data:
            height, width = sides(size)
            self.refuse_above("pixels", max(height, width), f"the run wants images of {height} x {width} pixels")
        threads = config.engine.threads
        self.refuse_above("threads", threads, f"the run wants {threads} threads")

    def check_work(self, training: Training, parts: Iterable[object], images: int) -> None:
        """Refuse a run whose steps would train for too long. `parts` are its method and plugins, whose options may ask
        for more than [train] does; `images` are those of this site and the public ones."""
        epochs = training.epochs
        batches = 0
        for part in parts:
            more_epochs, more_batches = _planned_work(part, training.epochs)
            epochs += more_epochs
            batches += more_batches
        planned = epochs * images + batches * training.batch_size
        self.refuse_above("images_a_round", planned, f"the run wants to train on {_rounded(planned)} images in a round")

    def check_rate(self, training: Training, parts: Iterable[object], round: int = 0) -> None:
        """Refuse a learning rate, of [train] or of an option, that is too large in a round, from 0."""
        largest = max([training.lr, *(rate for part in parts for rate in _rates(part))])
        try:
            growth = max(training.rate(round, epoch) for epoch in (0, training.epochs - 1)) / training.lr
        except OverflowError:
            growth = math.inf
        rate = largest * growth
        self.refuse_above("max_lr", rate, f"the run wants a learning rate of {rate:g}")

    def check_training(self, training: Training, class_counts: Sequence[int], images: int, folds: int | None) -> None:
        """Refuse a run that would train on too few images, or in a way that tells of single ones. The coordinator is
        told the limit and not the number."""
        if training.batch_size < min(self.min_batch, images):
            self._refuse_below("min_batch", f"the run wants batches of {training.batch_size}")
        if images < self.min_images:
            self._refuse_below("min_images", "this site has fewer training images for this run")
        if folds is not None and images < self.min_images * (folds - 1):
            self._refuse_below("min_images", f"with {folds} folds this site has fewer images in {FOLDS_OF_IMAGES}")
        if any(0 < count < self.min_class_images for count in class_counts):
            self._refuse_below("min_class_images", "this site has a class with fewer training images")

    def _refuse_below(self, key: str, what: str) -> None:
        raise LimitExceeded(
            f"{what}, and this site allows no less than {LIMITS_TABLE}.{key} = {getattr(self, key)}",
            hint="Ask for more, or ask the people at this site to change their site.toml.",
        )

    # disk -------------------------------------------------------------------------------------------------------------
    def check_disk(self, folder: Path) -> None:
        """Refuse to store more in a site's folder than allowed."""
        stored = sum(_folder_bytes(folder / name) for name in STORED_FOLDERS) / MIB
        self.refuse_above("disk_mib", stored, f"what this site remembers of all runs takes {stored:.0f} MiB")

    def make_room_in_cache(self, folder: Path, config: Config) -> None:
        """Delete what was decoded longest ago, so that the images of a run can be decoded within the quota."""
        needed = _decoded_bytes(config)
        self.refuse_above(
            "cache_mib", needed / MIB, f"the images, as the run wants them, take {needed / MIB:.0f} MiB on the disk"
        )
        kinds = ("*.json", "hashes-*", "segment-*") if folder.is_dir() else ()
        entries = sorted((file for kind in kinds for file in folder.glob(kind)), key=_modified)
        stored = _folder_bytes(folder)
        for entry in entries:
            if stored + needed <= self.cache_mib * MIB:
                return
            for file in (entry, entry.with_suffix(".images"), entry.with_suffix(".masks")):
                with suppress(OSError):
                    size = file.stat().st_size
                    file.unlink()
                    stored -= size


class DefaultLimits(SiteLimits):
    """The table [limits] of a site.toml; every key may be left out."""

    min_images: Whole = 16
    min_batch: Whole = 4
    check_weights: Annotated[bool, Strict()] = True
    update_noise: Annotated[float, Ge(0)] = 2.0


ON_IMAGES = ("min_images", "min_class_images", "min_batch", "check_weights", "update_noise")  # off, where left out
NO_LIMITS = SiteLimits.model_validate(  # simulations: nobody else's machine
    {key: 1 << 60 for key in SiteLimits.model_fields if key not in ON_IMAGES}
)


def _planned_work(part: object, train_epochs: int) -> tuple[int, int]:
    """The epochs and batches that the options of a method or plugin ask for; an option that is None stands for
    train.epochs."""
    if not is_dataclass(part):
        return 0, 0
    epochs = 0
    batches = 0
    for option in fields(part):
        value = getattr(part, option.name)
        if option.name.endswith(PASSES):
            epochs += train_epochs if value is None else int(value)
        elif option.name.endswith(STEPS) and isinstance(value, int):
            batches += value
    return epochs, batches


def _rates(part: object) -> Iterator[float]:
    """The learning rates among the options of a method or plugin."""
    for option in fields(part) if is_dataclass(part) else ():
        value = getattr(part, option.name)
        if option.name.endswith(RATES) and isinstance(value, int | float):
            yield float(value)


def _rounded(number: int) -> str:
    return str(number) if number < 10**12 else "more than 10^12"


def _decoded_bytes(config: Config) -> int:
    """An upper bound of what the images of a site take once they are decoded into the cache; 0 for sources that do not
    use it."""
    path = getattr(config.data, "path", None)
    decodes_files = hasattr(config.data, "decoding")
    if path is None or not decodes_files:
        return 0
    try:
        if path.suffix == ".csv":
            with path.open("rb") as table:
                count = sum(1 for _ in table)
        else:
            with open_files(path) as files:
                count = sum(is_image(name) for name in files.listing())
    except (OSError, CrosswardError):
        return 0  # reading them reports what is wrong
    channels, depth = getattr(config.data, "channels", 3), getattr(config.data, "depth", 8)
    return int(count * math.prod(sides(getattr(config.data, "size", 0))) * (channels * depth // 8 + 1))  # and a mask


def _folder_bytes(folder: Path) -> int:
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # deleted meanwhile
                total += os.stat(os.path.join(place, name), follow_symlinks=False).st_size  # noqa: PTH116, PTH118
    return total


def _modified(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


@dataclass
class Usage:
    """How often a coordinator has asked today, and for how many steps of training in each run. It is written down, with
    a tag under the site's key, so that a restart does not begin a new day."""

    file: Path
    limits: SiteLimits
    key: Callable[[], bytes]
    now: Callable[[], datetime] = lambda: datetime.now(UTC)

    def count(self, header: Mapping[str, Any]) -> None:
        """Count a question, and the round that it is of; refuse one too many."""
        if self.limits is NO_LIMITS:
            return
        today = f"{self.now():%Y-%m-%d}"
        usage = self._read(today)
        usage["questions"] += 1
        self.limits.refuse_above("questions_a_day", usage["questions"], f"{usage['questions']} questions today")
        if header.get("do") == "job":
            round_key = json.dumps([header.get("run"), header.get("round")])[:200]
            if round_key != usage["round"]:
                rounds = usage["rounds"] + 1
                self.limits.refuse_above("rounds_a_day", rounds, f"{rounds} rounds today")
                usage |= {"rounds": rounds, "round": round_key}
            if header.get("step") not in (*COMMON_STEPS, *STEP_NAMES.values()):  # a sum is of what was trained before
                self._count_step(usage, json.dumps(header.get("run"))[:200])
        write_tagged(self.file, self.key(), usage)

    def _count_step(self, usage: dict[str, Any], run: str) -> None:
        """Count a step of training, of today and of its run; one that is asked again counts again."""
        usage["steps"] += 1
        self.limits.refuse_above("steps_a_day", usage["steps"], f"{usage['steps']} steps of training today")
        steps = usage["runs"].pop(run, 0) + 1
        self.limits.refuse_above("steps_a_run", steps, f"{steps} steps of training in this run")
        usage["runs"][run] = steps  # the last: runs are in the order of their last step
        while len(usage["runs"]) > KNOWN_RUNS:
            del usage["runs"][next(iter(usage["runs"]))]

    def _read(self, today: str) -> dict[str, Any]:
        fresh: dict[str, Any] = {"day": today, "questions": 0, "rounds": 0, "round": "", "steps": 0, "runs": {}}
        usage = read_tagged(self.file, self.key()) or fresh
        return usage if usage["day"] == today else fresh | {"runs": usage["runs"]}
