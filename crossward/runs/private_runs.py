"""Differential privacy in a run: what is refused before round 1, and the protection of each site."""

from __future__ import annotations

from collections.abc import Sequence

from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm

from crossward.config.schema import Config
from crossward.core.method import Method
from crossward.core.plugin import Plugin
from crossward.errors import ConfigError
from crossward.privacy.example_gradients import unsupported_layers
from crossward.privacy.method_support import (
    EPOCHS,
    dp_refusal,
    first_epochs,
    planned_statistics,
    plugin_refusal,
    private_epochs,
)
from crossward.privacy.run_privacy import RunPrivacy, plan_privacy
from crossward.runs.sites import RunSites

SHOWN = 3  # layers in a message


def check_privacy(config: Config, method: Method, plugins: Sequence[Plugin]) -> None:
    """Refuse a [privacy] that contradicts itself, or that does not cover the method or a plugin."""
    settings = config.privacy
    settings.check()
    if settings.unit is None:
        return
    reasons = [dp_refusal(method, settings.unit)]
    if settings.unit != "site":
        reasons += [plugin_refusal(plugin) for plugin in (*method.carried, *plugins)]
    if refused := [reason for reason in reasons if reason]:
        covered = sorted({path.split(".")[1] for path in EPOCHS if path.startswith("methods.")})
        raise ConfigError(
            f'privacy.unit = "{settings.unit}" does not cover {config.method.name}:',
            details=refused,
            hint=f"Images and patients are covered with {', '.join(covered).replace('_', '-')}.",
        )
    if config.train.amp:
        raise ConfigError("privacy.unit does not go with train.amp: rounded gradients have no exact bound")


def protection(config: Config, run_sites: RunSites) -> RunPrivacy | None:
    """The protection of the sites whose images are here; None without [privacy], and at a coordinator."""
    settings = config.privacy
    if settings.unit is None:
        return None
    _check_layers(run_sites, by_image=settings.unit != "site")
    if settings.unit != "site":
        _check_task(run_sites)
    if run_sites.remote:
        return None
    federation = run_sites.federation
    splits = {split.name: split.train for split in federation.sites if len(split.train)}
    groups = federation.collection.groups

    def patients(site: str) -> list[str]:
        return [groups[row] for row in splits[site].tolist()] if groups else []

    return plan_privacy(
        settings,
        {name: len(rows) for name, rows in splits.items()},
        patients,
        batch_size=config.train.batch_size,
        epochs=private_epochs(run_sites.method, config.train) if settings.unit != "site" else config.train.epochs,
        rounds=config.run.rounds,
        first_epochs=first_epochs(run_sites.method, config.train) if settings.unit != "site" else 0,
        statistics=planned_statistics(run_sites.method, run_sites.carried, config.run.rounds)
        if settings.unit != "site"
        else {},
    )


def _check_task(run_sites: RunSites) -> None:
    task = run_sites.task.name
    mixing = [type(plugin).__name__.lower() for plugin in run_sites.carried if task not in plugin.private_tasks]
    if mixing:
        raise ConfigError(
            f"[privacy] does not cover {', '.join(mixing)} in {task}, where what one image adds to its loss depends on "
            "the others of a batch",
            hint="Leave it out, or train without [privacy].",
        )


def _check_layers(run_sites: RunSites, by_image: bool) -> None:
    """Refuse networks with BatchNorm, which mixes the images of a batch and keeps statistics of them."""
    for architecture in run_sites.architectures:
        net = run_sites.server(0).new_net(architecture)
        norms = [path for path, module in net.named_modules() if isinstance(module, BatchNorm)]
        trained = {name: p for name, p in net.named_parameters() if p.requires_grad}
        if norms:
            raise ConfigError(
                "[privacy] with a network that has BatchNorm, which mixes the images of a batch and keeps statistics "
                "of them that no noise covers:",
                details=norms[:SHOWN],
                hint='Use net.norm = "group" (resnet18, resnet50, resnext, senet …), or a net without, such as cnn; '
                'with mh-pflgb, method.norm = "group" as well.',
            )
        if by_image and (lines := unsupported_layers(net, trained)):
            raise ConfigError(
                "[privacy] needs the gradient of each image, which these layers do not give:",
                details=lines[:SHOWN],
                hint="Linear, Conv2d, GroupNorm and LayerNorm do.",
            )
