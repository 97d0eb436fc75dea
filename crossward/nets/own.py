"""A site's own network, named by where it is found: "package.module:function". It becomes a Net like any other."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from crossward.errors import ConfigError
from crossward.names import nearest
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
    except ConfigError:
        raise
    except Exception as error:  # whatever it is, it comes from code that is not ours
        raise ConfigError(f"The net {where!r} cannot be built: {_said(error)}", hint=HINT) from error
    net = _as_net(where, made)
    x = torch.linspace(-1, 1, 2 * channels * size * size).view(2, channels, size, size)
    z, logits, whole = _tried(where, net, made, x)
    width, maps = z.shape[1] if z.ndim in (2, 4) else 0, (size, size) if z.ndim == 4 else ()
    if not width or tuple(logits.shape) != (2, classes, *maps):
        told = f"features {tuple(z.shape)} and logits {tuple(logits.shape)}"
        wanted = f"(2, {classes}) or (2, {classes}, {size}, {size})"
        raise ConfigError(f"The net {where!r} gives {told} for two images; logits should be {wanted}.", hint=HINT)
    if whole is not None and not _alike(whole, logits):
        what = f"The net {where!r} computes something else than its head of its features, which alone would be trained."
        raise ConfigError(what, hint="Move all that its forward does between or after them into one of the two.")
    if net is made and net.width != width:
        raise ConfigError(f"The net {where!r} says that its width is {net.width}; it gives {width} features.")
    net.width = width
    return net


def _found(where: str) -> Any:
    place, _, attribute = where.partition(":")
    try:
        module = import_module(place)
    except Exception as error:  # importing runs code that is not ours
        hint = "Install its package, or name its folder in PYTHONPATH."
        raise ConfigError(f"The net {where!r} cannot be imported: {_said(error)}", hint=hint) from error
    if not hasattr(module, attribute):
        known = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        raise ConfigError(f"The net {where!r}: {place} has no {attribute!r}.", hint=nearest(attribute, known))
    return getattr(module, attribute)


def _as_net(where: str, made: object) -> Net:
    """What was made, if it is a Net; else a Net of its parts."""
    if not isinstance(made, nn.Module):
        raise ConfigError(f"The net {where!r} is a {type(made).__name__}, not an nn.Module.", hint=HINT)
    if isinstance(made, Net):
        return made
    body, other, head = (getattr(made, name, None) for name in ("body", "features", "head"))
    body = body if isinstance(body, nn.Module) else other
    if not isinstance(body, nn.Module) or not isinstance(head, nn.Module):
        parts = ", ".join(name for name, _ in made.named_children()) or "none"
        raise ConfigError(f"The net {where!r} does not end in features and head; its parts: {parts}.", hint=HINT)
    return Net(body, head, width=0)


def _tried(where: str, net: Net, made: nn.Module, x: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Its features, its logits, and what it computes as a whole if it has a forward of its own that gives a tensor."""
    modes = [(module, module.training) for part in (net, made) for module in part.modules()]
    net.eval()
    made.eval()
    try:
        with torch.no_grad():
            z = net.features(x)
            logits = net.head(z)
            whole = made(x) if type(made).forward is not nn.Module.forward else None
    except Exception as error:
        raise ConfigError(
            f"The net {where!r} does not accept images of {tuple(x.shape[1:])}: {_said(error)}"
        ) from error
    finally:
        for module, training in modes:
            module.training = training
    if not (isinstance(z, Tensor) and isinstance(logits, Tensor)):
        told = f"{type(z).__name__} and {type(logits).__name__}"
        raise ConfigError(f"The net {where!r} gives {told} for features and logits, not tensors.", hint=HINT)
    return z, logits, whole if isinstance(whole, Tensor) else None


def _alike(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, rtol=1e-3, atol=1e-4, equal_nan=True)


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
