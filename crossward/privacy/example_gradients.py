"""Per-example gradients of a network's layers, without a backward pass for each example.

Within `recording`, the layers of a network compute with their weights as constants and record their inputs and the
gradients of their outputs. From these follow the norm of each example's gradient and any weighted sum over examples
(Bu, Wang, Zha, Karypis: Differentially Private Optimization on Large Model at Small Cost, ICML 2023). The gradient of
each example is formed only where that is cheaper than its norm by way of inner products ("ghost norm").
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from crossward.errors import ConfigError


@dataclass
class Call:
    """One forward call of a layer: what it was given, and the gradient of what it returned."""

    input: Tensor  # (B, ...)
    version: int  # of the input, to notice that something wrote to it afterwards
    gradient: Tensor | None = None  # (B, ...), of the output


class LayerGradients(ABC):
    """The calls of one layer in one forward pass, and the gradients of its weights that follow from them."""

    def __init__(self, layer: nn.Module, trained: Mapping[str, nn.Parameter]) -> None:
        self.layer = layer
        self.trained = trained  # the layer's own names -> parameters that are trained
        self.calls: list[Call] = []
        self.by_example: dict[str, Tensor] = {}  # (B, *shape) of each parameter, where it was formed

    def constant(self, name: str) -> Tensor | None:
        weight = getattr(self.layer, name, None)
        return None if weight is None else cast(Tensor, weight).detach()

    def forward(self, x: Tensor) -> Tensor:
        y = self.compute(x)
        if not torch.is_grad_enabled():
            return y
        call = Call(x.detach(), x._version)
        self.calls.append(call)
        is_first = not y.requires_grad  # its input is an image, and its weights are constants here
        if is_first:
            y.requires_grad_()
        y.register_hook(lambda gradient: _keep(call, gradient))
        return y.clone() if is_first else y  # a layer that writes into its input must not get a leaf of the graph

    def squared_norms(self, size: int) -> Tensor:
        """(B,) squared norm of each example's gradient."""
        calls = self._used_calls()
        if not calls:
            return torch.zeros(size, device=next(iter(self.trained.values())).device)
        if len(calls) == 1 and (norms := self.norms_without_gradients(calls[0])) is not None:
            return norms
        for call in calls:
            for name, gradients in self.example_gradients(call).items():
                self.by_example[name] = self.by_example[name] + gradients if name in self.by_example else gradients
        squares = [gradients.reshape(len(gradients), -1).square().sum(1) for gradients in self.by_example.values()]
        return torch.stack(squares).sum(0)

    def weighted_sums(self, weights: Tensor) -> dict[str, Tensor]:
        """Each trained parameter's gradient, summed over examples with these (B,) weights."""
        if self.by_example:
            return _weighted(self.by_example, weights)
        sums = [self.summed(call, weights) for call in self._used_calls()]
        if not sums:
            return {name: torch.zeros_like(parameter) for name, parameter in self.trained.items()}
        return {name: torch.stack([each[name] for each in sums]).sum(0) for name in sums[0]} if sums[1:] else sums[0]

    def _used_calls(self) -> list[Call]:
        """The calls that the loss depends on."""
        if any(call.input._version != call.version for call in self.calls):
            raise RuntimeError(f"the input of {type(self.layer).__name__} was written to after the layer had seen it")
        return [call for call in self.calls if call.gradient is not None]

    # what each kind of layer has of its own ---------------------------------------------------------------------------
    @abstractmethod
    def compute(self, x: Tensor) -> Tensor:
        """The layer's output, with its weights as constants."""

    @abstractmethod
    def example_gradients(self, call: Call) -> dict[str, Tensor]:
        """(B, *shape) for each trained parameter."""

    def norms_without_gradients(self, call: Call) -> Tensor | None:
        """(B,) squared norms, where they are cheaper than the gradients of each example; None otherwise."""
        return None

    def summed(self, call: Call, weights: Tensor) -> dict[str, Tensor]:
        """Each trained parameter's gradient of one call, summed over examples with these (B,) weights."""
        return _weighted(self.example_gradients(call), weights)


def _weighted(gradients: Mapping[str, Tensor], weights: Tensor) -> dict[str, Tensor]:
    """(*shape) of each of these (B, *shape)."""
    return {name: (weights @ each.reshape(len(each), -1)).view(each.shape[1:]) for name, each in gradients.items()}


def _keep(call: Call, gradient: Tensor) -> None:
    call.gradient = gradient


def _scaled(gradient: Tensor, weights: Tensor) -> Tensor:
    return gradient * weights.view(-1, *[1] * (gradient.dim() - 1))


class LinearGradients(LayerGradients):
    def compute(self, x: Tensor) -> Tensor:
        return F.linear(x, cast(Tensor, self.constant("weight")), self.constant("bias"))

    def example_gradients(self, call: Call) -> dict[str, Tensor]:
        x, g = _rows(call.input), _rows(cast(Tensor, call.gradient))
        found = {"weight": g.transpose(1, 2) @ x, "bias": g.sum(1)}
        return {name: found[name] for name in self.trained}

    def norms_without_gradients(self, call: Call) -> Tensor | None:
        if call.input.dim() != 2:
            return None
        g = cast(Tensor, call.gradient).square().sum(1)
        factor = (call.input.square().sum(1) if "weight" in self.trained else 0.0) + float("bias" in self.trained)
        return g * factor

    def summed(self, call: Call, weights: Tensor) -> dict[str, Tensor]:
        if call.input.dim() != 2:
            return super().summed(call, weights)
        g = _scaled(cast(Tensor, call.gradient), weights)
        found = {"weight": lambda: g.T @ call.input, "bias": lambda: g.sum(0)}
        return {name: found[name]() for name in self.trained}


class ConvGradients(LayerGradients):
    layer: nn.Conv2d

    def compute(self, x: Tensor) -> Tensor:
        weight = cast(Tensor, self.constant("weight"))
        return cast(Tensor, self.layer._conv_forward(x, weight, self.constant("bias")))

    def example_gradients(self, call: Call) -> dict[str, Tensor]:
        g = cast(Tensor, call.gradient).flatten(2)  # (B, O, L)
        found: dict[str, Tensor] = {}
        if "weight" in self.trained:
            groups = self.layer.groups
            x = self._patches(call.input)  # (B, C k k, L)
            products = g.unflatten(1, (groups, -1)) @ x.unflatten(1, (groups, -1)).transpose(2, 3)
            found["weight"] = products.reshape(len(g), *self.layer.weight.shape)
        if "bias" in self.trained:
            found["bias"] = g.sum(2)
        return found

    def norms_without_gradients(self, call: Call) -> Tensor | None:
        """||sum_l g_l x_l^T||^2 = sum_{l,m} (g_l . g_m) (x_l . x_m)."""
        g = cast(Tensor, call.gradient).flatten(2)
        pixels = g.shape[2]
        if self.layer.groups > 1 or 2 * pixels * pixels > self.layer.weight.numel():
            return None
        norms = g.new_zeros(len(g))
        if "weight" in self.trained:
            x = self._patches(call.input)
            norms = norms + ((g.transpose(1, 2) @ g) * (x.transpose(1, 2) @ x)).sum((1, 2))
        return norms + g.sum(2).square().sum(1) if "bias" in self.trained else norms

    def summed(self, call: Call, weights: Tensor) -> dict[str, Tensor]:
        layer = self.layer
        g = _scaled(cast(Tensor, call.gradient), weights)
        mask = [False, "weight" in self.trained, "bias" in self.trained]
        _, weight, bias = torch.ops.aten.convolution_backward(
            g, self._padded(call.input), layer.weight.detach(), [layer.out_channels], layer.stride, self._padding(),
            layer.dilation, False, [0, 0], layer.groups, mask,
        )  # fmt: skip
        return {name: {"weight": weight, "bias": bias}[name] for name in self.trained}

    def _padding(self) -> list[int]:
        if self.layer.padding_mode != "zeros" or isinstance(self.layer.padding, str):
            return [0, 0]  # padded before, see _padded
        return list(self.layer.padding)

    def _padded(self, x: Tensor) -> Tensor:
        layer = self.layer
        if layer.padding_mode == "zeros" and not isinstance(layer.padding, str):
            return x
        mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        return F.pad(x, layer._reversed_padding_repeated_twice, mode=mode)

    def _patches(self, x: Tensor) -> Tensor:
        layer = self.layer
        if layer.kernel_size == (1, 1) and self._padding() == [0, 0] and not isinstance(layer.padding, str):
            rows, columns = layer.stride
            return x[:, :, ::rows, ::columns].flatten(2)
        return F.unfold(self._padded(x), layer.kernel_size, layer.dilation, tuple(self._padding()), layer.stride)


class NormGradients(LayerGradients):
    """GroupNorm and LayerNorm: the gradient of the weight is that of the output times the normalised input."""

    layer: nn.GroupNorm | nn.LayerNorm

    def compute(self, x: Tensor) -> Tensor:
        return self._normalised(x, self.constant("weight"), self.constant("bias"))

    def _normalised(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        if isinstance(self.layer, nn.GroupNorm):
            return F.group_norm(x, self.layer.num_groups, weight, bias, self.layer.eps)
        return F.layer_norm(x, self.layer.normalized_shape, weight, bias, self.layer.eps)

    def example_gradients(self, call: Call) -> dict[str, Tensor]:
        g = cast(Tensor, call.gradient)
        found: dict[str, Tensor] = {}
        if "weight" in self.trained:
            found["weight"] = self._per_weight(g * self._normalised(call.input, None, None))
        if "bias" in self.trained:
            found["bias"] = self._per_weight(g)
        return found

    def _per_weight(self, products: Tensor) -> Tensor:
        """(B, *shape of the weight): summed over what shares a weight."""
        if isinstance(self.layer, nn.GroupNorm):
            return products.flatten(2).sum(2)
        shared = products.dim() - len(self.layer.normalized_shape)
        return products.flatten(1, shared - 1).sum(1) if shared > 1 else products


def _rows(x: Tensor) -> Tensor:
    """(B, T, D): one row where the layer sees one vector of each example."""
    return x.flatten(1, -2) if x.dim() > 2 else x[:, None]


class AloneGradients(LayerGradients):
    """A module that declares `each_alone`: each row of its output depends on its own row of the input alone."""

    def __init__(self, layer: nn.Module, trained: Mapping[str, nn.Parameter]) -> None:
        super().__init__(layer, trained)
        self.unrecorded = copy(layer)  # with the same weights, and forward as it was

    def compute(self, x: Tensor) -> Tensor:
        return cast(Tensor, functional_call(self.unrecorded, self._constants(), (x,)))

    def _constants(self) -> dict[str, Tensor]:
        return {name: parameter.detach() for name, parameter in self.layer.named_parameters(recurse=False)}

    def example_gradients(self, call: Call) -> dict[str, Tensor]:
        constants = self._constants()

        def along(trained: dict[str, Tensor], x: Tensor, gradient: Tensor) -> Tensor:
            y = cast(Tensor, functional_call(self.unrecorded, {**constants, **trained}, (x[None],)))
            return (y[0] * gradient).sum()

        trained = {name: constants[name] for name in self.trained}
        found = vmap(grad(along), in_dims=(None, 0, 0))(trained, call.input, cast(Tensor, call.gradient))
        return cast(dict[str, Tensor], found)


KINDS: tuple[tuple[type[nn.Module], type[LayerGradients]], ...] = (
    (nn.Linear, LinearGradients),
    (nn.Conv2d, ConvGradients),
    (nn.GroupNorm, NormGradients),
    (nn.LayerNorm, NormGradients),
)


def _kind(module: nn.Module) -> type[LayerGradients] | None:
    """How the gradients of a layer's own parameters are had; None if they cannot be."""
    known = next((gradients for layer, gradients in KINDS if isinstance(module, layer)), None)
    return known or (AloneGradients if getattr(module, "each_alone", False) is True else None)


@dataclass
class ExampleGradients:
    """What the layers of a network recorded in one forward and backward pass."""

    layers: dict[str, LayerGradients]  # by the layer's path within the network

    def clear(self) -> None:
        for layer in self.layers.values():
            layer.calls.clear()
            layer.by_example.clear()

    def norms(self, size: int) -> Tensor:
        """(B,) norm of each example's gradient over all trained parameters."""
        return torch.stack([layer.squared_norms(size) for layer in self.layers.values()]).sum(0).sqrt()

    def weighted_sums(self, weights: Tensor) -> dict[str, Tensor]:
        """Parameter -> the sum over examples of their gradients with these (B,) weights."""
        return {
            f"{path}.{name}" if path else name: value
            for path, layer in self.layers.items()
            for name, value in layer.weighted_sums(weights).items()
        }


def unsupported_layers(net: nn.Module, trained: Mapping[str, nn.Parameter]) -> list[str]:
    """A line for each layer with trained parameters whose per-example gradients cannot be had."""
    wanted = {id(parameter) for parameter in trained.values()}
    lines = []
    for path, module in net.named_modules():
        has_own = any(id(parameter) in wanted for parameter in module.parameters(recurse=False))
        if has_own and _kind(module) is None:
            lines.append(f"{path or 'the network'}: {type(module).__name__}")
    return lines


@contextmanager
def recording(net: nn.Module, trained: Mapping[str, nn.Parameter]) -> Iterator[ExampleGradients]:
    """Inside, the layers that hold `trained` record what `ExampleGradients` needs."""
    if lines := unsupported_layers(net, trained):
        raise ConfigError(
            "there are no per-example gradients of these layers:",
            details=lines[:5],
            hint="Linear, Conv2d, GroupNorm and LayerNorm have them.",
        )
    by_identity = {id(parameter): name for name, parameter in trained.items()}
    layers: dict[str, LayerGradients] = {}
    for path, module in net.named_modules():
        own = {name: p for name, p in module.named_parameters(recurse=False) if id(p) in by_identity}
        if own:
            kind = _kind(module)
            assert kind is not None
            layers[path] = kind(module, own)
    try:
        for layer in layers.values():
            layer.layer.forward = layer.forward
        yield ExampleGradients(layers)
    finally:
        for layer in layers.values():
            layer.layer.__dict__.pop("forward", None)
