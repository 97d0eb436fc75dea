"""The sections [study.slurm] and [study.ray]: what a cell is given on a cluster. Nothing here imports torch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar

from annotated_types import Ge
from pydantic import AfterValidator, AliasChoices, BeforeValidator, ConfigDict, Field, ValidationError

from crossward.errors import ConfigError
from crossward.names import nearest
from crossward.settings import Count, NonNegative, Section

CLOCK = re.compile(r"(?:(?P<days>\d+)-)?(?:(?P<hours>\d+):)?(?P<minutes>\d+):(?P<seconds>\d\d)")
MEMORY = re.compile(r"\d+(?:\.\d+)?\s*[KMGT]i?B?", re.IGNORECASE)
S = TypeVar("S", bound=Section)


def _minutes(written: Any) -> Any:
    """ "8:00:00", "2-00:00:00" or a number of minutes."""
    if not isinstance(written, str):
        return written
    match = CLOCK.fullmatch(written.strip())
    if match is None:
        raise ValueError('a time is minutes, or written as "8:00:00" or "2-00:00:00"')
    days, hours, minutes, seconds = (int(match[name] or 0) for name in ("days", "hours", "minutes", "seconds"))
    if match["hours"] is None and match["days"] is not None:  # SLURM reads "2-03:00" as days-hours:minutes
        hours, minutes, seconds = minutes, seconds, 0
    return days * 1440 + hours * 60 + minutes + (seconds > 0)


def _memory(written: str) -> str:
    if not MEMORY.fullmatch(written.strip()):
        raise ValueError('memory is written as "16GB"')
    return re.sub(r"\s|(?<=[KMGT])i", "", written.strip().upper().replace("IB", "B"))


class SlurmSettings(Section):
    """Options of the jobs; others by `extra`, as sbatch calls them."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    cluster: Literal["slurm", "local", "debug"] = "slurm"  # submitit's executor; the others try it out on this machine
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    time: Annotated[int, BeforeValidator(_minutes), Ge(1)] = 60  # minutes of a job; one that is cut off goes on
    memory: Annotated[str, AfterValidator(_memory)] | None = None
    cpus: Count = 1
    gpus: NonNegative = 0
    array_parallelism: Count = Field(
        default=256, validation_alias=AliasChoices("array_parallelism", "slurm_array_parallelism")
    )  # jobs of an array at a time
    requeues: NonNegative = 20  # how often a job that ran out of time is put into the queue again
    warn_seconds: Count = 90  # before the end of its time a job is warned
    setup: tuple[str, ...] = ()  # commands before a job, as "module load python"
    extra: dict[str, str | int | bool] = {}  # further options of sbatch


class RaySettings(Section):
    """What each cell is given on a Ray cluster."""

    cpus: Count = 1
    gpus: Annotated[float, Ge(0)] = 0.0  # 0.5: two cells share one
    memory: Annotated[str, AfterValidator(_memory)] | None = None
    retries: NonNegative = 2  # how often a cell is tried again whose node was lost


def with_options(settings: S, flag: str, options: Sequence[str]) -> S:
    """The settings with "key=value" options of the command line put before those of the file."""
    values: dict[str, Any] = settings.model_dump()
    for option in options:
        key, equals, text = option.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"{flag} {option!r} is not of the form key=value", hint=f"Say, {flag} cpus=4.")
        name = key.strip().removeprefix("slurm_")
        if name not in type(settings).model_fields:
            raise ConfigError(f"{flag} has no option {key.strip()!r}", hint=nearest(name, type(settings).model_fields))
        values[name] = (text.strip(),) if name == "setup" else text.strip()
    try:
        return type(settings).model_validate(values)
    except ValidationError as error:
        lines = [f"{flag} {'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()]
        raise ConfigError("the options of the cluster are not valid:", details=lines) from None


def memory_bytes(written: str) -> int:
    """ "16GB" -> bytes."""
    match = re.fullmatch(r"([\d.]+)([KMGT])B?", written)
    assert match is not None, "checked by _memory"
    return int(float(match[1]) * 1024 ** (1 + "KMGT".index(match[2])))
