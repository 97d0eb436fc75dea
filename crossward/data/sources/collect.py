"""The configured images: from a data source's settings to a collection."""

from __future__ import annotations

from typing import Any

from crossward.config.schema import Config
from crossward.data.collection import Collection
from crossward.data.sources import settings
from crossward.errors import ConfigError
from crossward.user_folders import cache_folder, data_root


def collect(config: Config) -> tuple[Collection, list[str]]:
    """The configured images, and what was left out of them."""
    match config.data:
        case settings.Phantom() as data:
            from crossward.data.sources.phantom import source as phantom

            shared = {
                k: getattr(data, k) for k in ("sites", "train", "val", "test", "global_test", "seed", "difficulty")
            }
            if data.kind == "polyp":
                return phantom.polyp(size=data.size or 64, **shared), []
            return phantom.blood(size=data.size or 28, skew=data.skew, **shared), []
        case settings.Folder() as data:
            from crossward.data.sources import folder

            made, bad = folder.read(data.path, **_file_options(data), group=data.group, classes=data.classes)
        case settings.Table() as data:
            from crossward.data.sources import table

            made, bad = table.read(data.path, **_file_options(data), root=data.root, classes=data.classes)
        case settings.Npz() as data:
            from crossward.data.sources import npz

            wanted = {k: getattr(data, k) for k in ("size", "channels", "classes", "prepare")}
            return npz.read(data.path, **wanted), []
        case settings.MedMnist() as data:
            from crossward.data.sources import npz

            root = data.root or data_root()
            if root is None:
                raise ConfigError(
                    "data.root is not set", hint="Set it, or CROSSWARD_DATA, to the folder of the .npz files."
                )
            return npz.medmnist(data.name, root=root, size=data.size, prepare=data.prepare), []
        case settings.Pbc() as data:
            from crossward.data.sources import pbc

            place = data.path or pbc.located(data_root())
            made, bad = pbc.read(place, **_file_options(data), split=data.split, split_seed=data.split_seed)
        case settings.Ham10000() as data:
            from crossward.data.sources import ham10000

            made, bad = ham10000.read(data.path or ham10000.located(data_root()), **_file_options(data))
        case settings.FedIsic() as data:
            from crossward.data.sources import fed_isic

            listing, images = fed_isic.located(data_root(), listing=data.listing, images=data.path)
            made, bad = fed_isic.read(images, listing=listing, **_file_options(data))
        case settings.Polyps() as data:
            from crossward.data.sources import polyps

            place = data.path or polyps.located(data_root(), data.source)
            made, bad = polyps.read(place, name=data.source, **_file_options(data))
        case settings.PolypSets() as data:
            from crossward.data.sources import polyp_sets

            places = polyp_sets.located(data_root(), data.sets, dict(data.paths.items()))
            made, bad = polyp_sets.read(places, **_file_options(data))
        case settings.BreaKHis() as data:
            from crossward.data.sources import breakhis

            made, bad = breakhis.read(
                data.path or breakhis.located(data_root()),
                **_file_options(data),
                magnification=data.magnification,
                classes=data.classes,
            )
        case settings.Oct2017() as data:
            from crossward.data.sources import oct2017

            made, bad = oct2017.read(data.path or oct2017.located(data_root()), **_file_options(data), split=data.split)
        case settings.Cifar() as data:
            from crossward.data.sources import cifar

            place = data.path or cifar.located(data_root(), data.source)
            return cifar.read(place, name=data.source, size=data.size, channels=data.channels), []
        case settings.Idx() as data:
            from crossward.data.sources import idx

            place = data.path or idx.located(data_root(), data.source)
            return idx.read(place, name=data.source, size=data.size, channels=data.channels), []
        case settings.Femnist() as data:
            from crossward.data.sources import femnist as leaf

            chosen = {k: getattr(data, k) for k in ("size", "channels", "max_samples", "users", "users_seed")}
            made, bad = leaf.read(data.path or leaf.located(data_root()), **chosen)
    return made, [str(b) for b in bad]


def _file_options(data: settings.Decoded) -> dict[str, Any]:
    shared = {k: getattr(data, k) for k in ("size", "channels", "fit", "bad_files", "prepare")}
    return shared | {"cache": cache_folder() / "images"}
