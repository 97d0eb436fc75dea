"""SiteLimits: how much of a hospital's machine a coordinator may use. The table [limits] of site.toml.

A question that would exceed a limit is refused before any work starts. What cannot be known before, the minutes and
the main memory of a step, is watched by the site's worker, see `site_worker`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Gt
from pydantic import ConfigDict, Strict

from crossward.config.schema import Config
from crossward.core.training import Training
from crossward.data.archives import open_files
from crossward.data.decode import is_image
from crossward.disk import write_atomically
from crossward.errors import CrosswardError
from crossward.hospitals.refusal import Refusal
from crossward.hospitals.site_tables import read_table
from crossward.settings import Section

LIMITS_TABLE = "limits"
MIB = 1 << 20
USAGE_FILE = "usage.json"
STORED_FOLDERS = ("memory", "weights")  # what a site stores for runs
PASSES = "epochs"  # options of methods and plugins that end so are passes over the images
STEPS = ("steps", "iterations")  # and these are batches

Whole = Annotated[int, Strict(), Gt(0)]


class LimitExceeded(Refusal):
    """The coordinator asks for more of this site's machine than its site.toml allows."""


class SiteLimits(Section):
    """The table [limits]; every key may be left out."""

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

    @classmethod
    def read(cls, file: Path) -> SiteLimits:
        """The limits in a TOML file, which may have other tables; the defaults if it has no [limits]."""
        return read_table(file, LIMITS_TABLE, cls, "the limits are") or cls()

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
            self.refuse_above("pixels", size, f"the run wants images of {size} x {size} pixels")
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


NO_LIMITS = SiteLimits(
    **dict.fromkeys(SiteLimits.model_fields, 1 << 60)  # simulations: nobody else's machine
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
    channels = getattr(config.data, "channels", 3)
    return int(count * getattr(config.data, "size", 0) ** 2 * (channels + 1))  # and a mask


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
    """How often a coordinator has asked today. It is written down, so that a restart does not begin a new day."""

    file: Path
    limits: SiteLimits
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
        self.file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(self.file, json.dumps(usage).encode(), durable=False, mode=0o600)

    def _read(self, today: str) -> dict[str, Any]:
        fresh = {"day": today, "questions": 0, "rounds": 0, "round": ""}
        try:
            usage = json.loads(self.file.read_bytes())
        except (OSError, ValueError, RecursionError):
            return fresh
        is_whole = isinstance(usage, dict) and {key: type(value) for key, value in usage.items()} == {
            key: type(value) for key, value in fresh.items()
        }
        return usage if is_whole and usage["day"] == today else fresh
