"""Who has which network: from [net] and [[site]] to a plan for every site."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from crossward import nets
from crossward.config.schema import Config, NetSettings, SiteSettings
from crossward.core.image_size import Size, as_size, sides, size_words
from crossward.core.net import Net
from crossward.core.seeds import seeded
from crossward.data.collection import Collection
from crossward.data.partition import natural_key
from crossward.errors import ConfigError
from crossward.names import nearest

DEFAULT_NETS = {"classification": "cnn", "multi-label": "cnn", "segmentation": "unet"}


@dataclass(frozen=True)
class NetPlan:
    """How a site's network is made, and how large it sees images."""

    name: str
    channels: int
    classes: int
    size: Size  # pixels that the network sees, of a side, or height and width
    options: dict[str, Any] = field(default_factory=dict)
    shrink: int = 1  # how much larger the images are

    def __call__(self) -> Net:
        try:
            return nets.build(self.name, channels=self.channels, classes=self.classes, size=self.size, **self.options)
        except ConfigError as error:
            if self.shrink == 1:
                raise
            hint = f"{error.hint} The site sees images at 1 / {self.shrink} of their size (shrink).".strip()
            raise ConfigError(error.what, details=error.details, hint=hint) from None

    @property
    def architecture(self) -> str:
        """The architecture in words: equal for networks that are alike, however their options are written."""
        defaults = nets.NETS[self.name].options if self.name in nets.NETS else {}
        words = [self.name]
        for option, value in sorted(self.options.items()):
            if option not in defaults or value != defaults[option]:
                words.append(f"{option}={_shortest(value)}")
        if self.shrink > 1:
            words.append(f"at {size_words(self.size)}")
        return " ".join(words).replace("/", "|")  # a name in a tree has no slash


def _shortest(value: object) -> object:
    """2.0 as 2."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


NetFactory = NetPlan | Callable[[], Net]  # picklable


def architecture_of(factory: NetFactory) -> str:
    """The architecture in words; a plain function stands for one by its name, a partial also by its arguments."""
    if isinstance(factory, NetPlan):
        return factory.architecture
    if isinstance(factory, partial):
        arguments = [*map(repr, factory.args), *(f"{key}={value!r}" for key, value in factory.keywords.items())]
        return " ".join([architecture_of(factory.func), *arguments]).replace("/", "|")
    return factory.__qualname__


def plan_nets(config: Config, collection: Collection, sites: Sequence[str]) -> NetPlan | tuple[NetPlan, ...]:
    """One plan for all, or one for each of the sites."""
    one_for_all = not config.site and len(_listed_nets(config)) == 1
    planned = sites[:1] if one_for_all else sites
    settings = settings_by_site(config, planned)
    plans = [_plan(site, settings[site], collection) for site in planned]
    for plan in {plan.architecture: plan for plan in plans}.values():
        _check_task(plan, collection.task)
    return plans[0] if one_for_all else tuple(plans)


def settings_by_site(config: Config, sites: Sequence[str]) -> dict[str, SiteSettings]:
    """The net of each site, and how small it sees images: as [[site]] says, or else [net]. Sites that are left out of
    the run have their turns and their entries all the same: they may join later."""
    listed = _listed_nets(config)
    everyone = list(sites)
    if config.partition.leave_out:
        everyone = sorted({*sites, *config.partition.leave_out}, key=natural_key)
    entries = _entries_by_site(config.site, everyone)
    settings = {}
    for turn, site in enumerate(everyone):
        entry = entries.get(site, SiteSettings())
        usual = listed[turn % len(listed)]
        net = entry.net or NetSettings(name=usual, **config.net.options)
        if net.name == "auto":  # options alone: of the net that the site would have
            net = NetSettings(name=usual, **net.options)
        settings[site] = SiteSettings(name=site, net=net, shrink=entry.shrink)
    return settings


def _listed_nets(config: Config) -> tuple[str, ...]:
    names = config.net.name if isinstance(config.net.name, tuple) else (config.net.name,)
    if not names:
        raise ConfigError("net.name is an empty list", hint="Name a net, or several for the sites to take turns.")
    return names


def _plan(site: str, settings: SiteSettings, collection: Collection) -> NetPlan:
    assert settings.net is not None
    height, width = collection.size
    shrink = settings.shrink
    if shrink > 1 and (height % shrink or width % shrink):
        pixels = height if height == width else f"{height} x {width}"
        raise ConfigError(
            f"{site}: shrink = {shrink} does not divide the {pixels} pixels of an image",
            hint="Its last rows and columns would never be seen: choose another data.size.",
        )
    if shrink > 1 and collection.task == "segmentation":
        raise ConfigError("site.shrink serves classification: masks are scored at the size of their images")
    name = str(settings.net.name)
    if name == "auto":
        name = DEFAULT_NETS[collection.task]
    size = as_size(height // shrink, width // shrink)
    return NetPlan(name, collection.channels, len(collection.classes), size, settings.net.options, shrink)


def _check_task(plan: NetPlan, task: str) -> None:
    """The network serves the task; a user's own net shows by its logits which it serves."""
    if nets.is_user_net(plan.name):
        with seeded(0), torch.no_grad():
            logits = plan().eval()(torch.zeros(2, plan.channels, *sides(plan.size)))
        served = "segmentation" if logits.ndim == 4 else "classification"
    else:
        served = nets.NETS[plan.name].task
    wanted = "segmentation" if task == "segmentation" else "classification"  # logits for each class of an image
    if served != wanted:
        fitting = [name for name, entry in nets.NETS.items() if entry.task == wanted]
        raise ConfigError(f"the net {plan.name!r} does not serve {task}", hint=f"These do: {', '.join(fitting)}.")


def _entries_by_site(entries: Sequence[SiteSettings], sites: Sequence[str]) -> dict[str, SiteSettings]:
    """Entries of [[site]] by the site they are for: all by name, or all in order."""
    names = [entry.name for entry in entries]
    if not any(names):
        if len(entries) > len(sites):
            raise ConfigError(f"there are {len(entries)} entries of [[site]] for {len(sites)} sites")
        return dict(zip(sites, entries))
    mistakes = []
    if not all(names):
        mistakes.append("an entry without a name, where others have one")
    mistakes += [
        f"{name!r}: there is no such site. {nearest(name, sites)}" for name in names if name and name not in sites
    ]
    mistakes += [f"{name!r} has {names.count(name)} entries" for name in dict.fromkeys(names) if names.count(name) > 1]
    if mistakes:
        raise ConfigError("[[site]] does not fit the federation", details=mistakes)
    return {name: entry for name, entry in zip(names, entries) if name}
