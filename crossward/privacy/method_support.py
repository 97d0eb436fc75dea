"""Which methods differential privacy covers, and why the others not.

With an image or a patient as the unit, two things must hold: what leaves the site is weights that only noisy gradients
have touched, and the gradient of an image holds nothing of the others, except what was released with noise of its own
(class counts, prototypes, moments: `planned_statistics`). The second is a fact about a method's loss that no type
shows, so that methods count as covered only after they were read; `EPOCHS` lists them. With a site as the unit, the
whole update is clipped, and only the first matters.

No torch is imported here, so that `crossward methods NAME` can say so at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from crossward.core.disclosure import SAMPLE_COUNT, WEIGHTS, Disclosure, Made

if TYPE_CHECKING:
    from crossward.core.method import Method
    from crossward.core.plugin import Plugin
    from crossward.core.training import Training
    from crossward.privacy.settings import Unit

UNREAD = "nobody has checked that the gradient of one image holds nothing of the others"
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


def _mh_pflgb(method: Any, training: Training) -> int:
    return int(max(1, training.epochs - method.bypass_epochs) + method.bypass_epochs)


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
    # their losses take class counts, which site.counts gives as they were released with noise
    "methods.fedetf.FedETF": _plain,
    "methods.fedrod.FedRoD": _plain,
    "methods.fedrs.FedRS": _plain,
    "methods.fedlc.FedLC": _plain,
    "methods.fednpr.FedNPR": _plain,  # FedAvg with the plugins bsm and npr
    "methods.fednpr_per.FedNPRPer": _plain,  # its head stays, and is trained by the same noisy steps
    "methods.fedcb.FedCB": _plain,  # its classifier comes from the server
    "methods.fedbm.method.FedBM": _plain,  # generated images are the server's: they add to a step after its noise
    # they send sums over images, which `statistics.site_class_sums` releases with noise
    "methods.fedproto.FedProto": _plain,
    "methods.fedproc.FedProc": _plain,
    "methods.fednh.FedNH": _plain,
    "methods.creff.CReFF": _plain,
    # what a network says of public images is made of its weights, and so is what it learns from them
    "methods.fedmd.FedMD": _plain,
    "methods.ds_pfl.DSpFL": _plain,
    "methods.kt_pfl.KTpFL": _plain,
    "methods.feddf.FedDF": _plain,
    "methods.pfeddf.PFedDF": _plain,
    "methods.mh_pflgb.method.MHpFLGB": _mh_pflgb,  # the bypass learns from the local network, so both stages count
}
REASONS: Mapping[str, str] = {
    "BalanceFL": "it draws images by their classes, and not each by chance on its own",
    "APFL": "it trains a mixture of two networks, whose weights are used otherwise than through their layers",
    "Central": "it trains on the images of all sites in one place",
}
COVERED_PLUGINS = (
    "plugins.prox.Prox",  # a function of weights
    "plugins.finetune.Finetune",  # a fit that stays
    "plugins.bsm.Bsm",  # class counts with noise
    "plugins.npr.Npr",  # sums of features with noise
)


CONDITIONS: Mapping[str, str] = {  # options without which a covered method is refused for images and patients
    "methods.fedcb.FedCB": "with a number for tau",
    "methods.fedbm.method.FedBM": "with a number for tau",
    "methods.mh_pflgb.method.MHpFLGB": 'with norm = "group"',
    "methods.fednh.FedNH": "with a number for scale",
}


def dp_refusal(method: Method, unit: Unit = "image") -> str:
    """Why a method cannot be private in this unit; empty if it can."""
    refusal = class_refusal(_path(method), method.discloses, method.steps, unit)
    if not refusal and unit != "site" and getattr(method, "tau", None) == "auto":
        return (
            f'{type(method).__name__} with tau = "auto" trains warm-up rounds that the plan does not count, and sends '
            "confusion matrices without noise: give tau as a number"
        )
    return refusal


def class_refusal(path: str, discloses: Mapping[str, Disclosure], steps: Sequence[str], unit: Unit) -> str:
    """The same of a class, by its module and name and by what it declares."""
    name = path.rpartition(".")[2]
    bounded = [
        item
        for item, what in discloses.items()
        if (what.can_be_noised if unit != "site" else what.made in (Made.WEIGHTS, Made.SIZE))
    ]
    unbounded = [f"{item} ({what})" for item, what in discloses.items() if item not in bounded]
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
    if _path_of(type(plugin)) not in COVERED_PLUGINS:
        return f"{name}: {UNREAD}"
    if getattr(plugin, "samples", None):
        return f"{name}: with npr.samples, whether an image is taken depends on how many others of its class there are"
    return ""


def private_epochs(method: Method, training: Training) -> int:
    """Passes over the images that a round of a covered method makes."""
    return EPOCHS[_path(method)](method, training)


def first_epochs(method: Method, training: Training) -> int:
    """Passes over the images before a site's first round, beside those of the round."""
    own = getattr(method, "start_epochs", 0)
    return int(training.epochs if own is None else own)


def planned_statistics(method: Method, plugins: Sequence[Plugin], rounds: int) -> dict[str, int]:
    """Releases of each kind of statistic in a run of so many rounds; `plugins` are all that it carries."""
    planned: dict[str, int] = {}
    parts: tuple[Method | Plugin, ...] = (method, *plugins)
    for part in parts:
        for kind, count in part.noisy_statistics(rounds).items():
            planned[kind] = max(count, planned.get(kind, 0))  # parts share what is released
    return {kind: count for kind, count in planned.items() if count}


def _path(method: Method) -> str:
    return _path_of(type(method))


def _path_of(cls: type) -> str:
    """Its module, without the package, and its name."""
    return f"{cls.__module__}.{cls.__qualname__}".removeprefix("crossward.")
