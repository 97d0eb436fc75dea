"""Building a run whose images are at the hospitals: the coordinator's part, without images, and a site's part, with its
own images only. Both are built from one configuration, so that seeds, networks and methods agree to the bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from crossward import nets
from crossward.config.reading import config_from, method_of
from crossward.config.schema import Config
from crossward.core.bit_depth import PIXEL_TYPES
from crossward.core.method import Method
from crossward.core.task import blank_targets
from crossward.data.audit import warnings
from crossward.data.collection import Collection
from crossward.data.federation import NO_ROWS, Federation, Split
from crossward.data.near_leaks import near_leak_notes, near_leaks
from crossward.data.sealed_files import digest
from crossward.data.sources import setting_names
from crossward.errors import ConfigError
from crossward.hospitals.kit_checks import SITE_SETTINGS
from crossward.hospitals.refusal import Refusal
from crossward.hospitals.site_limits import NO_LIMITS, SiteLimits
from crossward.hospitals.site_split import SiteSplit
from crossward.names import nearest
from crossward.runs.build import PreparedRun, assemble, partitioned
from crossward.runs.devices import chosen_devices
from crossward.runs.join import READ_ALIKE
from crossward.user_folders import cache_folder

SOURCES_WITH_CLASS_NAMES = ("folder", "table", "dicom", "nifti", "npz")  # whose classes a configuration can name
FOLD_SETTINGS = ("folds", "fold", "seed")  # the seed as well: the folds of one seed belong together
EMPTY_SERVER = Split("server", NO_ROWS, NO_ROWS, NO_ROWS)


def build_coordinator_run(
    config: Config,
    sites: Sequence[str],
    facts: Mapping[str, Any],
    own: Federation | None = None,
    public: Tensor | None = None,
) -> PreparedRun:
    """The coordinator's part of a run.

    `facts` describe the images of all sites: task, classes, channels, size, depth. `own` holds images of the
    coordinator itself, such as a test set or a public set; the images `public`, if given, replace its public set.
    """
    refuse_pooled_method(method_of(config), config.method.name)
    federation = _empty_federation(facts) if own is None else own
    own_facts = image_facts(federation.collection)
    differences = [
        f"{key}: {own_facts[key]} here, {facts[key]} at the sites" for key in own_facts if own_facts[key] != facts[key]
    ]
    if differences:
        raise ConfigError("the coordinator's own images are not like those of the sites", details=differences)
    if public is not None:
        evaluated = replace(federation.server, train=NO_ROWS)
        federation = _with_public_images(federation, public)
        shared = shared_images(federation, evaluated)
        if shared:
            raise ConfigError(f"{shared} of the {len(public)} public images are among the coordinator's own")
    empty_sites = tuple(Split(name, NO_ROWS, NO_ROWS, NO_ROWS) for name in sites)
    return assemble(config, replace(federation, sites=empty_sites), remote=True)


def refuse_pooled_method(method: Method, name: str) -> None:
    """Refuse a method that needs the images of all sites in one place."""
    if method.pooled:
        raise Refusal(f"{name} trains on the images of all sites in one place, and images never leave one")


def build_site_run(
    run_settings: Mapping[str, Any],
    sites: Sequence[str],
    name: str,
    site_settings: Mapping[str, Any],
    text_size: int,
    public: Tensor | None = None,
    *,
    limits: SiteLimits = NO_LIMITS,
    site_split: SiteSplit | None = None,
) -> PreparedRun:
    """A site's part of a run. What is wrong with the run is a Refusal, which the coordinator is told of; other errors
    are of the site's own images and settings.

    `run_settings` is the configuration of the run; `site_settings` says where this site's images are, see
    `merge_site_settings`. `public` are (n, H, W, C) images that the coordinator sends to every site. `site_split` keeps
    the split of earlier runs.
    """
    if name not in sites:
        raise Refusal(f"{name} is not of this federation", hint=f"Its sites are {', '.join(sites)}.")
    settings = merge_site_settings(run_settings, site_settings)
    if site_split is not None:
        deals = bool(site_settings.get("partition"))
        settings["partition"] = site_split.fix(settings["partition"], int(run_settings["run"]["seed"]), deals=deals)
    config = config_from(settings)
    limits.check_config(config, site_settings["data"])
    refuse_pooled_method(method_of(config), config.method.name)
    chosen_devices(config.engine.device)  # refused where it is this site's own setting
    limits.make_room_in_cache(cache_folder() / "images", config)
    collection, quarantined = config.data.load()
    names_sites = any(collection.sites or ())
    if not site_settings.get("partition") and not names_sites:  # all images are this site's, its test set as well
        collection = replace(collection, sites=(name,) * len(collection))
    federation = partitioned(config, collection)
    split = replace(_choose_split(federation, site_settings.get("take")), name=name)
    if not len(split.train):
        raise ConfigError(f"{name} has no images to train on")
    near = near_leaks(replace(federation, sites=(split,), server=EMPTY_SERVER, public=NO_ROWS))
    if public is not None:
        federation = _with_public_images(federation, public)
    all_sites = [split if other == name else Split(other, NO_ROWS, NO_ROWS, NO_ROWS) for other in sites]
    run_federation = replace(federation, sites=tuple(all_sites), server=EMPTY_SERVER)
    try:
        prepared = assemble(config, run_federation, quarantined, text_size=text_size)
    except ConfigError as error:  # of the method and the networks, which are the run's
        raise Refusal(error.what, details=error.details, hint=error.hint) from error
    about_data = [*warnings(replace(federation, sites=(split,))), *near_leak_notes(near)]
    return replace(prepared, warnings=about_data, near_leaks=near)


def shared_images(federation: Federation, split: Split) -> int:
    """How many of the public images are in `split` as well. Whoever holds the public set must not learn this of a site:
    it would tell of each image whether that is a patient of the site."""
    hashes = federation.collection.hashes
    own_hashes = {hashes[row] for part in (split.train, split.val, split.test) for row in part.tolist()}
    return sum(hashes[row] in own_hashes for row in federation.public.tolist())


def public_hashes(images: Tensor) -> tuple[str, ...]:
    return tuple(digest(image.contiguous().numpy().tobytes()) for image in images)


def _with_public_images(federation: Federation, images: Tensor) -> Federation:
    """The federation with `images` as its public set."""
    own = federation.collection
    if images.shape[1:] != own.images.shape[1:] or images.dtype != own.images.dtype:
        sent, held = (
            f"{tuple(some.shape[1:])} {str(some.dtype).removeprefix('torch.')}" for some in (images, own.images)
        )
        raise Refusal(f"public images of {sent} for a site with {held}")
    hashes = public_hashes(images)
    count = len(images)
    unknown = ("",) * count
    collection = replace(
        own,
        images=torch.cat([own.images, images]),
        targets=torch.cat([own.targets, own.targets.new_zeros(count, *own.targets.shape[1:])]),
        ids=(*own.ids, *(f"public/{i}" for i in range(count))),
        hashes=(*own.hashes, *hashes),
        groups=own.groups and (*own.groups, *unknown),
        sites=own.sites and (*own.sites, *unknown),
        splits=own.splits and (*own.splits, *unknown),
        file=None,
        masks_file=None,
    )
    return replace(federation, collection=collection, public=torch.arange(len(own), len(own) + count))


def merge_site_settings(run_settings: Mapping[str, Any], site_settings: Mapping[str, Any]) -> dict[str, Any]:
    """The run's settings, overridden by those of the site.

    Of the run's [data] only how images are read is used: a coordinator decides neither which files are opened at a
    site nor which code is imported there.
    """
    unknown = [key for key in site_settings if key not in SITE_SETTINGS]
    if unknown:
        details = [f"{key}: {nearest(key, SITE_SETTINGS)}" for key in unknown]
        raise ConfigError("the site's own settings hold what is not a site's to say", details=details)
    if not site_settings.get("data"):
        raise ConfigError("this site has no [data]: where are its images?")
    keys = ("split", "local_split", *(FOLD_SETTINGS if run_settings["partition"].get("folds") else ()))
    splits = {key: run_settings["partition"][key] for key in keys}
    device = site_settings.get("device", "auto")
    settings = {
        **run_settings,
        "data": _merge_data_settings(run_settings["data"], site_settings["data"]),
        "partition": {**splits, **(site_settings.get("partition") or {"kind": "site"})},
        "engine": {**run_settings["engine"], "name": "local", "strict": False, "device": device},
    }
    check_allowed_nets(settings, site_settings.get("net"), "site.toml")
    return settings


def _merge_data_settings(run_data: Mapping[str, Any], site_data: Mapping[str, Any]) -> dict[str, Any]:
    source = str(site_data.get("source", "phantom"))
    known = setting_names(source)
    merged = {key: run_data[key] for key in READ_ALIKE if key in known and run_data.get(key) is not None}
    classes = run_data.get("classes")
    if isinstance(classes, list) and source in SOURCES_WITH_CLASS_NAMES:
        merged["classes"] = classes  # the site may have no image of one of them
    return {**merged, **site_data}


def image_facts(collection: Collection) -> dict[str, Any]:
    """In what the images of all sites must agree, as JSON."""
    return {
        "task": collection.task,
        "classes": list(collection.classes),
        "channels": collection.channels,
        "size": list(collection.size),
        "depth": collection.depth,
    }


def check_allowed_nets(settings: Mapping[str, Any], allowed: Any, file: str) -> None:
    """Refuse networks from a person's own code, and files of initial weights, that a file of this machine (site.toml,
    federation.toml) does not allow by name."""
    net_settings = [settings["net"], *(entry["net"] for entry in settings["site"] if entry.get("net"))]
    names: list[str] = []
    for net in net_settings:
        names += net["name"] if isinstance(net["name"], list) else [net["name"]]
    allowed_names = allowed if isinstance(allowed, list) else [allowed]
    unknown = [name for name in names if nets.is_user_net(name) and name not in allowed_names]
    if unknown:
        raise Refusal(
            f"the run asks for networks from code of a person's own: {', '.join(unknown)}",
            hint=f"If you know this code and have it installed, allow it: net = [...] in {file}.",
        )
    files = [str(net["start"]) for net in net_settings if net.get("start") not in (None, "", "imagenet")]
    unknown = [file for file in files if file not in allowed_names]
    if unknown:
        raise Refusal(
            f"the run asks to read {', '.join(unknown)} here",
            hint=f"If this file of weights is here and may be used, allow it: net = [...] in {file}.",
        )


def _choose_split(federation: Federation, take: Any) -> Split:
    """The split of this site: the one called `take`, or the only one."""
    candidates = [site for site in federation.sites if take in (None, site.name)]
    if len(candidates) == 1:
        return candidates[0]
    names = [site.name for site in federation.sites]
    if take is not None:
        raise ConfigError(f"take = {take!r}: there is no such site in the data. {nearest(str(take), names)}")
    raise ConfigError(
        f"the data here are of {len(names)} sites: {', '.join(names)}",
        hint='Say which is this one: take = "…" in site.toml.',
    )


def _empty_federation(facts: Mapping[str, Any]) -> Federation:
    """A federation without images, for a coordinator that has none."""
    height, width = facts["size"]
    images = torch.zeros(0, height, width, facts["channels"], dtype=PIXEL_TYPES[facts["depth"]])
    targets = blank_targets(facts["task"], 0, len(facts["classes"]), (height, width))
    collection = Collection("hospitals", facts["task"], tuple(facts["classes"]), images, targets, (), ())
    return Federation(collection, (), EMPTY_SERVER, NO_ROWS, {"partition": "hospitals"})
