"""What is refused before round 1, and what a person should know before it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm

from crossward.config.schema import Config
from crossward.core.disclosure import WEIGHTS
from crossward.core.evaluation import LOWER_IS_BETTER
from crossward.core.image_size import sides
from crossward.core.method import Method, Need
from crossward.core.metric_sum import summed_metrics
from crossward.core.net import Net
from crossward.core.plugin import Plugin, RunFacts
from crossward.core.run import cohort_size
from crossward.core.seeds import seeded
from crossward.core.task import Task, example_metrics
from crossward.core.weights import Weights
from crossward.data.federation import PARTS, Federation
from crossward.errors import ConfigError
from crossward.methods import METHODS, method_class
from crossward.names import nearest
from crossward.runs.architectures import NetPlan
from crossward.runs.devices import check_compiler, chosen_devices, device_cautions
from crossward.runs.sites import RunSites
from crossward.tasks.segmentation import Segmentation

SHOWN = 3  # layers or sites in a message
CHUNK = 256  # masks looked at in one go


def check_engine(config: Config) -> None:
    """What can be told of the machine alone, before any image is read."""
    if config.engine.strict and config.engine.name == "pool":
        raise ConfigError(
            'engine.strict is for engine.name = "local"',
            hint="The pool hands trees to other processes anyhow, without the codec.",
        )
    check_compiler(config.engine, chosen_devices(config.engine.device))


def check_method(config: Config, method: Method, plugins: Sequence[Plugin], task: Task, federation: Federation) -> None:
    """The method and its plugins go together, serve the task, and find the data they need."""
    carried = {type(plugin) for plugin in method.carried}
    if twice := [type(plugin).__name__.lower() for plugin in plugins if type(plugin) in carried]:
        raise ConfigError(f"{config.method.name!r}: {config.method_name} carries {', '.join(twice)} by itself")
    parts: list[Method | Plugin] = [method, *plugins]
    for part in parts:
        if task.name not in part.tasks:
            why = ": it needs one class for each image" if task.name == "multi-label" else ""
            raise ConfigError(
                f"{type(part).__name__} does not serve {task.name}{why}", hint=f"It serves {', '.join(part.tasks)}."
            )
    method.check_plugins((*method.carried, *plugins))
    if Need.PUBLIC_SET in method.needs and not len(federation.public):
        raise ConfigError(f"{type(method).__name__} needs {Need.PUBLIC_SET.value}")


def check_metric(config: Config, task: Task) -> None:
    """evaluate.select names one metric, or a sum of metrics of which more is better, that validation sets have."""
    wanted = config.evaluate.select
    if wanted is None:
        return
    metrics = example_metrics(task, full=False)
    known = [name for name, value in metrics.items() if not isinstance(value, list | int)]
    parts = summed_metrics(wanted)
    for part in parts:
        if part not in known:
            raise ConfigError(f"evaluate.select: {_unknown_metric(part, metrics)}", hint=nearest(part, known))
    if twice := [part for part in dict.fromkeys(parts) if parts.count(part) > 1]:
        raise ConfigError(f"evaluate.select = {wanted!r} has {', '.join(twice)} more than once")
    if len(parts) > 1 and (lower := [part for part in parts if part in LOWER_IS_BETTER]):
        raise ConfigError(
            f"evaluate.select = {wanted!r}: of {', '.join(lower)} less is better, which cannot be added to a sum of "
            "metrics of which more is better",
            hint="Leave it out of the sum, or select by it alone.",
        )


def _unknown_metric(name: str, metrics: Mapping[str, object]) -> str:
    if name == "":
        return 'a "+" needs a metric on either side'
    if name == "recall" and "balanced_accuracy" in metrics:
        return "recall is a list, one for each class; its mean is balanced_accuracy"
    if isinstance(metrics.get(name), list | int):
        return f"{name!r} is no metric with one number to compare"
    return f"there is no metric {name!r} on validation sets"


def check_nets(config: Config, run_sites: RunSites) -> None:
    """Nets can be built for these images, with what the method adds to them; they serve together; and BatchNorm does
    not have to learn from one image at a time."""
    nets = {
        f"{run_sites.name(site)} ({architecture})": run_sites.server(0).new_net(architecture)
        for architecture, site in run_sites.architectures.items()
    }
    _check_together(run_sites.method, nets)
    if Need.SAME_NETS in run_sites.method.needs and len(nets) > 1:
        _check_alike(nets, _input_shape(run_sites, run_sites.ids[0]))
    norms = [
        f"{name}: {path}"
        for name, net in nets.items()
        for path, module in net.named_modules()
        if isinstance(module, BatchNorm)
    ]
    if norms and config.train.batch_size == 1:
        raise ConfigError(
            "train.batch_size = 1 with a network that has BatchNorm, which cannot learn from one image",
            details=norms[:SHOWN],
            hint='Use 2 or more. Some nets have norm = "group" instead; parts that a method adds stay as they are.',
        )


def _check_together(method: Method, nets: dict[str, Net]) -> None:
    try:
        method.check_nets(nets)
    except ConfigError as error:
        others = [name for name in METHODS if not isinstance(method, method_class(name))]
        free = [name for name in others if Need.SAME_NETS not in method_class(name).needs]
        hint = f"{error.hint} Networks may differ with {', '.join(free)}."
        raise ConfigError(error.what, details=error.details, hint=hint) from None


def _input_shape(run_sites: RunSites, site: int) -> tuple[int, int, int]:
    """Channels, height and width of what a site's network sees."""
    collection = run_sites.federation.collection
    factory = run_sites.net_factory(site)
    height, width = sides(factory.size) if isinstance(factory, NetPlan) else collection.size
    return collection.channels, height, width


def _check_alike(nets: dict[str, Net], shape: tuple[int, int, int]) -> None:
    """Networks that are averaged not only have weights of the same shapes, but compute the same with them. Of heads the
    layers are compared, as some know their classes only from round 1 on."""
    (first_name, first), *others = nets.items()
    weights = Weights.of(first).map(torch.clone)
    expected = _features_of_noise(first, shape)
    for name, other in others:
        weights.into(other)
        features = _features_of_noise(other, shape)
        same_features = features.shape == expected.shape and torch.allclose(features, expected, atol=1e-3, rtol=1e-3)
        if not same_features or repr(other.head) != repr(first.head):
            raise ConfigError(
                f"the networks of {first_name} and {name} have weights of the same shapes, but compute otherwise",
                hint="Give these sites the same network; where sizes of images differ, say net.stem.",
            )


def _features_of_noise(net: Net, shape: tuple[int, int, int]) -> Tensor:
    """In training mode, where BatchNorm keeps differences from fading layer by layer."""
    with seeded(0), torch.no_grad():
        return net.train().features(torch.rand(4, *shape))


def cautions(config: Config, run_sites: RunSites) -> list[str]:
    """What is no reason to refuse a run, but worth knowing before it."""
    asked = cohort_size(config.run.participation, len(run_sites.clients))
    return [
        *device_cautions(config.engine, run_sites.devices, len(run_sites.ids), asked),
        *_about_batches(config, run_sites),
        *_about_nets(config, run_sites),
        *_about_empty_masks(run_sites),
        *_about_method(config, run_sites),
    ]


def _about_batches(config: Config, run_sites: RunSites) -> list[str]:
    if not config.train.drop_last:
        return []
    size = config.train.batch_size
    small = [site for site in run_sites.federation.sites if 0 < len(site.train) < size]
    if not small:
        return []
    shown = ", ".join(f"{len(site.train)} images at {site.name}" for site in small[:SHOWN])
    more = f" and {len(small) - SHOWN} sites more" if len(small) > SHOWN else ""
    return [f"train.drop_last: fewer than a batch of {size} ({shown}{more}); their one incomplete batch is kept"]


def _about_nets(config: Config, run_sites: RunSites) -> list[str]:
    listed = len(config.net.name) if isinstance(config.net.name, tuple) else 0
    if listed > len(run_sites.ids) + len(config.partition.leave_out):
        return [f"net.name lists {listed} nets for {len(run_sites.ids)} sites: the last are not used"]
    return []


def _about_empty_masks(run_sites: RunSites) -> list[str]:
    task = run_sites.task
    if not isinstance(task, Segmentation) or task.objective != "dice":
        return []
    masks = run_sites.federation.collection.targets
    shares = []
    for site in run_sites.federation.sites:
        chunks = [_is_empty(masks[rows], len(task.classes)) for rows in site.train.split(CHUNK)]
        empty = int(sum(int(chunk.sum()) for chunk in chunks))
        if empty:
            shares.append(f"{empty} of {len(site.train)} at {site.name}")
    if not shares:
        return []
    listed = ", ".join(shares[:SHOWN]) + (f" and {len(shares) - SHOWN} sites more" if len(shares) > SHOWN else "")
    advice = 'the Dice loss teaches nothing on them, task.objective = "dice+ce" does'
    return [f"training masks without any foreground ({listed}): {advice}"]


def _is_empty(masks: Tensor, classes: int) -> Tensor:
    """(n,) whether a mask shows no class but the background."""
    return ~((masks > 0) & (masks < classes)).flatten(1).any(1)


class CountsBySite(Mapping[str, Mapping[str, int]]):
    """Site -> class -> training samples, put together when it is asked for: there may be a hundred thousand sites."""

    def __init__(self, sites: Sequence[str], classes: Sequence[str], table: Tensor) -> None:
        """`table` is (sites, classes)."""
        self._numbers = {site: number for number, site in enumerate(sites)}
        self._classes = classes
        self._table = table

    def __getitem__(self, site: str) -> Mapping[str, int]:
        return dict(zip(self._classes, self._table[self._numbers[site]].tolist(), strict=True))

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)


def _about_method(config: Config, run_sites: RunSites) -> list[str]:
    method = run_sites.method
    federation = run_sites.federation
    counts = CountsBySite([site.name for site in federation.sites], run_sites.task.classes, federation.counts())
    facts = RunFacts(counts, config.train, run_sites.carried)
    notes = method.cautions(facts)
    for plugin in run_sites.carried:
        notes += plugin.cautions(facts)
        if plugin.allows_for_prior and method.allows_for_prior:
            name = type(plugin).__name__.lower()
            notes.append(f"{config.method_name} allows for how often a site sees each class: {name} changes nothing")
    if config.robust.active and WEIGHTS not in method.discloses.values():
        notes.append(f"robust.rule changes nothing: sites of {config.method_name} send no weights to be averaged")
    if not (federation.holdings.parts == PARTS.index("val")).any():
        notes.append("there is no validation set: the last round counts as the best")
    return notes
