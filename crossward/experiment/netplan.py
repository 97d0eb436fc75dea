"""Who has which network: from [net] and [[site]] to a plan for every site."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from crossward import nets
from crossward.data.collection import Collection
from crossward.errors import ConfigError
from crossward.experiment.config import Config, NetSettings, SiteSettings
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

    def __call__(self) -> nn.Module:
        return nets.build(self.name, channels=self.channels, classes=self.classes, size=self.size, **self.options)

    @property
    def kind(self) -> str:
        """The architecture in words: networks of one kind are alike."""
        told = [f"{key}={value}" for key, value in sorted(self.options.items())]
        said = " ".join([self.name, *told, *([f"at {self.size} px"] if self.shrink > 1 else [])])
        return said.replace("/", "|")  # a name in a tree has no slash


Plan = NetPlan | Callable[[], nn.Module]  # picklable


def kind_of(plan: Plan) -> str:
    return plan.kind if isinstance(plan, NetPlan) else plan.__qualname__


def planned(config: Config, collection: Collection, sites: Sequence[str]) -> NetPlan | tuple[NetPlan, ...]:
    """One plan for all, or one for each of the sites."""
    named = config.net.name if isinstance(config.net.name, tuple) else (config.net.name,)
    if len(named) == 1 and not config.site:
        return _plan(named[0], config.net.options, 1, collection)
    own, plans = _by_site(config.site, sites), []
    for turn, site in enumerate(sites):
        asked = own.get(site, SiteSettings())
        net = asked.net or NetSettings(name=named[turn % len(named)], **config.net.options)
        assert isinstance(net.name, str)  # SiteSettings refuses lists
        plans.append(_plan(net.name, net.options, asked.shrink, collection))
    return tuple(plans)


def _plan(name: str, options: dict[str, Any], shrink: int, collection: Collection) -> NetPlan:
    name = DEFAULT_NETS[collection.task] if name == "auto" else name
    if not nets.is_own(name) and nets.NETS[name].task != collection.task:
        fitting = [n for n, entry in nets.NETS.items() if entry.task == collection.task]
        raise ConfigError(f"the net {name!r} does not serve {collection.task}", hint=f"These do: {', '.join(fitting)}.")
    if shrink > 1 and collection.task == "segmentation":
        raise ConfigError("site.shrink serves classification: masks are scored at the size of their images")
    size = collection.size[0] // shrink
    return NetPlan(name, collection.channels, len(collection.classes), size, options, shrink)


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
