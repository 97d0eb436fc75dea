"""A user's own network, named "package.module:function" after the function that builds it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from crossward.core.image_size import Size, sides
from crossward.core.net import Net
from crossward.errors import ConfigError
from crossward.names import nearest

CONTRACT_HINT = (
    "It is called with channels, classes and size (a number, or height and width where they differ), and gives an "
    "nn.Module with two parts: `body` (or `features`), from "
    "images to features (B, D) or (B, D, H, W), and `head`, from these to logits."
)
NAME_HINT = 'Write "package.module:function"; PYTHONPATH names the folder that it is found in.'
SPLIT_HINT = "Put what lies before or between the two into the body, and what comes after them into the head."


def load_user_net(name: str, *, channels: int, classes: int, size: Size, **options: Any) -> Net:
    """Call the builder of that name, and check on two images that the network is the head of its body."""
    module = _build(name, channels=channels, classes=classes, size=size, **options)
    net = _as_net(name, module)
    x = torch.randn(2, channels, *sides(size), generator=torch.Generator().manual_seed(0))
    z, logits = _features_and_logits(name, net, module, x)
    _check_shapes(name, z, logits, classes, size)
    width = z.shape[1]
    if net is module and net.width != width:
        raise ConfigError(f"The net {name!r} says that its width is {net.width}; it gives {width} features.")
    net.width = width
    return net


def _build(name: str, **arguments: Any) -> nn.Module:
    builder = _import_builder(name)
    try:
        module = builder(**arguments)
    except ConfigError:
        raise
    except Exception as error:  # whatever it is, it comes from code that is not ours
        raise ConfigError(f"The net {name!r} cannot be built: {_described(error)}", hint=CONTRACT_HINT) from error
    if not isinstance(module, nn.Module):
        raise ConfigError(f"The net {name!r} is a {type(module).__name__}, not an nn.Module.", hint=CONTRACT_HINT)
    return module


def _import_builder(name: str) -> Any:
    place, _, attribute = name.rpartition(":")
    if place.endswith(".py") or not all(part.isidentifier() for part in place.split(".")):
        raise ConfigError(
            f"The net {name!r} cannot be imported: {place!r} is not the name of a module.", hint=NAME_HINT
        )
    try:
        holder: Any = import_module(place)
    except Exception as error:  # importing runs code that is not ours
        hint = "Install its package, or name its folder in PYTHONPATH."
        raise ConfigError(f"The net {name!r} cannot be imported: {_described(error)}", hint=hint) from error
    for part in attribute.split("."):
        if not hasattr(holder, part):
            members = getattr(holder, "__dict__", {}).items()
            known = [key for key, value in members if callable(value) and not key.startswith("_")]
            raise ConfigError(f"The net {name!r}: {place} has no {part!r}.", hint=nearest(part, known))
        holder = getattr(holder, part)
        place = f"{place}.{part}"
    return holder


def _as_net(name: str, module: nn.Module) -> Net:
    """The module itself if it is a Net; else a Net of its parts, whose width is not known yet."""
    if isinstance(module, Net):
        return module
    body = getattr(module, "body", None)
    if not isinstance(body, nn.Module):
        body = getattr(module, "features", None)
    head = getattr(module, "head", None)
    if not isinstance(body, nn.Module) or not isinstance(head, nn.Module):
        parts = ", ".join(part for part, _ in module.named_children()) or "none"
        raise ConfigError(
            f"The net {name!r} does not end in features and head; its parts: {parts}.", hint=CONTRACT_HINT
        )
    return Net(body, head, width=0)


def _check_shapes(name: str, z: Tensor, logits: Tensor, classes: int, size: Size) -> None:
    expected = (2, classes, *sides(size)) if z.ndim == 4 else (2, classes)
    if z.ndim not in (2, 4) or z.shape[1] == 0 or logits.shape != expected:
        shapes = f"features {tuple(z.shape)} and logits {tuple(logits.shape)}"
        wanted = f"(2, {classes}) or {(2, classes, *sides(size))}"
        raise ConfigError(
            f"The net {name!r} gives {shapes} for two images; logits should be {wanted}.", hint=CONTRACT_HINT
        )


def _features_and_logits(name: str, net: Net, module: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """The output of body and head, if the module computes nothing else: methods use body and head by themselves, and
    would silently lose any other layer."""
    with _eval_mode(net, module), torch.no_grad():
        try:
            output, layers_outside = _forward_as_a_whole(net, module, x)
        except Exception as error:
            raise _does_not_accept(name, x, error) from error
        try:
            z = net.body(x)
            logits = net.head(z)
            features = z if type(net).features is Net.features else net.features(x)
        except Exception as error:
            if output is None:
                raise _does_not_accept(name, x, error) from error
            raise _more_than_body_and_head(name, layers_outside or [_described(error)]) from error
    if not isinstance(z, Tensor) or not isinstance(logits, Tensor):
        types = f"{type(z).__name__} and {type(logits).__name__}"
        raise ConfigError(f"The net {name!r} gives {types} for features and logits, not tensors.", hint=CONTRACT_HINT)
    differs = isinstance(output, Tensor) and not _almost_equal(output, logits)
    if layers_outside or differs or not _almost_equal(features, z):
        raise _more_than_body_and_head(name, layers_outside)
    return z, logits


def _does_not_accept(name: str, x: Tensor, error: Exception) -> ConfigError:
    return ConfigError(f"The net {name!r} does not accept images of {tuple(x.shape[1:])}: {_described(error)}")


def _more_than_body_and_head(name: str, details: list[str]) -> ConfigError:
    return ConfigError(
        f"The net {name!r} computes something else than its head of its body: the two must make up the whole.",
        details=details,
        hint=SPLIT_HINT,
    )


def _forward_as_a_whole(net: Net, module: nn.Module, x: Tensor) -> tuple[object, list[str]]:
    """The output of the module's own forward, None if it has none, and the layers it uses outside body and head.

    Not every such layer shows in the output: dropout, or a layer that begins at zero, does not.
    """
    if type(module).forward is nn.Module.forward:
        return None, []
    used: list[str] = []
    hooks = []
    for name, layer in _layers_outside(net, module):
        line = f"in neither: {name} ({type(layer).__name__})"
        hooks.append(layer.register_forward_hook(lambda *_, line=line: used.append(line)))
    try:
        output = module(x)
    finally:
        for hook in hooks:
            hook.remove()
    return output, list(dict.fromkeys(used)) if isinstance(output, Tensor) else []


def _layers_outside(net: Net, module: nn.Module) -> list[tuple[str, nn.Module]]:
    """The layers of the module that are in neither body nor head; not modules that merely hold others."""
    inside = {module, *net.body.modules(), *net.head.modules()}
    return [
        (name, layer)
        for name, layer in module.named_modules()
        if layer not in inside and not isinstance(layer, nn.Identity)
        if layer._parameters or not layer._modules
    ]


@contextmanager
def _eval_mode(*modules: nn.Module) -> Iterator[None]:
    modes = [(part, part.training) for module in modules for part in module.modules()]
    for module in modules:
        module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


def _almost_equal(value: object, expected: Tensor) -> bool:
    """Equal up to rounding, relative to the largest number."""
    if not isinstance(value, Tensor) or value.shape != expected.shape:
        return False
    scale = float(expected.nan_to_num().abs().max()) if expected.numel() else 0.0
    return torch.allclose(value, expected, rtol=1e-3, atol=1e-4 * scale, equal_nan=True)


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
