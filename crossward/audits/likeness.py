"""How like two images are: PSNR and SSIM, and means of such figures with their intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from crossward.comparison.intervals import Estimate, seeds_and_images_estimate
from crossward.comparison.resampling import draw
from crossward.core.samples import Samples

WINDOW = 7  # pixels of a side, as in scikit-image
SMALL = (0.01**2, 0.03**2)  # the constants of Wang et al. 2004, for pixels from 0 to 1
MOST_PSNR = 100.0  # dB; of images that agree to the last bit it would be infinite


def pixels(x: Tensor, samples: Samples) -> Tensor:
    """(N, C, H, W) images as a network takes them, from 0 to 1 as people see them."""
    mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (samples.mean, samples.std))
    return (x.detach().cpu().float() * std + mean).clamp(0, 1)


def psnr(a: Tensor, b: Tensor) -> float:
    """In dB, of images from 0 to 1."""
    error = float((a - b).square().mean())
    return min(MOST_PSNR, -10 * math.log10(error)) if error > 0 else MOST_PSNR


def ssim(a: Tensor, b: Tensor) -> float:
    """The mean structural similarity of two (C, H, W) images from 0 to 1, in windows of 7 pixels or of the whole."""
    window = min(WINDOW, *a.shape[1:])
    samples = window**2

    def means(x: Tensor) -> Tensor:
        return F.avg_pool2d(x[None].double(), window, 1)[0]

    mean_a, mean_b = means(a), means(b)
    unbiased = samples / (samples - 1)
    variance_a, variance_b = (
        (means(x * x) - m * m) * unbiased for x, m in ((a.double(), mean_a), (b.double(), mean_b))
    )
    covariance = (means(a.double() * b.double()) - mean_a * mean_b) * unbiased
    c1, c2 = SMALL
    likeness = (2 * mean_a * mean_b + c1) * (2 * covariance + c2)
    return float((likeness / ((mean_a**2 + mean_b**2 + c1) * (variance_a + variance_b + c2))).mean())


def mean_estimate(name: str, figures: Sequence[float], seed: int = 0) -> Estimate:
    """The mean over images, with its interval over resampled images; none with one image."""
    values = np.asarray(figures, dtype=np.float64)
    if len(values) == 1:
        return Estimate(name, float(values[0]), None, None, 0.95, "one image: no interval", 1)
    resampling = draw([[str(number) for number in range(len(values))]], {}, seed=seed)
    drawn = resampling.counts.astype(np.float64) @ values / resampling.counts.sum(1)
    return seeds_and_images_estimate(name, [float(values.mean())], drawn[None], resampling)
