"""A site's own network, named by where it is found: "package.module:function". It becomes a Net like any other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from crossward.core.net import Net
from crossward.errors import ConfigError
from crossward.names import nearest

HINT = (
    "It is called with channels, classes and size, and gives an nn.Module with two parts: `body` (or `features`), from "
    "images to features (B, D) or (B, D, H, W), and `head`, from these to logits."
)
PLACES = 'Write "package.module:function"; PYTHONPATH names the folder that it is found in.'


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
    x = torch.randn(2, channels, size, size, generator=torch.Generator().manual_seed(0))
    z, logits = _tried(where, net, made, x)
    width, maps = z.shape[1] if z.ndim in (2, 4) else 0, (size, size) if z.ndim == 4 else ()
    if not width or tuple(logits.shape) != (2, classes, *maps):
        told = f"features {tuple(z.shape)} and logits {tuple(logits.shape)}"
        wanted = f"(2, {classes}) or (2, {classes}, {size}, {size})"
        raise ConfigError(f"The net {where!r} gives {told} for two images; logits should be {wanted}.", hint=HINT)
    if net is made and net.width != width:
        raise ConfigError(f"The net {where!r} says that its width is {net.width}; it gives {width} features.")
    net.width = width
    return net


def _found(where: str) -> Any:
    place, _, attribute = where.rpartition(":")
    if place.endswith(".py") or not all(part.isidentifier() for part in place.split(".")):
        raise ConfigError(f"The net {where!r} cannot be imported: {place!r} is not the name of a module.", hint=PLACES)
    try:
        module = import_module(place)
    except Exception as error:  # importing runs code that is not ours
        hint = "Install its package, or name its folder in PYTHONPATH."
        raise ConfigError(f"The net {where!r} cannot be imported: {_said(error)}", hint=hint) from error
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            held = getattr(found, "__dict__", {}).items()
            known = [name for name, value in held if callable(value) and not name.startswith("_")]
            raise ConfigError(f"The net {where!r}: {place} has no {part!r}.", hint=nearest(part, known))
        found, place = getattr(found, part), f"{place}.{part}"
    return found


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


def _tried(where: str, net: Net, made: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Its features and its logits, if they are all that it computes: methods take body and head by themselves, and
    whatever else there is would be lost without a word."""
    refusal = f"The net {where!r} does not accept images of {tuple(x.shape[1:])}"
    more = f"The net {where!r} computes something else than its head of its body: the two must make up the whole."
    hint = "Put what lies before or between the two into the body, and what comes after them into the head."
    with _evaluating(net, made), torch.no_grad():
        try:
            whole, outside = _as_a_whole(net, made, x)
        except Exception as error:
            raise ConfigError(f"{refusal}: {_said(error)}") from error
        try:
            z = net.body(x)
            logits = net.head(z)
            features = z if type(net).features is Net.features else net.features(x)
        except Exception as error:
            if whole is None:
                raise ConfigError(f"{refusal}: {_said(error)}") from error
            raise ConfigError(more, details=outside or [_said(error)], hint=hint) from error
    if not (isinstance(z, Tensor) and isinstance(logits, Tensor)):
        told = f"{type(z).__name__} and {type(logits).__name__}"
        raise ConfigError(f"The net {where!r} gives {told} for features and logits, not tensors.", hint=HINT)
    if outside or not _alike(features, z) or (isinstance(whole, Tensor) and not _alike(whole, logits)):
        raise ConfigError(more, details=outside, hint=hint)
    return z, logits


def _as_a_whole(net: Net, made: nn.Module, x: Tensor) -> tuple[object, list[str]]:
    """What its own forward gives, None if it has none, and the layers it used that are in neither body nor head: not
    all of these show in numbers, such as dropout, or a layer that begins at zero."""
    if type(made).forward is nn.Module.forward:
        return None, []
    inside, used = {made, *net.body.modules(), *net.head.modules()}, list[str]()
    layers = [
        (f"in neither: {name} ({type(module).__name__})", module)
        for name, module in made.named_modules()
        if module not in inside and not isinstance(module, nn.Identity)
        if module._parameters or not module._modules  # not what merely holds others
    ]
    hooks = [m.register_forward_hook(lambda *_, told=told: used.append(told)) for told, m in layers]
    try:
        whole = made(x)
    finally:
        for hook in hooks:
            hook.remove()
    return whole, list(dict.fromkeys(used)) if isinstance(whole, Tensor) else []


@contextmanager
def _evaluating(*parts: nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for part in parts for module in part.modules()]
    for part in parts:
        part.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def _alike(one: object, other: Tensor) -> bool:
    """Up to rounding, by the scale of the largest number."""
    if not isinstance(one, Tensor) or one.shape != other.shape:
        return False
    scale = float(other.nan_to_num().abs().max()) if other.numel() else 0.0
    return torch.allclose(one, other, rtol=1e-3, atol=1e-4 * scale, equal_nan=True)


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
