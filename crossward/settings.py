"""Settings: the base class of every section of a configuration, and the field types that sections share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from annotated_types import Ge, Gt, Interval
from pydantic import AfterValidator, BaseModel, ConfigDict

Count = Annotated[int, Ge(1)]
NonNegative = Annotated[int, Ge(0)]
Positive = Annotated[float, Gt(0)]
Seed = Annotated[int, Interval(ge=0, lt=2**31)]
# a run may be resumed from another folder
AbsolutePath = Annotated[Path, AfterValidator(lambda path: path.expanduser().absolute())]


class Section(BaseModel):
    """A section of a configuration: unknown keys are refused, and values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True)
