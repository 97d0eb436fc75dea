"""The two halves of a run whose images are at the hospitals: the coordinator's, without any of them, and a site's, with
its own alone. Both are made from one configuration, so that seeds, networks and methods agree to the bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from crossward import nets
from crossward.config.reading import checked, method_of
from crossward.config.schema import Config
from crossward.core.method import Method
from crossward.data.cache import digest
from crossward.data.collection import Collection
from crossward.data.federation import NOBODY, Federation, Split, warnings
from crossward.data.sources.collect import collect
from crossward.data.sources.settings import SOURCES, Images
from crossward.errors import ConfigError
from crossward.hospitals.kit import OWN
from crossward.names import nearest
from crossward.runs.build import PreparedRun, assembled, partitioned
from crossward.runs.join import READ_ALIKE

NAMED = ("folder", "table", "npz")  # sources whose classes a configuration can name


def coordinator_half(
    config: Config,
    sites: Sequence[str],
    facts: Mapping[str, Any],
    own: Federation | None = None,
    public: Tensor | None = None,
) -> PreparedRun:
    """`facts` is what the sites say of their images: task, classes, channels, size. `own` are images that the
    coordinator holds itself: a validation or test set, a public set; `public`: one that goes before it."""
    refuse_pooled(method_of(config), config.method.name)
    held = own or _hollow(facts)
    here = facts_of(held.collection)
    if other := [f"{key}: {here[key]} here, {facts[key]} at the sites" for key in here if here[key] != facts[key]]:
        raise ConfigError("the coordinator's own images are not like those of the sites", details=other)
    if public is not None:
        held = _with_public(held, public, replace(held.server, train=NOBODY))
    empty = tuple(Split(name, NOBODY, NOBODY, NOBODY) for name in sites)
    made = assembled(config, replace(held, sites=empty))
    return replace(made, run_sites=replace(made.run_sites, away=True))


def refuse_pooled(method: Method, name: str) -> None:
    if method.pooled:
        raise ConfigError(f"{name} trains on the images of all sites in one place, and images never leave one")


def site_half(
    settings: Mapping[str, Any],
    sites: Sequence[str],
    name: str,
    own: Mapping[str, Any],
    numbers: int,
    public: Tensor | None = None,
) -> PreparedRun:
    """`settings`: the run's; `own`: where this site's images are, and what else it says for itself; `public`: (n, H, W,
    C) images that the coordinator gives to everybody."""
    if name not in sites:
        raise ConfigError(f"{name} is not of this federation", hint=f"Its sites are {', '.join(sites)}.")
    config = checked(with_own(settings, own))
    refuse_pooled(method_of(config), config.method.name)
    collection, quarantined = collect(config)
    if not own.get("partition") and not any(collection.sites or ()):  # all of it is this site's, its test set as well
        collection = replace(collection, sites=(name,) * len(collection))
    shared_out = partitioned(config, collection)
    mine = replace(_mine(shared_out, own.get("take")), name=name)
    if not len(mine.train):
        raise ConfigError(f"{name} has no images to train on")
    shared_out = shared_out if public is None else _with_public(shared_out, public, mine)
    everyone = [mine if other == name else Split(other, NOBODY, NOBODY, NOBODY) for other in sites]
    server = Split("server", NOBODY, NOBODY, NOBODY)
    made = assembled(config, replace(shared_out, sites=tuple(everyone), server=server), quarantined, numbers)
    notes = warnings(replace(shared_out, sites=(mine,)))
    return replace(made, warnings=notes)


def _with_public(federation: Federation, images: Tensor, mine: Split) -> Federation:
    """The public set is what the coordinator sends, whatever else is here. It must not hold what the site learns or is
    tested on."""
    own = federation.collection
    if images.shape[1:] != own.images.shape[1:] or images.dtype != own.images.dtype:
        raise ConfigError(f"public images of {tuple(images.shape[1:])} for a site with {tuple(own.images.shape[1:])}")
    hashes = tuple(digest(image.contiguous().numpy().tobytes()) for image in images)
    held = {own.hashes[row] for part in (mine.train, mine.val, mine.test) for row in part.tolist()}
    if both := sum(each in held for each in hashes):
        raise ConfigError(f"{both} of the {len(images)} public images are among this site's own")
    count, none = len(images), ("",) * len(images)
    joined = replace(
        own,
        images=torch.cat([own.images, images]),
        targets=torch.cat([own.targets, own.targets.new_zeros(count, *own.targets.shape[1:])]),
        ids=(*own.ids, *(f"public/{i}" for i in range(count))),
        hashes=(*own.hashes, *hashes),
        groups=own.groups and (*own.groups, *none),
        sites=own.sites and (*own.sites, *none),
        splits=own.splits and (*own.splits, *none),
        file=None,
    )
    return replace(federation, collection=joined, public=torch.arange(len(own), len(own) + count))


def with_own(settings: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The run's settings with the site's before them. Of the run's [data] only how images are to be read is taken: a
    coordinator has no say in which files are opened here, nor in which code is imported."""
    if alien := [key for key in own if key not in OWN]:
        told = [f"{key}: {nearest(key, OWN)}" for key in alien]
        raise ConfigError("the site's own settings hold what is not a site's to say", details=told)
    data = dict(own.get("data") or {})
    if not data:
        raise ConfigError("this site has no [data]: where are its images?")
    known = SOURCES.get(str(data.get("source", "phantom")), Images).model_fields
    alike = {key: settings["data"][key] for key in READ_ALIKE if settings["data"].get(key) is not None and key in known}
    if isinstance(named := settings["data"].get("classes"), list) and data.get("source") in NAMED:
        alike["classes"] = named  # a site may have no image of one
    splits = {key: settings["partition"][key] for key in ("split", "local_split")}
    partition = {**splits, **(own.get("partition") or {"kind": "site"})}
    engine = {**settings["engine"], "name": "local", "strict": False, "device": own.get("device", "auto")}
    made = {**settings, "data": {**alike, **data}, "partition": partition, "engine": engine}
    _check_code(made, own.get("net"))
    return made


def facts_of(collection: Collection) -> dict[str, Any]:
    """In what the images of all sites must be alike, as JSON."""
    told = {"task": collection.task, "classes": list(collection.classes), "channels": collection.channels}
    return told | {"size": list(collection.size)}


def _check_code(settings: Mapping[str, Any], own: Any) -> None:
    """Networks from a person's own code, and files that weights start from, are the site's to name."""
    asked = [settings["net"], *(entry["net"] for entry in settings["site"] if entry.get("net"))]
    names = [n for net in asked for n in (net["name"] if isinstance(net["name"], list) else [net["name"]])]
    allowed = own if isinstance(own, list) else [own]
    if strange := [n for n in names if nets.is_own(n) and n not in allowed]:
        raise ConfigError(
            f"the run asks for networks from code of a person's own: {', '.join(strange)}",
            hint="If you know this code and have it installed, allow it: net = [...] in site.toml.",
        )
    starts = [str(net["start"]) for net in asked if net.get("start") not in (None, "", "imagenet")]
    if strange := [start for start in starts if start not in allowed]:
        raise ConfigError(
            f"the run asks to read {', '.join(strange)} here",
            hint="If this file of weights is here and may be used, allow it: net = [...] in site.toml.",
        )


def _mine(federation: Federation, take: Any) -> Split:
    found = [site for site in federation.sites if take in (None, site.name)]
    if len(found) == 1:
        return found[0]
    names = [site.name for site in federation.sites]
    if take is not None:
        raise ConfigError(f"take = {take!r}: there is no such site in the data. {nearest(str(take), names)}")
    raise ConfigError(
        f"the data here are of {len(names)} sites: {', '.join(names)}",
        hint='Say which is this one: take = "…" in site.toml.',
    )


def _hollow(facts: Mapping[str, Any]) -> Federation:
    height, width = facts["size"]
    segments = facts["task"] == "segmentation"
    images = torch.zeros(0, height, width, facts["channels"], dtype=torch.uint8)
    targets = torch.zeros(0, height, width, dtype=torch.uint8) if segments else torch.zeros(0, dtype=torch.int64)
    collection = Collection("hospitals", facts["task"], tuple(facts["classes"]), images, targets, (), ())
    return Federation(collection, (), Split("server", NOBODY, NOBODY, NOBODY), NOBODY, {"partition": "hospitals"})
