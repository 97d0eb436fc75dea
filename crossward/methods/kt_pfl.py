"""KT-pFL: Parameterized Knowledge Transfer for Personalized Federated Learning.
Zhang, Guo, Ma, Wang, Xu, Wu, NeurIPS 2021, https://arxiv.org/abs/2111.02862; https://github.com/cugzj/KT-pFL

    paper               here                         lives
    D_r, public data    site.public                  every site and the server; `rows` of it are drawn in each round
    w_n                 site.model                   client, between rounds; never sent; any architecture
    s(w_n, x_r)         reply["probabilities"]       sent: softmax(logits / T)
    c                   state["coefficients"]        server: (N, N), rows sum to 1; never sent
    sum_m c_nm s_m      payload["probabilities"]     the teacher of one site, sent to it alone
    T, rho, lambda      temperature, rho, weight
    eta_3               coefficient_lr

Departures:
- Coefficients are renewed as in the code: one step on the mean squared error of a site's predictions from its teacher
  (in the paper their divergence, sites weighted by their images) plus rho times that of its row from 1 / N; the step
  is scaled by a power of 5 so that coefficients move by 0.01 to 0.05 on average (or is coefficient_lr), and the row
  becomes softmax(5 c). The teacher is made with the new row.
- That softmax, which a comment of the authors calls makeshift, scales small differences from 1 / N by 5 / N. Among
  fewer than 5 sites rows drift apart by it alone, until each site is its own teacher (by 98 % where there are 4),
  unless the step of rho, scaled as well, holds them: at the defaults a site's own share stays at 0.27-0.43 among 3
  sites and at 0.15-0.39 among 4 (100 rounds, 3 seeds), but between 2 it ends at 0.99 or at 0.01. normalise = "project"
  takes the nearest row of coefficients >= 0 that sum to 1 instead.
- The divergence of a site from its teacher is summed over classes; the code averages it over them (weight = 1 / K).
- As in the code a site first distils, then trains on its own images, which the code does for 1, 2, ... 10 epochs from
  round to round and we for train.epochs; and before its first round for one epoch (start_epochs). The code's batches
  of 256 of 3,000 public images or more are smaller where there are fewer images, which would else be a step or two.
- With some of the sites, the rows and columns of those that answered are renewed among themselves: they share anew
  what they had, and coefficients of the others stay. Their teachers have shares that are scaled to sum to 1.
- A site that is lost between its predictions and its teacher has its say in the teachers of others, and its own row is
  renewed; its network stays as it was. One without training images has a row and a column that nobody uses.
- The paper classifies images. In segmentation a pixel is predicted, at the cost of H x W times the numbers: choose a
  small `subset` there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge, Gt
from torch import Tensor
from torch.nn import functional as F

from crossward.core import select
from crossward.core.disclosure import Disclosure, DisclosureKind, Made
from crossward.core.method import Clients, Method, Need, RoundContext
from crossward.core.plugin import RunFacts
from crossward.core.select import Select
from crossward.core.site import Site
from crossward.core.tree import Tree
from crossward.methods.public_set import (
    default_batch_size,
    distil,
    draw_public_rows,
    public_logits,
    train_before_first_round,
)

SHARPNESS = 5.0  # of the softmax that normalises a row (code)
BASE, LEAST, MOST_TIMES = 5.0, 0.01, 5  # a step is scaled by 5, at most 5 times, to at least 0.01 on average (code)
CHUNK = 2**20  # numbers of each site's predictions that are multiplied at a time


@dataclass(frozen=True)
class KTpFL(Method):
    tasks: ClassVar[tuple[str, ...]] = ("classification", "segmentation")
    shared: ClassVar[Select] = select.nothing
    needs: ClassVar[frozenset[Need]] = frozenset({Need.PUBLIC_SET})
    steps: ClassVar[tuple[str, ...]] = ("score", "train")
    discloses: ClassVar[Mapping[str, Disclosure]] = {
        "probabilities": Disclosure(
            DisclosureKind.LOGITS, "softened class probabilities on the public set", made=Made.WEIGHTS
        )
    }
    server_needs: ClassVar[str] = "it mixes the predictions of the sites anew for each site"
    recipe: ClassVar[Mapping[str, Any]] = {"optimizer": "sgd", "lr": 0.02, "batch_size": 16, "epochs": 10}

    temperature: Annotated[float, Gt(0)] = 10.0  # T, of what is sent and of the distillation
    rho: Annotated[float, Ge(0)] = 0.7  # how strongly rows are held at 1 / N
    weight: Annotated[float, Ge(0)] = 1.0  # lambda, of the distillation
    coefficient_lr: Annotated[float, Gt(0)] | None = None  # eta_3; None: scaled as in the authors' code
    normalise: Literal["softmax", "project"] = "softmax"  # how a row sums to 1 after its step
    subset: Annotated[int, Ge(1)] = 5000  # public images in a round, drawn anew; all if there are fewer
    start_epochs: Annotated[int, Ge(0)] = 1  # on its own images, before a site takes part
    digest_epochs: Annotated[int, Ge(0)] = 1  # over the public images of a round
    digest_batch: Annotated[int, Ge(2)] | None = None  # public images in a step; None: a twentieth, from 8 to 256

    def cautions(self, facts: RunFacts) -> list[str]:
        n = sum(any(by_class.values()) for by_class in facts.counts.values())
        held = self.rho > 0 and self.coefficient_lr is None  # at 1 / N, by a step as large as what drives them apart
        if self.normalise == "project" or not 1 < n < (3 if held else SHARPNESS):
            return []
        end = "each taught by one site, itself or another (share 0.95-0.99 in our runs)"
        return [f"normalise = 'softmax' among {n} sites comes to rows {end}; 'project' is the alternative"]

    # server half -----------------------------------------------------------------------------------------------------
    def start(self, ctx: RoundContext) -> Tree:
        n = len(ctx.server.architectures)
        return {"coefficients": torch.full((n, n), 1 / n, dtype=torch.float64)}

    def broadcast(self, state: Tree) -> Tree:
        """A site predicts without its row."""
        return {}

    def round(self, state: Tree, clients: Clients, ctx: RoundContext) -> Tree:
        rows = draw_public_rows(ctx.server, self.subset)
        sites = sorted(ctx.server.architectures)
        replies = clients.ask("score", {"rows": rows})
        p = torch.stack([reply["probabilities"] for reply in replies.values()])  # (m, n, K, ...)
        here = torch.tensor([sites.index(site) for site in replies])
        c, shares = self.renewed(state["coefficients"], here, products(p))
        row = {site: shares[k].to(p) for k, site in enumerate(replies)}

        def teacher_of(site: int) -> Tree:  # one at a time: all teachers at once take as much memory as all replies
            return {"rows": rows, "probabilities": torch.einsum("j,j...->...", row[site], p)}

        clients.ask("train", teacher_of)
        return {"coefficients": c}

    def renewed(self, c: Tensor, here: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        """All coefficients (N, N) after a round, and those among the sites `here`, (m, m), as shares that sum to 1;
        `g` are the `products` of these sites."""
        among = c[here][:, here]
        held = among.sum(1, keepdim=True)  # what the sites here have of each row
        begun = torch.where(held > 0, among / held, 1 / len(here))
        shares = self.stepped(begun, g)
        return c.index_put((here[:, None], here), held * shares), shares

    def stepped(self, c: Tensor, g: Tensor) -> Tensor:
        """Rows after a step down the gradient of mean((p_k - sum_j c_kj p_j)^2) + rho mean((c_k - 1 / m)^2)."""
        m = len(c)
        gradient = 2 * (c @ g - g) + 2 * self.rho * (c - 1 / m) / m
        rate = scale(gradient.abs().mean(1, keepdim=True)) if self.coefficient_lr is None else self.coefficient_lr
        moved = c - rate * gradient
        return (SHARPNESS * moved).softmax(1) if self.normalise == "softmax" else projected(moved)

    # client half -----------------------------------------------------------------------------------------------------
    def score(self, site: Site, down: Tree) -> Tree:
        train_before_first_round(site, self.start_epochs)
        return {"probabilities": (public_logits(site, down["rows"]) / self.temperature).softmax(1)}

    def train(self, site: Site, down: Tree) -> Tree:
        rows, teacher = down["rows"], down["probabilities"]
        batch_size = self.digest_batch or default_batch_size(rows)
        distil(site, rows, teacher, self.divergence, self.digest_epochs, batch_size)
        site.fit()
        return {}

    def divergence(self, logits: Tensor, teacher: Tensor) -> Tensor:
        """The divergence of a site's network from its teacher, the mean over images or pixels."""
        log_q = (logits / self.temperature).log_softmax(1)
        return self.weight * F.kl_div(log_q, teacher, reduction="none").sum(1).mean()


def products(p: Tensor) -> Tensor:
    """(m, m): the mean product of the predictions of each two sites, (m, n, K, ...). In double precision: softened
    predictions are nearly alike, and only what they differ by moves coefficients."""
    flat = p.flatten(1)
    total = flat.new_zeros(len(p), len(p), dtype=torch.float64)
    for part in flat.split(CHUNK, 1):
        total += part.double() @ part.double().T
    return total / flat.shape[1]


def scale(size: Tensor) -> Tensor:
    """The power of 5, from 5^-5 to 5^5, that takes a gradient of this mean size to at least 0.01 and below 0.05."""
    times = -torch.floor((size / LEAST).log() / math.log(BASE))
    return torch.pow(BASE, times.clamp(-MOST_TIMES, MOST_TIMES))


def projected(rows: Tensor) -> Tensor:
    """The nearest rows with elements >= 0 that sum to 1 (Duchi et al., ICML 2008)."""
    ordered = rows.sort(1, descending=True).values
    excess = (ordered.cumsum(1) - 1) / torch.arange(1, rows.shape[1] + 1, device=rows.device)  # if so many stay above 0
    count = (ordered > excess).sum(1, keepdim=True)
    return (rows - excess.gather(1, count - 1)).clamp_min(0)
