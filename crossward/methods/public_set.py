"""The public set in methods that exchange predictions on it: draw rows, predict them, and distil from them.

Methods never see its labels: where a batch of a site's own images has labels, a batch of public images has the places
of its images among the drawn rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from crossward.core.loop import eval_mode
from crossward.core.method import PERSONAL, Server
from crossward.core.optimiser_memory import OPTIMISER
from crossward.core.samples import Batch, Samples
from crossward.core.seeds import stream
from crossward.core.site import Site, in_pieces, prediction_batch_sizes


def draw_public_rows(server: Server, most: int) -> Tensor:
    """(n,) rows of the public set, `most` of them or all: the same for every site, others in every round."""
    assert server.public is not None  # Need.PUBLIC_SET
    return torch.randperm(len(server.public), generator=server.rng)[:most]


def unlabelled_samples(public: Samples | None, rows: Tensor) -> Samples:
    """These rows of the public set; the target of each is its place among them."""
    assert public is not None  # Need.PUBLIC_SET
    index = public.index[rows.cpu()]  # indices stay on the CPU, where the images are
    places = torch.zeros(len(public.images), dtype=torch.int64)
    places[index] = torch.arange(len(index))
    return replace(public.with_targets(places), index=index)


def train_before_first_round(site: Site, epochs: int | None) -> None:
    """Train a site that takes part for the first time on its own images; None: for train.epochs. The optimiser's state
    is dropped: the fits of a round start without it."""
    if PERSONAL not in site.memory and epochs != 0:
        site.fit(epochs=epochs)
        site.memory.pop(OPTIMISER, None)


def public_logits(site: Site, rows: Tensor) -> Tensor:
    """(n, K) or (n, K, H, W): the logits of the site's network for these rows, in eval mode, on the CPU."""
    samples = unlabelled_samples(site.public, rows)
    batches = samples.in_order(prediction_batch_sizes(samples)[0])
    with eval_mode(site.model):
        return torch.cat([in_pieces(site.model, x).float().cpu() for x, _ in batches])  # maps of all would be large


def default_batch_size(rows: Tensor) -> int:
    """Public images in a step. The authors take 256 of 5,000: of fewer images fewer, so that a pass still has 20 steps,
    but 8 at least."""
    return min(256, max(8, len(rows) // 20))


def distil(
    site: Site, rows: Tensor, target: Tensor, loss: Callable[[Tensor, Tensor], Tensor], epochs: int, batch_size: int
) -> None:
    """Fit the site's network to a target for each of these rows, (n, K) or (n, K, H, W). Plugins are about a site's own
    images and stay out of it; site.rng is left to those images, too."""
    if not epochs:
        return
    samples = unlabelled_samples(site.public, rows)
    rng = stream(site.rng, "public")

    def batches() -> Iterator[Batch]:
        for site.epoch in range(epochs):
            yield from samples.shuffled(batch_size, rng)

    site.fit(lambda out: loss(out.logits, target[out.y]), batches=batches(), plugins=False, public=True)
