"""A site's own network, named by where it is found: "package.module:function". It becomes a Net like any other."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from crossward.errors import ConfigError
from crossward.nets.net import Net

HINT = (
    "It is called with channels, classes and size, and gives an nn.Module with two parts: `body` (or `features`), from "
    "images to features (B, D) or (B, D, H, W), and `head`, from these to logits."
)


def adopted(where: str, *, channels: int, classes: int, size: int, **options: Any) -> Net:
    """What the function, or class, at `where` makes of these, as body and head; tried on two images."""
    make = _found(where)
    try:
        made = make(channels=channels, classes=classes, size=size, **options)
    except TypeError as error:
        raise ConfigError(f"The net {where!r} cannot be built: {error}", hint=HINT) from error
    if not isinstance(made, nn.Module):
        raise ConfigError(f"The net {where!r} is a {type(made).__name__}, not an nn.Module.", hint=HINT)
    body, head = getattr(made, "body", None) or getattr(made, "features", None), getattr(made, "head", None)
    if not isinstance(body, nn.Module) or not isinstance(head, nn.Module):
        parts = ", ".join(name for name, _ in made.named_children())
        raise ConfigError(f"The net {where!r} does not end in features and head; its parts: {parts}.", hint=HINT)
    z, logits = _tried(where, body, head, torch.zeros(2, channels, size, size))
    width, maps = z.shape[1] if z.ndim in (2, 4) else 0, (size, size) if z.ndim == 4 else ()
    if not width or tuple(logits.shape) != (2, classes, *maps):
        told = f"features {tuple(z.shape)} and logits {tuple(logits.shape)}"
        wanted = f"(2, {classes}) or (2, {classes}, {size}, {size})"
        raise ConfigError(f"The net {where!r} gives {told} for two images; logits should be {wanted}.", hint=HINT)
    return made if isinstance(made, Net) else Net(body, head, width)


def _found(where: str) -> Any:
    module, _, attribute = where.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        hint = "Install its package, or name its folder in PYTHONPATH."
        raise ConfigError(f"The net {where!r} cannot be imported: {error}", hint=hint) from error


def _tried(where: str, body: nn.Module, head: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    modes = [(module, module.training) for part in (body, head) for module in part.modules()]
    for part in (body, head):
        part.eval()
    try:
        with torch.no_grad():
            z: Tensor = body(x)
            return z, head(z)
    except (RuntimeError, ValueError) as error:
        raise ConfigError(f"The net {where!r} does not accept images of {tuple(x.shape[1:])}: {error}") from error
    finally:
        for module, training in modes:
            module.training = training
