"""Losses: pure functions of logits and targets. Shapes: logits (B, K, ...), y (B, ...) class ids."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from crossward.core.weights import Weights


def dice(logits: Tensor, y: Tensor, *, smooth: float = 1e-5) -> Tensor:
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
    """(K,) log(share of each class + 1e-9): added to logits it makes softmax the balanced softmax of Ren et al.
    (NeurIPS 2020). A class counts as having at least `least` samples; a part `even` of what is seen has all classes
    alike."""
    held = counts.clamp_min(least)
    return torch.log((1 - even) * held / held.sum().clamp_min(1) + even / len(held) + 1e-9)


def along(values: Tensor, logits: Tensor) -> Tensor:
    """(K,) values shaped so that they meet the classes of the logits."""
    return values.to(logits.device).view(-1, *(1,) * (logits.ndim - 2))


def diversity(made: Tensor, z: Tensor, y: Tensor, classes: int) -> Tensor:
    """How alike the things are that were made of different z: the mean over pairs of one class of
    1 / (||x_i - x_j||_1 / ||z_i - z_j||_1 + 1e-5), averaged over all classes; one without a pair counts 0."""
    same = y[:, None] == y
    i, j = torch.triu_indices(len(y), len(y), 1, device=y.device)
    i, j = i[same[i, j]], j[same[i, j]]
    flat = made.flatten(1)
    apart = (flat[i] - flat[j]).abs().sum(1) / (z[i] - z[j]).abs().sum(1)  # (pairs,)
    pairs = torch.bincount(y[i], minlength=classes)
    return ((1 / (apart + 1e-5)) / pairs[y[i]]).sum() / classes


def distilled(teacher: Tensor, student: Tensor, y: Tensor, *, others: float) -> Tensor:
    """(N,) decoupled knowledge distillation (Zhao et al., CVPR 2022) of logits (N, K), temperature 1: the divergence of
    [p_y, 1 - p_y] plus `others` times that of the probabilities among the other classes."""
    target = F.one_hot(y, teacher.shape[1]).bool()
    p, q = teacher.log_softmax(1), student.log_softmax(1)
    p_y, q_y = p[target], q[target]
    p_rest, q_rest = (_log_rest(log_p, target) for log_p in (p, q))
    binary = p_y.exp() * (p_y - q_y) + p_rest.exp() * (p_rest - q_rest)
    if teacher.shape[1] < 3:  # one other class has all that is left
        return binary
    among_p, among_q = (x.masked_fill(target, -torch.inf).log_softmax(1) for x in (teacher, student))
    among = among_p.exp() * (among_p - among_q)
    return binary + others * among.masked_fill(target, 0.0).sum(1)


def _log_rest(log_p: Tensor, target: Tensor) -> Tensor:
    """(N,) log(1 - p_y), by adding up the other classes, where a difference would lose what is small."""
    return log_p.masked_fill(target, -torch.inf).logsumexp(1)
