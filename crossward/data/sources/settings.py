"""What the [data] sections of all sources have in common. The settings of a source are in its own module."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from annotated_types import Interval, Len
from pydantic import AfterValidator, BeforeValidator, StringConstraints, field_validator

from crossward.core.image_size import MOST_CHANNELS, as_size, sides
from crossward.core.pixel_range import Depth
from crossward.data.archives import Files
from crossward.data.collection import Collection
from crossward.data.decode import FIT, MOST_PIXELS, Frame
from crossward.data.sources.unlabelled import UnlabelledImages, images_by_name
from crossward.errors import ConfigError
from crossward.settings import AbsolutePath, Count, Section
from crossward.user_folders import cache_folder

Colour = Annotated[tuple[float, ...], Len(1, MOST_CHANNELS)]
Channels = Annotated[int, Interval(ge=1, le=MOST_CHANNELS)]
# pixels of a side, or [height, width]
ImageSize = Annotated[Count | tuple[Count, Count], AfterValidator(lambda size: as_size(*sides(size)))]
Loaded = tuple[Collection, list[str]]  # the images, and a line for each file that was left out
Encoding = Literal["utf-8", "latin-1", "cp1252", "utf-16"]  # of a table
Uncertain = Literal["leave out", "negative", "positive"]  # what -1 means in a column of 0 and 1
GroupRule = Callable[[str], str]  # path of an image -> its patient, lesion or slide; empty if it names none


def group_pattern(group: str | None, name: str = "group") -> re.Pattern[str] | None:
    """The regular expression whose first ( ) is the patient, or what `name` says, in a path; None if there is none."""
    if group is None:
        return None
    try:
        pattern = re.compile(group)
    except re.error as error:
        raise ConfigError(f"{name} is not a regular expression: {error}.", details=[group]) from error
    if not pattern.groups:
        noun = "patient" if name == "group" else "class"
        raise ConfigError(
            f"{name} has no ( ), so that it names no {noun}.",
            details=[group],
            hint=rf"Put the {noun}'s part of the path in brackets, as in CNV-(\d+)-.",
        )
    return pattern


def rule_of_pattern(pattern: re.Pattern[str]) -> GroupRule:
    """The first ( ) of the pattern, wherever in the path it is found."""

    def group_of(path: str) -> str:
        found = pattern.search(path)
        return (found[1] or "") if found else ""

    return group_of


def listed(names: object) -> object:
    """One name may be written without a list."""
    return [names] if isinstance(names, str) else names


# "window:brain", "range:percentiles", "shades-of-grey", "brightness": once, before anything else
Operations = Annotated[tuple[str, ...], BeforeValidator(listed)]
# how images get the proportions of `size`: "stretch", "crop", or "centre:200", parts of images
Fit = Annotated[str, StringConstraints(pattern=f"^(?:{FIT})$")]


class SourceSettings(Section):
    """The settings of every source."""

    normalise: Literal["half", "imagenet"] | tuple[Colour, Colour] = "half"  # or [[means], [deviations]] of [0, 1]
    augment: tuple[str, ...] = ()  # "hflip", "crop:4", "rotate:10" ...
    # images that are trained on and tested on: end the run, are left out of training, or stay for a reason that is said
    duplicates: Literal["refuse", "drop", "keep"] = "refuse"
    duplicates_reason: str = ""
    shared_groups: Literal["refuse", "drop"] = "refuse"  # patients on both sides of the split that the data name
    splits: Literal["as given", "ignore"] = "as given"  # train, val and test as the data name them, or made anew

    if TYPE_CHECKING:
        source: str  # each source declares its own names

    @abstractmethod
    def load(self) -> Loaded:
        """Read the images."""

    def group_rule(self) -> GroupRule | None:
        """How the path of a new image names its patient; None where paths do not say it."""
        return None

    def find_images(self, files: Files, listing: Sequence[str], *, named: bool = False) -> UnlabelledImages:
        """The new images among the listed files, found as those of a run are. `named`: a person named this one file,
        which then is an image whatever it is called."""
        return images_by_name(files, listing)


class ImageFileSettings(SourceSettings):
    """The settings of sources that decode image files."""

    prepare: Operations = ()
    size: ImageSize = 64
    channels: Channels = 3
    fit: Fit = "stretch"
    bad_files: Literal["auto", "refuse", "quarantine"] = "auto"  # "auto": left out up to one in twenty, else refused

    many_channels: ClassVar[bool] = False  # whether files may hold other numbers of channels than 1 and 3

    @field_validator("channels")
    @classmethod
    def _has_channels(cls, channels: int) -> int:
        if channels in (1, 3) or cls.many_channels:
            return channels
        raise ValueError("images of this source have 1 (grey) or 3 (colour) channels")

    def decoding(self) -> dict[str, Any]:
        """How a reader decodes the files, as its keyword arguments."""
        return {
            "size": self.size,
            "channels": self.channels,
            "fit": self.fit,
            "bad_files": self.bad_files,
            "prepare": self.prepare,
            "cache": cache_folder() / "images",
        }


class AnyFileSettings(ImageFileSettings):
    """The settings of sources that read what hospitals have, DICOM among it."""

    many_channels: ClassVar[bool] = True
    max_pixels: Count = MOST_PIXELS  # of one image; larger ones are bad files
    burned_in: Literal["quarantine", "keep"] = "quarantine"  # DICOM that may show names in its pixels
    depth: Depth = 8  # bits of a pixel that are kept: 16 for files of more than 8, in grey

    def decoding(self) -> dict[str, Any]:
        more = {"max_pixels": self.max_pixels, "burned_in": self.burned_in == "keep", "depth": self.depth}
        return super().decoding() | more

    def frame(self, classes: int = 0) -> Frame:
        """What every image becomes, with masks of so many classes."""
        keep = self.burned_in == "keep"
        return Frame(self.size, self.channels, self.fit, classes, self.prepare, self.max_pixels, keep, self.depth)


def _known_slices(slices: str) -> str:
    if re.fullmatch(r"all|middle|labelled|every:[1-9]\d*", slices):
        return slices
    raise ValueError('slices are "all", "middle", "labelled" (where a mask is not empty), or "every:5"')


Slices = Annotated[str, AfterValidator(_known_slices)]  # "all", "middle", "every:5", "labelled"


def chosen_slices(slices: str, count: int) -> list[int]:
    """Which of so many slices of a volume or frames of a series are used."""
    if slices == "middle":
        return [count // 2]
    step = int(slices.removeprefix("every:")) if slices.startswith("every:") else 1
    return list(range(0, count, step))


class SmallImageSettings(SourceSettings):
    """The settings of sets of small images that come as arrays."""

    path: AbsolutePath | None = None  # None: found in CROSSWARD_DATA
    size: Count | None = None  # None: as they are
    channels: Literal[1, 3] | None = None
