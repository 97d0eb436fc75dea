"""Losses that several methods share: pure functions. Shapes: logits (B, K, ...), y (B, ...) class ids."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from crossward.core.weights import Weights


def dice_loss(logits: Tensor, y: Tensor, *, smooth: float = 1e-5) -> Tensor:
    """1 - soft Dice, the mean over images and all classes but the background, class 0 (Milletari et al., 3DV 2016).

    Equal to monai.losses.DiceLoss(to_onehot_y=True, softmax=True, include_background=False).
    """
    p = logits.float().softmax(1)[:, 1:]  # float: the sums over pixels overflow half precision
    foreground = torch.arange(1, logits.shape[1], device=y.device).view(-1, *(1,) * (y.ndim - 1))
    t = (y.unsqueeze(1) == foreground).to(p.dtype)  # (B, K-1, H, W)
    overlap = (p * t).flatten(2).sum(2)
    total = p.flatten(2).sum(2) + t.flatten(2).sum(2)
    return (1 - (2 * overlap + smooth) / (total + smooth)).mean()


def proximal_gradient(net: nn.Module, anchor: Weights, weight: float) -> Weights:
    """The gradient of (weight / 2) ||w - anchor||² at the network's present weights, for the names of the anchor."""
    present = dict(net.named_parameters())
    w = Weights({name: present[name].detach() for name in anchor})
    return weight * (w - anchor)


def log_prior(counts: Tensor, *, least: float = 0.0, even: float = 0.0) -> Tensor:
    """(K,) log(share of each class + 1e-9).

    Added to logits it makes softmax the balanced softmax of Ren et al. (NeurIPS 2020). A class counts as having at
    least `least` samples; the shares are mixed with uniform ones by the weight `even`.
    """
    n = counts.clamp_min(least)
    return torch.log((1 - even) * n / n.sum().clamp_min(1) + even / len(n) + 1e-9)


def per_class(values: Tensor, logits: Tensor) -> Tensor:
    """(K,) values as (K, 1, ...), which broadcast over the classes of the logits."""
    return values.to(logits.device).view(-1, *(1,) * (logits.ndim - 2))


def diversity_loss(x: Tensor, z: Tensor, y: Tensor, classes: int) -> Tensor:
    """How alike the x are that were generated from different z.

    The mean over pairs of one class of 1 / (||x_i - x_j||_1 / ||z_i - z_j||_1 + 1e-5), averaged over all classes; a
    class without a pair counts 0.
    """
    same = y[:, None] == y
    i, j = torch.triu_indices(len(y), len(y), 1, device=y.device)
    i, j = i[same[i, j]], j[same[i, j]]
    flat = x.flatten(1)
    ratios = (flat[i] - flat[j]).abs().sum(1) / (z[i] - z[j]).abs().sum(1)  # (pairs,)
    pairs = torch.bincount(y[i], minlength=classes)
    return ((1 / (ratios + 1e-5)) / pairs[y[i]]).sum() / classes


def decoupled_distillation(teacher: Tensor, student: Tensor, y: Tensor, *, others: float) -> Tensor:
    """(N,) decoupled knowledge distillation (Zhao et al., CVPR 2022) of logits (N, K), at temperature 1.

    The divergence of [p_y, 1 - p_y] plus `others` times that of the probabilities among the other classes.
    """
    target = F.one_hot(y, teacher.shape[1]).bool()
    p, q = teacher.log_softmax(1), student.log_softmax(1)
    p_y, q_y = p[target], q[target]
    p_rest, q_rest = (_log_rest(log_p, target) for log_p in (p, q))
    binary = p_y.exp() * (p_y - q_y) + p_rest.exp() * (p_rest - q_rest)
    if teacher.shape[1] < 3:  # the only other class has the whole rest
        return binary
    among_p, among_q = (x.masked_fill(target, -torch.inf).log_softmax(1) for x in (teacher, student))
    among = among_p.exp() * (among_p - among_q)
    return binary + others * among.masked_fill(target, 0.0).sum(1)


def _log_rest(log_p: Tensor, target: Tensor) -> Tensor:
    """(N,) log(1 - p_y), as a sum over the other classes: the difference would lose precision."""
    return log_p.masked_fill(target, -torch.inf).logsumexp(1)
