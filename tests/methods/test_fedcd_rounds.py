"""Three rounds of FedCD in plain torch, from the equations of the paper."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from crossward.core.seeds import derive
from crossward.methods.fedcd import FedCD
from crossward.testing.plain_rounds import PLAN, THREE, PlainFedAvg, Values, check_three_rounds, floats
from crossward.testing.toy import CLASSES, classifier, other_classifier

HEAD = "head.weight"  # (C M, d), the M rows of a class one after the other
LARGE = {"alpha": 0.2, "tau": 0.5, "gamma": 0.7, "weight": 0.8, "xi": 2.0}  # terms that show


def generator(*purpose: int | str) -> torch.Generator:
    return torch.Generator().manual_seed(derive(THREE.seed, *purpose))


def k_means(rows: Tensor, mass: Tensor, k: int, rng: torch.Generator) -> Tensor:
    """(k, d) centres by k-means++ and at most 100 moves. Too few rows are repeated with a noise of 0.001 of their
    size. It draws from `rng` what the package draws, in the same order, so that numbers can be equal."""
    lacking = k - len(rows)
    if lacking > 0:
        copies = [j % len(rows) for j in range(lacking)]
        noise = 0.001 * rows.square().mean().sqrt() * torch.randn(lacking, rows.shape[1], generator=rng)
        rows, mass = torch.cat([rows, rows[copies] + noise]), torch.cat([mass, mass[copies]])
    first = torch.multinomial(mass, 1, generator=rng)
    centres = rows[first]
    for _ in range(k - 1):
        squared = (rows[:, None] - centres).square().sum(2).min(1).values
        centres = torch.cat([centres, rows[torch.multinomial(mass * squared, 1, generator=rng)]])
    for _ in range(100):
        near = (rows[:, None] - centres).square().sum(2).argmin(1)
        centres = torch.stack(
            [
                (mass[near == j, None] * rows[near == j]).sum(0) / mass[near == j].sum()
                if (near == j).any()
                else centre
                for j, centre in enumerate(centres)
            ]
        )
    return centres


class PlainFedCD(PlainFedAvg):
    """Full batches: each holds all samples of a site, and all prototypes whatever their importance.

    In a round with mu = 1 the contrast is no part of the loss, and the optimiser leaves P^k as it is, weight decay
    included.
    """

    m, alpha, tau, gamma, weight, xi = 3, 0.2, 0.5, 0.7, 0.8, 2.0

    def begin(self) -> None:
        self.p = torch.zeros(len(CLASSES), self.m, self.net.width)  # P^g
        self.n = torch.zeros(len(CLASSES), self.m)  # n_{c,m}
        self.sent: dict[int, tuple[Tensor, Tensor]] = {}  # P^k and n^k_{c,m}

    @property
    def mu(self) -> float:
        return 1 - self.round / PLAN.rounds

    # client ----------------------------------------------------------------------------------------------------------
    def client(self, i: int) -> Values:
        net = self.loaded(self.w)
        self.first = self.first_prototypes(i, net)
        net.prototypes = nn.Parameter(self.first.clone())  # they take the steps of the network's weights
        self.steps(i, net, lambda name: name != "prototypes" or self.learns_prototypes())
        z, y = self.seen(i, net)
        t = self.nearest(z, y)
        n = torch.zeros_like(self.n)
        for c, m in zip(y.tolist(), t.tolist(), strict=True):
            n[c, m] += 1
        end = floats(net)
        self.sent[i] = self.local_prototypes(end.pop("prototypes"), z, y, t), n
        return end

    def learns_prototypes(self) -> bool:
        return self.mu < 1

    def local_prototypes(self, learnt: Tensor, z: Tensor, y: Tensor, t: Tensor) -> Tensor:
        return learnt

    def seen(self, i: int, net: nn.Module) -> tuple[Tensor, Tensor]:
        """Features in eval mode, and labels."""
        x, y = self.data[i]
        net.eval()
        with torch.no_grad():
            z = net.features(x)
        net.train()
        return z, y

    def first_prototypes(self, i: int, net: nn.Module) -> Tensor:
        """P^g, or the site's own centroids for a class that has none yet."""
        first = self.p.clone()
        rng = generator("train", self.round, 0, i)
        rng.manual_seed(derive(rng.initial_seed(), "centroids"))
        z, y = self.seen(i, net)
        for c in range(len(CLASSES)):
            if (y == c).any() and not self.p[c].any():
                first[c] = k_means(z[y == c], torch.ones(int((y == c).sum())), self.m, rng)
        return first

    def nearest(self, z: Tensor, y: Tensor) -> Tensor:
        """Eq. 2, with the prototypes that the round began with."""
        return torch.stack([F.cosine_similarity(row, self.first[c]) for row, c in zip(z, y, strict=True)]).argmax(1)

    def logits(self, z: Tensor, phi: Tensor) -> Tensor:
        """(B, C): D(z) W, with a W that adds up the sub-classes of a class."""
        return z @ phi.T @ torch.kron(torch.eye(len(CLASSES)), torch.ones(self.m, 1))

    def importance(self, samples: int, n: Tensor) -> Tensor:
        """Balanced: all prototypes weigh as much as all samples."""
        return samples * n / n.sum()

    def loss(self, i: int, net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """Eq. 11, over D^{k+}: the samples, and the global prototypes there are."""
        z = net.features(x)
        c, m = self.n.nonzero(as_tuple=True)
        t = torch.cat([self.nearest(z.detach(), y), m])
        every, labels = torch.cat([z, self.p[c, m]]), torch.cat([y, c])
        shares = torch.cat([torch.ones(len(y)), self.importance(len(y), self.n[c, m])])
        shares = shares / shares.sum()  # I / N_I
        teacher = self.logits(every.detach(), self.w[HEAD])
        student = self.logits(every, net.head.weight)
        value = self.mu * (shares * F.cross_entropy(student, labels, reduction="none")).sum()  # Eq. 10
        value = value + self.gamma * self.of_batch_prototypes(z, y)
        value = value + self.weight * (shares * self.gaps(teacher, student, labels)).sum()  # Eq. 9
        if self.learns_prototypes():
            value = value - (1 - self.mu) * (shares * self.omega(every, labels, t, net.prototypes).log()).sum()  # Eq. 5
        return value

    def omega(self, z: Tensor, y: Tensor, t: Tensor, prototypes: Tensor) -> Tensor:
        """Eqs. 3 and 4; a prototype that is nobody's yet is no negative."""
        psi = (F.cosine_similarity(z[:, None, None], prototypes, dim=3) / self.tau).exp()  # (B, C, M)
        there = self.first.any(2)  # (C, M)
        shares = []
        for row, c, m in zip(psi, y.tolist(), t.tolist(), strict=True):
            positive, kin = row[c, m], sum(row[c, k] for k in range(self.m) if k != m and there[c, k])
            others = sum(row[j][there[j]].sum() for j in range(len(CLASSES)) if j != c)
            shares.append(positive / (positive + self.alpha * kin + (1 - self.alpha) * others))
        return torch.stack(shares)

    def of_batch_prototypes(self, z: Tensor, y: Tensor) -> Tensor:
        """Eqs. 6 and 7: by the classifier that the server sent."""
        d = [self.logits(z[y == c].mean(0)[None], self.w[HEAD]).softmax(1)[0, c] for c in y.unique().tolist()]
        return -torch.stack(d).log().mean()

    def gaps(self, teacher: Tensor, student: Tensor, y: Tensor) -> Tensor:
        """Eq. 8."""
        p, q = teacher.softmax(1), student.softmax(1)
        gaps = []
        for p_i, q_i, c in zip(p, q, y.tolist(), strict=True):
            others = [j for j in range(len(CLASSES)) if j != c]
            binary = [torch.stack([r[c], 1 - r[c]]) for r in (p_i, q_i)]
            among = [r[others] / (1 - r[c]) for r in (p_i, q_i)]
            gaps.append(divergence(*binary) + self.xi * divergence(*among))
        return torch.stack(gaps)

    # server ----------------------------------------------------------------------------------------------------------
    def aggregate(self, ends: Mapping[int, Values]) -> None:
        p_k, n_k = (torch.stack([self.sent[i][part] for i in ends]) for part in (0, 1))
        rng = generator("server", self.round)
        for c in range(len(CLASSES)):
            if n_k[:, c].any():
                p, n = p_k[:, c], n_k[:, c]
                self.p[c], self.n[c] = self.joined(p, n, rng) if not self.p[c].any() else self.means(self.p[c], p, n)
        phi_k = torch.stack([end[HEAD] for end in ends.values()])
        self.w = self.weighted(ends)
        self.w[HEAD] = self.head(phi_k, n_k)

    def means(self, before: Tensor, p_k: Tensor, n_k: Tensor) -> tuple[Tensor, Tensor]:
        """Eq. 1 for one class: (M, d) and (M,). A sub-class that nobody here has stays where it was."""
        n = n_k.sum(0)
        new = [(n_k[:, m, None] * p_k[:, m]).sum(0) / n[m] if n[m] else before[m] for m in range(self.m)]
        return torch.stack(new), n

    def joined(self, p_k: Tensor, n_k: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """(M, d) and (M,): a class that is new, whose sub-classes are not yet the same at all sites."""
        rows, mass = p_k[n_k > 0], n_k[n_k > 0]
        centres = k_means(rows, mass, self.m, rng)
        near = (rows[:, None] - centres).square().sum(2).argmin(1)
        return centres, torch.stack([mass[near == m].sum() for m in range(self.m)])

    def head(self, phi_k: Tensor, n_k: Tensor) -> Tensor:
        """Eqs. 13 to 15, for each class vector."""
        vectors = []
        for j, p_j in enumerate(self.p.flatten(0, 1)):
            quality = torch.stack([(phi @ p_j).softmax(0)[j] for phi in phi_k])
            v = self.shares(quality, n_k[:, j // self.m, j % self.m], n_k[:, j // self.m].sum(1))
            vectors.append((v[:, None] * phi_k[:, j]).sum(0))
        return torch.stack(vectors)

    def shares(self, quality: Tensor, n: Tensor, n_of_class: Tensor) -> Tensor:
        """Eq. 14."""
        return quality.exp() / quality.exp().sum()

    def server_items(self) -> Mapping[str, object]:
        return {"prototypes": self.p, "counts": self.n, "mu": self.mu}


def divergence(p: Tensor, q: Tensor) -> Tensor:
    return (p * (p.log() - q.log())).sum()


class PlainOptions(PlainFedCD):
    """From the first round with contrast; n_{c,m} as importance; sub-classes are never joined; sites that lack a class
    have no share in its vectors."""

    m, mu = 2, 0.4

    def importance(self, samples: int, n: Tensor) -> Tensor:
        return n

    def joined(self, p_k: Tensor, n_k: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        return self.means(torch.zeros_like(p_k[0]), p_k, n_k)

    def shares(self, quality: Tensor, n: Tensor, n_of_class: Tensor) -> Tensor:
        held = quality.exp() * (n_of_class > 0)
        return held / held.sum()

    def logits(self, z: Tensor, phi: Tensor) -> Tensor:
        return super().logits(z, phi) / self.m


class PlainAblations(PlainFedCD):
    """FedCD-hpc, FedCD/kd and FedCD/cla, without prototypes among the samples."""

    m = 2

    def learns_prototypes(self) -> bool:
        return False

    def local_prototypes(self, learnt: Tensor, z: Tensor, y: Tensor, t: Tensor) -> Tensor:
        means = torch.zeros_like(learnt)
        for c, m in {*zip(y.tolist(), t.tolist(), strict=True)}:
            means[c, m] = z[(y == c) & (t == m)].mean(0)
        return means

    def importance(self, samples: int, n: Tensor) -> Tensor:
        return torch.zeros_like(n)

    def gaps(self, teacher: Tensor, student: Tensor, y: Tensor) -> Tensor:
        return torch.stack([divergence(*rows) for rows in zip(teacher.softmax(1), student.softmax(1), strict=True)])

    def logits(self, z: Tensor, phi: Tensor) -> Tensor:
        return (z @ phi.T).exp().view(len(z), len(CLASSES), self.m).sum(2).log()

    def shares(self, quality: Tensor, n: Tensor, n_of_class: Tensor) -> Tensor:
        return n / n.sum() if n.any() else self.by_samples

    def aggregate(self, ends: Mapping[int, Values]) -> None:
        sizes = torch.tensor([len(self.data[i][1]) for i in ends])
        self.by_samples = sizes / sizes.sum()
        super().aggregate(ends)


# Features of other_classifier are so large that Eqs. 13 and 14 tell clients apart; those behind a projection are so
# small that prototypes change their sub-classes within a fit.
CASES = {
    "projected": (FedCD(**LARGE, projection=6), PlainFedCD, classifier),
    "fedcd": (FedCD(**LARGE, projection=0), PlainFedCD, other_classifier),
    "options": (
        FedCD(
            **LARGE,
            projection=6,
            subclasses=2,
            mu=0.4,
            importance="paper",
            align="none",
            mask_absent=True,
            subclass_pool="mean",
        ),
        PlainOptions,
        classifier,
    ),
    "ablations": (
        FedCD(
            **LARGE,
            projection=6,
            subclasses=2,
            contrast=False,
            distillation="plain",
            aggregation="counts",
            importance="none",
            subclass_pool="logsumexp",
        ),
        PlainAblations,
        classifier,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_three_rounds(name: str):
    method, plain, net = CASES[name]
    check_three_rounds(method, (), plain, net=net)
