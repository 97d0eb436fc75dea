"""Who has which network: from [net] and [[site]] to a plan for every site."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from crossward import nets
from crossward.config.schema import Config, NetSettings, SiteSettings
from crossward.core.net import Net
from crossward.core.seeds import seeded
from crossward.data.collection import Collection
from crossward.data.partition import natural
from crossward.errors import ConfigError
from crossward.names import nearest

DEFAULT_NETS = {"classification": "cnn", "segmentation": "unet"}


@dataclass(frozen=True)
class NetPlan:
    """How a site's network is made, and how large it sees images."""

    name: str
    channels: int
    classes: int
    size: int  # pixels that the network sees
    options: dict[str, Any] = field(default_factory=dict)
    shrink: int = 1  # how much larger the images are

    def __call__(self) -> Net:
        sizes = {"channels": self.channels, "classes": self.classes, "size": self.size}
        try:
            return nets.build(self.name, **sizes, **self.options)
        except ConfigError as error:
            if self.shrink == 1:
                raise
            hint = f"{error.hint} The site sees images at 1 / {self.shrink} of their size (shrink).".strip()
            raise ConfigError(error.what, details=error.details, hint=hint) from None

    @property
    def architecture(self) -> str:
        """The architecture in words: equal for networks that are alike, however their options are written."""
        usual = nets.NETS[self.name].options if self.name in nets.NETS else {}
        asked = {key: value for key, value in sorted(self.options.items()) if key not in usual or value != usual[key]}
        told = [f"{key}={_plain(value)}" for key, value in asked.items()]
        said = " ".join([self.name, *told, *([f"at {self.size} px"] if self.shrink > 1 else [])])
        return said.replace("/", "|")  # a name in a tree has no slash


def _plain(value: object) -> object:
    """2.0 as 2."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Plan = NetPlan | Callable[[], Net]  # picklable


def architecture_of(plan: Plan) -> str:
    """The architecture in words; a plain function stands for one by its name, a partial also by its arguments."""
    if isinstance(plan, NetPlan):
        return plan.architecture
    if isinstance(plan, partial):
        given = [*map(repr, plan.args), *(f"{key}={value!r}" for key, value in plan.keywords.items())]
        return " ".join([architecture_of(plan.func), *given]).replace("/", "|")
    return plan.__qualname__


def planned(config: Config, collection: Collection, sites: Sequence[str]) -> NetPlan | tuple[NetPlan, ...]:
    """One plan for all, or one for each of the sites."""
    if collection.size[0] != collection.size[1]:
        raise ConfigError(
            f"images of {collection.size[0]} x {collection.size[1]} pixels: networks take square ones",
            hint="Set data.size.",
        )
    wanted = asked_by(config, sites)
    plans = []
    for site in sites:
        asked = wanted[site]
        if asked.shrink > 1 and collection.size[0] % asked.shrink:
            raise ConfigError(
                f"{site}: shrink = {asked.shrink} does not divide the {collection.size[0]} pixels of an image",
                hint="Its last rows and columns would never be seen: choose another data.size.",
            )
        assert asked.net is not None
        plans.append(_plan(str(asked.net.name), asked.net.options, asked.shrink, collection))
    for plan in {plan.architecture: plan for plan in plans}.values():
        _serving(plan, collection.task)
    one_for_all = not config.site and len(_named(config)) == 1
    return plans[0] if one_for_all else tuple(plans)


def asked_by(config: Config, sites: Sequence[str]) -> dict[str, SiteSettings]:
    """The net, and how small it sees images, of each site: as [[site]] says, or else [net]. Sites that are left out of
    the run have their turns and their entries all the same: they may join later."""
    every, named = sorted({*sites, *config.partition.leave_out}, key=natural), _named(config)
    every = every if config.partition.leave_out else list(sites)
    own = _by_site(config.site, every)
    found = {}
    for turn, site in enumerate(every):
        asked = own.get(site, SiteSettings())
        usual = named[turn % len(named)]
        net = asked.net or NetSettings(name=usual, **config.net.options)
        if net.name == "auto":  # options alone: of the net that the site would have
            net = NetSettings(name=usual, **net.options)
        found[site] = SiteSettings(name=site, net=net, shrink=asked.shrink)
    return found


def _named(config: Config) -> tuple[str, ...]:
    named = config.net.name if isinstance(config.net.name, tuple) else (config.net.name,)
    if not named:
        raise ConfigError("net.name is an empty list", hint="Name a net, or several for the sites to take turns.")
    return named


def _plan(name: str, options: dict[str, Any], shrink: int, collection: Collection) -> NetPlan:
    name = DEFAULT_NETS[collection.task] if name == "auto" else name
    if shrink > 1 and collection.task == "segmentation":
        raise ConfigError("site.shrink serves classification: masks are scored at the size of their images")
    size = collection.size[0] // shrink
    return NetPlan(name, collection.channels, len(collection.classes), size, options, shrink)


def _serving(plan: NetPlan, task: str) -> NetPlan:
    """The plan of a network that serves the task; one of a person's own says by its logits which it serves."""
    if nets.is_own(plan.name):
        with seeded(0), torch.no_grad():
            logits = plan().eval()(torch.zeros(2, plan.channels, plan.size, plan.size))
        served = "segmentation" if logits.ndim == 4 else "classification"
    else:
        served = nets.NETS[plan.name].task
    if served != task:
        fitting = [name for name, entry in nets.NETS.items() if entry.task == task]
        raise ConfigError(f"the net {plan.name!r} does not serve {task}", hint=f"These do: {', '.join(fitting)}.")
    return plan


def _by_site(asked: Sequence[SiteSettings], sites: Sequence[str]) -> dict[str, SiteSettings]:
    """Entries of [[site]] by the site they are for: all by name, or all in order."""
    names = [entry.name for entry in asked]
    if not any(names):
        if len(asked) > len(sites):
            raise ConfigError(f"there are {len(asked)} entries of [[site]] for {len(sites)} sites")
        return dict(zip(sites, asked))
    wrong = ["an entry without a name, where others have one"] if not all(names) else []
    wrong += [
        f"{name!r}: there is no such site. {nearest(name, sites)}" for name in names if name and name not in sites
    ]
    wrong += [f"{name!r} has {names.count(name)} entries" for name in dict.fromkeys(names) if names.count(name) > 1]
    if wrong:
        raise ConfigError("[[site]] does not fit the federation", details=wrong)
    return {name: entry for name, entry in zip(names, asked) if name}
