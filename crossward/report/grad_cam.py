"""Grad-CAM: where a network looks when it decides for a class. Gradients are taken of one batch; nothing is trained."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from crossward.runs.deployed import Deployed

BATCH = 32  # images of which gradients are kept at a time


def grad_cam(network: Deployed, images: Tensor, classes: Sequence[int]) -> Tensor | None:
    """(N, H, W) from 0 to 1: which pixels speak for a class (Grad-CAM: Selvaraju et al., ICCV 2017), read off the last
    convolution of the body. None if there is none, or if the method's predictions have no gradient."""
    layers = [module for module in network.network.body.modules() if isinstance(module, nn.Conv2d)]
    if not layers:
        return None
    maps = []
    for start in range(0, len(images), BATCH):
        wanted = torch.as_tensor(classes[start : start + BATCH])
        for x in network.inputs(images[start : start + BATCH]):
            found = _grad_cam(network, layers[-1], x, wanted[: len(x)])
            if found is None:
                return None
            maps.append(found)
            wanted = wanted[len(x) :]
    together = torch.cat(maps)[:, None]
    return F.interpolate(together, size=tuple(images.shape[1:3]), mode="bilinear", align_corners=False)[:, 0]


def _grad_cam(network: Deployed, layer: nn.Module, x: Tensor, classes: Tensor) -> Tensor | None:
    kept: list[Tensor] = []
    hook = layer.register_forward_hook(lambda module, inputs, output: kept.append(output))
    try:
        with torch.enable_grad():
            logits = network.logits(x.clone().requires_grad_())
    finally:
        hook.remove()
    if not kept or not logits.requires_grad or kept[-1].ndim != 4:
        return None
    chosen = logits[torch.arange(len(x)), classes.to(logits.device)].sum()
    gradient: Tensor | None = torch.autograd.grad(chosen, kept[-1], allow_unused=True)[0]
    if gradient is None:
        return None
    weights = gradient.mean((2, 3), keepdim=True)
    heat = F.relu((weights * kept[-1]).sum(1)).detach()  # (B, h, w)
    largest = heat.flatten(1).max(1).values.clamp_min(1e-12)
    return (heat / largest[:, None, None]).float()
