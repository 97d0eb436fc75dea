"""The configuration of a run. The options of a method, a plugin or training are the fields of its dataclass."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Interval
from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    SerializeAsAny,
    StringConstraints,
    model_validator,
)
from pydantic_core import PydanticKnownError

from crossward.core.metric_sum import summed_metrics
from crossward.core.robust import Robust
from crossward.core.training import Training
from crossward.data.sources import SOURCES, settings_class
from crossward.data.sources.phantom.source import PhantomSettings
from crossward.data.sources.settings import SourceSettings
from crossward.nets import NETS
from crossward.privacy.settings import PrivacySettings
from crossward.settings import AbsolutePath, Count, Positive, Section
from crossward.text.encoders import resolve_encoder_name

Fraction = Annotated[float, Interval(ge=0, le=1)]
Fractions = tuple[Fraction, Fraction, Fraction]


def _settings_of_source(section: Any) -> Any:
    """The section [data] as the settings of the source that it names."""
    if isinstance(section, SourceSettings):
        return section
    if not isinstance(section, dict):
        raise PydanticKnownError("model_attributes_type")
    name = section.get("source")
    if not isinstance(name, str) or name not in SOURCES:
        known = ", ".join(map(repr, SOURCES))
        raise PydanticKnownError(
            "union_tag_invalid", {"discriminator": "'source'", "tag": str(name), "expected_tags": known}
        )
    return settings_class(name).model_validate(section)


Data = Annotated[SerializeAsAny[SourceSettings], BeforeValidator(_settings_of_source)]


class RunSettings(Section):
    name: Annotated[str, StringConstraints(pattern=r"^\w[\w .+-]*$")] | None = (
        None  # of its folder; None: made from the method, the data and the seed
    )
    out: Path = Path("runs")  # the folder of run directories
    seed: Annotated[int, Interval(ge=0, lt=2**31)] = 0
    batch_order: Annotated[int, Interval(ge=0, lt=2**31)] = 0  # another number: only the order of batches is another
    rounds: Count = 20
    participation: Annotated[float, Interval(gt=0, le=1)] = 1.0  # share of the sites asked in a round
    min_clients: Count = 1  # fewer left in a round end the run


class PartitionSettings(Section):
    name: str | None = None  # store it under this name and use it again
    file: AbsolutePath | None = None  # or take it from this manifest
    kind: Literal["auto", "iid", "dirichlet", "dirichlet-balanced", "per-class", "counts", "site", "group"] = "auto"
    sites: Count | None = None
    beta: Positive = 0.5
    alphas: Positive | tuple[Positive, ...] | None = None  # per-class: one for all, or one for each class
    removal: Annotated[float, Interval(ge=0, lt=1)] = 0.0  # per-class: chance that a site lacks a class
    counts: str | tuple[tuple[Annotated[int, Ge(0)], ...], ...] | None = None  # counts: "ich", or a row for each site
    imbalance: Annotated[float, Ge(1)] = 1.0  # the largest class over the smallest, of a long tail
    min_size: Count | None = None
    split: Fractions = (0.7, 0.1, 0.2)
    local_split: Fractions | None = None
    global_split: Fractions | None = None  # held out for the whole federation before anything is dealt
    folds: Annotated[int, Interval(ge=2, le=100)] | None = None  # cross validation: the test set is one of so many
    fold: Annotated[int, Ge(0)] | Literal["seed"] = 0  # which one; "seed": that of run.seed, from 0 on and round again
    public: Annotated[float, Interval(ge=0, lt=1)] = 0.0
    group_aware: bool = True
    limit: Count | None = None  # training images in all
    leave_out: tuple[str, ...] = ()  # sites that take no part; they may join later
    seed: Annotated[int, Interval(ge=0, lt=2**31)] | None = None  # None: run.seed


class Named(Section):
    """A name and the options that only the named thing knows; they are checked where it is made."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str = "auto"

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class NetSettings(Named):
    name: str | tuple[str, ...] = "auto"  # type: ignore[assignment]  # several: the sites take turns

    @model_validator(mode="after")
    def _placed(self) -> NetSettings:
        """A file that the weights start from may be named relative to where the run begins."""
        start = self.options.get("start", "")
        names = (self.name,) if isinstance(self.name, str) else self.name
        if isinstance(start, str) and start not in ("", "imagenet") and any(name in NETS for name in names):
            self.__pydantic_extra__["start"] = str(Path(start).expanduser().absolute())  # type: ignore[index]
        return self


def _one(net: NetSettings) -> NetSettings:
    if not isinstance(net.name, str):
        raise ValueError("a site has one net")
    return net


def _tables(asked: Any) -> Any:
    if isinstance(asked, dict):
        raise ValueError("write [[site]], once for each site")
    return asked


AnyNet = Annotated[NetSettings, BeforeValidator(lambda net: {"name": net} if isinstance(net, str | list) else net)]
OwnNet = Annotated[AnyNet, AfterValidator(_one)]


class SiteSettings(Section):
    """What a site has of its own."""

    name: str | None = None  # None in all entries: in the order of the federation
    net: OwnNet | None = None  # "densenet", or { name = "densenet", width = 0.5 }; None: as [net] says
    shrink: Count = 1  # it sees images at 1 / shrink of their size


class EngineSettings(Section):
    name: Literal["local", "pool"] = "local"
    workers: Count | Literal["auto"] = "auto"  # processes of the pool; auto: one a device, on the CPU one a core
    threads: Count = 1  # of each fit; part of what a result depends on
    device: str | tuple[str, ...] = "auto"  # "cpu", "cuda:1", "mps"; several: ["cuda:0", "cuda:1"], or "all"
    deterministic: bool = False  # on accelerators: algorithms that give the same bits each time, some of them slower
    compile: bool = False  # networks by torch.compile; the first batch of each shape takes a minute
    strict: bool = False  # local only: everything through the codec, networks built anew
    memory_mib: Count | Literal["auto"] = "auto"  # client memory beyond this lives on disk; auto: 1/32 of the machine's
    device_images_mib: Annotated[int, Ge(0)] = 2048  # images are kept on a device if they take no more


class EvaluateSettings(Section):
    every: Annotated[int, Ge(0)] = 1  # rounds; the last is always evaluated; 0: never
    first: Count = 1  # the round before which nothing is evaluated
    # the metric, or the sum of metrics ("f1+accuracy"), that chooses the best round; None: macro F1 or Dice
    select: Annotated[str, AfterValidator(lambda name: "+".join(summed_metrics(name)))] | None = None
    view: Literal["local", "global"] = "local"  # of validation
    keep_predictions: bool | Literal["best", "all"] = "best"  # of the best and the last round; true: all, false: none


class CheckpointSettings(Section):
    every: Count | Literal["auto"] = "auto"  # rounds; auto: as often as writing takes a tenth of the time at most


class ObserveSettings(Section):
    """Logs for other programs, besides the run directory; they change no result."""

    tensorboard: bool = False  # event files in the run directory
    mlflow: bool = False  # a database beside the run directories


class TextSettings(Section):
    """What methods that know the classes by their names are told of them."""

    # minilm, biomedclip, random, a folder, or a name on the hub
    encoder: Annotated[str, AfterValidator(resolve_encoder_name)] = "minilm"
    lexicon: str | None = None  # a built-in list of classes; None: the one that has these classes
    concepts: dict[str, str] = {}  # class -> words, before the lexicon's
    nouns: tuple[str, ...] = ()  # what the pictures are called, in place of the lexicon's
    templates: tuple[str, ...] = ()  # in place of frames x nouns; each holds {} once
    fraction: Annotated[float, Interval(gt=0, le=1)] = 1.0  # share of the templates, chosen by chance
    seed: Annotated[int, Interval(ge=0, lt=2**31)] = 0  # of that choice


class Config(Section):
    run: RunSettings = RunSettings()
    data: Data = PhantomSettings()
    partition: PartitionSettings = PartitionSettings()
    task: dict[str, Any] = {}
    net: AnyNet = NetSettings()
    site: Annotated[tuple[SiteSettings, ...], BeforeValidator(_tables)] = ()
    method: Named = Named(name="fedavg")
    plugin: dict[str, dict[str, Any]] = {}
    train: Annotated[Training, Field(default_factory=Training)]
    text: TextSettings = TextSettings()
    engine: EngineSettings = EngineSettings()
    evaluate: EvaluateSettings = EvaluateSettings()
    checkpoint: CheckpointSettings = CheckpointSettings()
    observe: ObserveSettings = ObserveSettings()
    robust: Annotated[Robust, Field(default_factory=Robust)]
    privacy: PrivacySettings = PrivacySettings()
    _parts: Any = PrivateAttr(default=None)  # method and plugins as config/options.py has built them

    @model_validator(mode="before")
    @classmethod
    def _phantom_by_default(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(data.get("data"), dict) and "source" not in data["data"]:
            return data | {"data": {"source": "phantom"} | data["data"]}
        return data

    @property
    def method_name(self) -> str:
        return self.method.name.split("+")[0]

    @property
    def plugin_names(self) -> list[str]:
        """`fedavg+prox+ft` carries prox and ft."""
        return self.method.name.split("+")[1:]

    def canonical(self) -> dict[str, Any]:
        """Every setting as JSON."""
        full: dict[str, Any] = self.model_dump(mode="json")
        return full
