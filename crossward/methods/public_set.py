"""The public set in methods that exchange predictions on it: draw from it, predict it, learn from it. Its labels are
out of reach: where a batch of a site's own images has labels, one of public images has their places among the rows."""

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
from crossward.core.site import Site, predict_batch_size


def drawn(server: Server, most: int) -> Tensor:
    """(n,) rows of the public set, `most` of them or all: the same for every site, others in every round."""
    assert server.public is not None  # Need.PUBLIC_SET
    return torch.randperm(len(server.public), generator=server.rng)[:most]


def unlabelled(public: Samples | None, rows: Tensor) -> Samples:
    """These rows of the public set, each with its place among them as its target."""
    assert public is not None  # Need.PUBLIC_SET
    index = public.index[rows]
    places = torch.zeros(len(public.images), dtype=torch.int64)
    places[index] = torch.arange(len(index))
    return replace(public, index=index, targets=places)


def begin(site: Site, epochs: int | None) -> None:
    """A site that takes part for the first time trains on its own images; None: for train.epochs. What this leaves in
    the optimiser is not for the fits of a round."""
    if PERSONAL not in site.memory and epochs != 0:
        site.fit(epochs=epochs)
        site.memory.pop(OPTIMISER, None)


def logits(site: Site, rows: Tensor) -> Tensor:
    """(n, K) or (n, K, H, W): what the site's network says of these rows, in eval mode, on the CPU."""
    samples = unlabelled(site.public, rows)
    with eval_mode(site.model):
        return torch.cat([site.model(x).float().cpu() for x, _ in samples.in_order(predict_batch_size(samples))])


def few(rows: Tensor) -> int:
    """Images in a step when the authors take 256 of 5,000: of fewer images fewer, so that a pass still has 20 steps,
    but 8 at least."""
    return min(256, max(8, len(rows) // 20))


def digest(
    site: Site, rows: Tensor, wanted: Tensor, loss: Callable[[Tensor, Tensor], Tensor], epochs: int, batch: int
) -> None:
    """Fit the site's network to what is wanted of it on these rows, (n, K) or (n, K, H, W). Plugins are about a site's
    own images and stay out of it, and site.rng is left to those, too."""
    if not epochs:
        return
    samples, rng, target = unlabelled(site.public, rows), stream(site.rng, "public"), wanted.to(site.device)

    def batches() -> Iterator[Batch]:
        for site.epoch in range(epochs):
            yield from samples.shuffled(batch, rng)

    site.fit(lambda out: loss(out.logits, target[out.y]), batches=batches(), plugins=False)
