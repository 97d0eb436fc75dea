"""Which methods differential privacy covers, and why the others not.

With an image or a patient as the unit, two things must hold: what leaves the site is weights that only noisy gradients
have touched, and the gradient of an image holds nothing of the others. The second is a fact about a method's loss that
no type shows, so that methods count as covered only after they were read; `EPOCHS` lists them. With a site as the unit,
the whole update is clipped, and only the first matters.

No torch is imported here, so that `crossward methods NAME` can say so at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from crossward.core.disclosure import SAMPLE_COUNT, WEIGHTS, Disclosure, DisclosureKind

if TYPE_CHECKING:
    from crossward.core.method import Method
    from crossward.core.plugin import Plugin
    from crossward.core.training import Training
    from crossward.privacy.settings import Unit

BOUNDED = (DisclosureKind.WEIGHTS, DisclosureKind.SAMPLE_COUNT)  # counts are public: a guarantee does not cover them
UNREAD = "nobody has checked that the gradient of one image holds nothing of the others"
COUNTS = "its loss depends on the site's class counts, which hold something of every image"
Epochs = Callable[[Any, Any], int]  # of a method and its Training: passes over the images, of all fits of a round


def _plain(method: Any, training: Training) -> int:
    return training.epochs


def _scaffold(method: Any, training: Training) -> int:
    first = method.option == "I" or (method.option == "auto" and training.optimizer != "sgd")
    return int(training.epochs) + int(first)


def _fedrep(method: Any, training: Training) -> int:
    return int((method.head_epochs or training.epochs) + (method.body_epochs or training.epochs))


def _ditto(method: Any, training: Training) -> int:
    return int(training.epochs + (method.personal_epochs or training.epochs))


EPOCHS: Mapping[str, Epochs] = {  # of the methods that were read, by class
    "methods.fedavg.FedAvg": _plain,
    "core.method.Method": _plain,
    "methods.fedprox.FedProx": _plain,  # its term is a function of weights, added after the noise
    "methods.scaffold.Scaffold": _scaffold,  # control variates are made of noisy weights
    "methods.feddyn.FedDyn": _plain,
    "methods.feddc.FedDC": _plain,
    "methods.moon.Moon": _plain,  # each image is contrasted with itself in two other networks
    "methods.random_frozen.RandomFrozen": _plain,
    "methods.fedbabu.FedBABU": _plain,  # it fits in order to predict, too: that stays at the site
    "methods.fedrep.FedRep": _fedrep,
    "methods.lg_fedavg.LGFedAvg": _plain,
    "methods.ditto.Ditto": _ditto,
    "methods.local.Local": _plain,
}
REASONS: Mapping[str, str] = {
    "FedETF": COUNTS,
    "FedRoD": COUNTS,
    "FedRS": COUNTS,
    "FedLC": COUNTS,
    "BalanceFL": "it draws images by their classes, and not each by chance on its own",
    "FedNPR": "its prototypes are means over the site's images, and every image's loss depends on them",
    "FedNPRPer": "its prototypes are means over the site's images, and every image's loss depends on them",
    "FedBM": "its batches mix generated images with those of the site, which are then not drawn by chance",
    "MHpFLGB": "its bypass has BatchNorm, which mixes the images of a batch and keeps statistics of them",
    "Central": "it trains on the images of all sites in one place",
}
COVERED_PLUGINS = ("plugins.prox.Prox", "plugins.finetune.Finetune")  # a function of weights; a fit that stays
PLUGIN_REASONS: Mapping[str, str] = {
    "Bsm": "it shifts the loss by the site's class counts, which hold something of every image",
    "Npr": "its prototypes are means over the site's images, and every image's loss depends on them",
}


def dp_refusal(method: Method, unit: Unit = "image") -> str:
    """Why a method cannot be private in this unit; empty if it can."""
    return class_refusal(_path(method), method.discloses, method.steps, unit)


def class_refusal(path: str, discloses: Mapping[str, Disclosure], steps: Sequence[str], unit: Unit) -> str:
    """The same of a class, by its module and name and by what it declares."""
    name = path.rpartition(".")[2]
    unbounded = [f"{item} ({what})" for item, what in discloses.items() if what.kind not in BOUNDED]
    if unbounded:
        return f"{name} sends what no mechanism bounds: {', '.join(unbounded)}"
    if unit == "site":
        sends_model = {"model": WEIGHTS, "n": SAMPLE_COUNT}
        if tuple(steps) != ("train",) or any(sends_model.get(i) != what for i, what in discloses.items()):
            return f"{name} sends more than one network in a round, and only one is clipped and noised as a whole"
        return "" if discloses else f"{name} sends nothing"
    if path in EPOCHS:
        return ""
    return f"{name}: {REASONS.get(name, UNREAD)}"


def plugin_refusal(plugin: Plugin) -> str:
    """Why a plugin cannot be carried by a run that is private in images or patients; empty if it can."""
    name = type(plugin).__name__
    return "" if _path_of(type(plugin)) in COVERED_PLUGINS else f"{name}: {PLUGIN_REASONS.get(name, UNREAD)}"


def private_epochs(method: Method, training: Training) -> int:
    """Passes over the images that a round of a covered method makes."""
    return EPOCHS[_path(method)](method, training)


def _path(method: Method) -> str:
    return _path_of(type(method))


def _path_of(cls: type) -> str:
    """Its module, without the package, and its name."""
    return f"{cls.__module__}.{cls.__qualname__}".removeprefix("crossward.")
