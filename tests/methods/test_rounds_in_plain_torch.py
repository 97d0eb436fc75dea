"""Three rounds of every method that takes a few lines of plain torch, as crossward/testing/plain_rounds.py has them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from crossward.core.method import Method
from crossward.core.plugin import Plugin
from crossward.core.run import cohorts
from crossward.methods.apfl import APFL
from crossward.methods.balancefl import BalanceFL
from crossward.methods.ditto import Ditto
from crossward.methods.ds_pfl import DSpFL
from crossward.methods.fedavg import FedAvg
from crossward.methods.fedbabu import FedBABU
from crossward.methods.fedcb import FedCB
from crossward.methods.feddc import FedDC
from crossward.methods.feddyn import FedDyn
from crossward.methods.fedetf import FedETF
from crossward.methods.fedlc import FedLC
from crossward.methods.fedmd import FedMD
from crossward.methods.fednh import FedNH
from crossward.methods.fedproc import FedProc
from crossward.methods.fedproto import FedProto
from crossward.methods.fedprox import FedProx
from crossward.methods.fedrep import FedRep
from crossward.methods.fedrod import FedRoD
from crossward.methods.fedrs import FedRS
from crossward.methods.kt_pfl import KTpFL
from crossward.methods.lg_fedavg import LGFedAvg
from crossward.methods.local import Local
from crossward.methods.mh_pflgb.method import MHpFLGB
from crossward.methods.moon import Moon
from crossward.methods.random_frozen import RandomFrozen
from crossward.methods.scaffold import Scaffold
from crossward.plugins.bsm import Bsm
from crossward.plugins.prox import Prox
from crossward.testing.plain_rounds import (
    CLIENTS,
    COHORTS,
    DECAY,
    LR,
    MOMENTUM,
    PLAN,
    REACH,
    STEPS,
    THREE,
    PlainFedAvg,
    PlainPersonal,
    Values,
    check_three_rounds,
    floats,
)
from crossward.testing.toy import CLASSES


class PlainFedProx(PlainFedAvg):
    def corrected(self, i: int, name: str, p: Tensor, gradient: Tensor) -> Tensor:
        return gradient + 0.3 * (p - self.w[name])


class PlainScaffold(PlainFedAvg):
    def begin(self) -> None:
        self.c = self.zero
        self.c_i = [self.zero for _ in range(CLIENTS)]
        self.taken: set[int] = set()

    def corrected(self, i: int, name: str, p: Tensor, gradient: Tensor) -> Tensor:
        return gradient - self.c_i[i][name] + self.c[name]

    def renewed(self, i: int, end: Values) -> Values:
        return {n: self.c_i[i][n] - c + (self.w[n] - end[n]) / REACH for n, c in self.c.items()}

    def aggregate(self, ends: Mapping[int, Values]) -> None:
        new = {i: self.renewed(i, end) for i, end in ends.items()}
        self.w = self.plain_mean(ends)
        self.c = {n: c + sum(new[i][n] - self.c_i[i][n] for i in ends) / CLIENTS for n, c in self.c.items()}
        for i in ends:
            self.c_i[i] = new[i]
        self.taken |= set(ends)

    def memories(self) -> dict[int, dict[str, Values]]:
        return {i: {"c": self.c_i[i]} for i in self.taken}


class PlainScaffoldOne(PlainScaffold):
    def renewed(self, i: int, end: Values) -> Values:
        """The gradient at what was sent, of the loss alone."""
        net = self.loaded(self.w)
        gradients = torch.autograd.grad(self.loss(i, net, *self.data[i]), [*net.parameters()])
        return dict(zip(self.c, gradients, strict=True))


class PlainFedDyn(PlainFedAvg):
    alpha = 0.2

    def begin(self) -> None:
        self.h = self.zero
        self.gradients = [self.zero for _ in range(CLIENTS)]
        self.taken: set[int] = set()

    def corrected(self, i: int, name: str, p: Tensor, gradient: Tensor) -> Tensor:
        return gradient - self.gradients[i][name] + self.alpha * (p - self.w[name])

    def aggregate(self, ends: Mapping[int, Values]) -> None:
        for name in self.h:
            for i, end in ends.items():
                moved = end[name] - self.w[name]
                self.gradients[i][name] = self.gradients[i][name] - self.alpha * moved
                self.h[name] = self.h[name] - self.alpha * moved / CLIENTS
        new = self.plain_mean(ends)
        self.w = new | {n: new[n] - h / self.alpha for n, h in self.h.items()}
        self.taken |= set(ends)

    def memories(self) -> dict[int, dict[str, Values]]:
        return {i: {"gradient": self.gradients[i]} for i in self.taken}


class PlainFedDC(PlainFedAvg):
    alpha = 0.2

    def begin(self) -> None:
        self.drifts = [self.zero for _ in range(CLIENTS)]
        self.gradients = [self.zero for _ in range(CLIENTS)]
        self.taken: set[int] = set()

    def mean_gradient(self, name: str) -> Tensor:
        return sum(gradient[name] for gradient in self.gradients) / CLIENTS

    def corrected(self, i: int, name: str, p: Tensor, gradient: Tensor) -> Tensor:
        drift = self.alpha * (p + self.drifts[i][name] - self.w[name])
        return gradient + drift + self.mean_gradient(name) - self.gradients[i][name]

    def aggregate(self, ends: Mapping[int, Values]) -> None:
        new = self.plain_mean(ends)
        for name in self.zero:
            g = self.mean_gradient(name)
            for i, end in ends.items():
                moved = end[name] - self.w[name]
                self.drifts[i][name] = self.drifts[i][name] + moved
                self.gradients[i][name] = self.gradients[i][name] - g - moved / REACH
            new[name] = new[name] + sum(drift[name] for drift in self.drifts) / CLIENTS
        self.w = new
        self.taken |= set(ends)

    def memories(self) -> dict[int, dict[str, Values]]:
        return {i: {"drift": self.drifts[i], "gradient": self.gradients[i]} for i in self.taken}


class PlainFedRS(PlainFedAvg):
    def loss(self, i: int, net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        scale = torch.tensor([1.0 if n else 0.5 for n in self.counts(i).tolist()])
        return F.cross_entropy(net(x) * scale, y)


class PlainFedLC(PlainFedAvg):
    def loss(self, i: int, net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        margin = torch.tensor([max(n, 1e-8) ** -0.25 for n in self.counts(i).tolist()])
        calibrated = net(x) - 0.7 * margin
        return (calibrated.exp().sum(1).log() - calibrated.gather(1, y[:, None])[:, 0]).mean()


class PlainMoon(PlainFedAvg):
    def begin(self) -> None:
        self.previous: dict[int, Values] = {}

    def loss(self, i: int, net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        z = net.features(x)
        value = F.cross_entropy(net.head(z), y)
        if i not in self.previous:
            return value
        with torch.no_grad():
            z_glob, z_prev = (self.loaded(w).eval().features(x) for w in (self.w, self.previous[i]))
        near, far = (torch.exp(F.cosine_similarity(z, other) / 0.4) for other in (z_glob, z_prev))
        return value - 2.0 * (near / (near + far)).log().mean()

    def aggregate(self, ends: Mapping[int, Values]) -> None:
        super().aggregate(ends)
        self.previous |= ends

    def memories(self) -> dict[int, dict[str, Values]]:
        return {i: {"previous": w} for i, w in self.previous.items()}


class PlainFedProc(PlainFedAvg):
    """The first round is FedAvg's; then t / T of cross entropy, the rest of contrast."""

    def begin(self) -> None:
        self.centres: dict[int, Tensor] = {}

    def loss(self, i: int, net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        z = net.features(x)
        value = F.cross_entropy(net.head(z), y)
        if not self.round:
            return value
        known = sorted(self.centres)
        units = torch.stack([self.centres[c] / self.centres[c].norm() for c in known])
        held = [k for k, label in enumerate(y.tolist()) if label in known]
        targets = torch.tensor([known.index(int(y[k])) for k in held])
        alpha = self.round / PLAN.rounds
        return alpha * value + (1 - alpha) * F.cross_entropy(z[held] @ units.T, targets)

    def aggregate(self, ends: Mapping[int, Values]) -> None:
        features, labels = [], []
        for i, end in ends.items():
            with torch.no_grad():
                features.append(self.loaded(end).eval().features(self.data[i][0]))
            labels.append(self.data[i][1])
        z, y = torch.cat(features), torch.cat(labels)
        self.centres |= {c: z[y == c].mean(0) for c in y.unique().tolist()}
        super().aggregate(ends)

    def server_items(self) -> Values:
        return {"prototypes": torch.stack([self.centres[c] for c in range(len(CLASSES))])}


class PlainFedNH(PlainFedAvg):
    def begin(self) -> None:
        self.net.head.prototypes.requires_grad_(False)

    def aggregate(self, ends: Mapping[int, Values]) -> None:
        name = "head.prototypes"
        directions = torch.zeros_like(self.w[name])
        for i, end in ends.items():
            with torch.no_grad():
                z = self.loaded(end).eval().features(self.data[i][0])
            for c in self.data[i][1].unique().tolist():
                rows = z[self.data[i][1] == c]
                directions[c] += len(rows) * F.normalize(rows.mean(0), dim=0)
        moved = F.normalize(0.9 * self.w[name] + 0.1 * F.normalize(directions, dim=1), dim=1)
        self.w = self.plain_mean(ends) | {name: moved}


class PlainBalanced(PlainFedAvg):
    """FedAvg with a balanced softmax."""

    def loss(self, i: int, net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(net(x) + torch.log(self.counts(i) / len(y) + 1e-9), y)


class PlainFedETF(PlainFedAvg):
    def begin(self) -> None:
        self.net.head.frame.requires_grad_(False)

    def loss(self, i: int, net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(net(x) + self.counts(i).clamp_min(1).log(), y)


class PlainFedCB(PlainFedAvg):
    """Eqs. 4 and 5: scores of unit features, whose covariance term is added to the loss as well."""

    def begin(self) -> None:
        self.concepts = THREE.run_sites(FedCB()).server(0).text

    def loss(self, i: int, net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        h = net.body(x)
        spread = 0.5 * 4.0**2 * (h.square() @ self.concepts.variance.T)
        scores = 4.0 * (h @ self.concepts.mean.T) + spread
        return F.cross_entropy(scores + self.prior(i), y) + spread.gather(1, y[:, None]).mean()

    def prior(self, i: int) -> Tensor:
        return torch.zeros(len(CLASSES))


class PlainBalancedFedCB(PlainFedCB):
    def prior(self, i: int) -> Tensor:
        return self.counts(i).clamp_min(1).log()


class PlainBalanceFL(PlainFedAvg):
    """Without noise and balanced batches, which are by chance. Batches hold all classes of a site."""

    def loss(self, i: int, net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        present = self.counts(i) > 0
        logits = net(x)
        log_p = logits[:, present].log_softmax(1)
        value = F.nll_loss(log_p, (present.cumsum(0) - 1)[y]) + 0.002 * (log_p.exp() * log_p).sum()
        if present.all():
            return value
        with torch.no_grad():
            inherited = (self.loaded(self.w).eval()(x)[:, ~present] / 2).softmax(1)
        return value + F.cross_entropy(logits[:, ~present] / 2, inherited)


class PlainRandomFrozen(PlainFedAvg):
    def client(self, i: int) -> Values:
        net = self.loaded(self.w)
        self.steps(i, net, lambda name: name.startswith("body."))
        return floats(net)


class PlainFedRep(PlainPersonal):
    private = "head."

    def fit(self, i: int, net: nn.Module) -> None:
        net.body.eval()
        self.steps(i, net, lambda name: name.startswith("head."))
        net.body.train()
        self.steps(i, net, lambda name: name.startswith("body."))


class PlainFedRoD(PlainPersonal):
    private = "p_head."

    def loss(self, i: int, net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        z = net.features(x)
        generic = net.head(z)
        balanced = F.cross_entropy(generic + torch.log(self.counts(i) / len(y) + 1e-9), y)
        return balanced + F.cross_entropy(generic.detach() + net.p_head(z.detach()), y)


class PlainMHpFLGB(PlainPersonal):
    """Of two epochs one trains what stays, and one the bypass at a tenth of the rate; what rests is in eval mode."""

    private = ("body.", "head.", "to_local.", "to_global.")

    def loss(self, i: int, net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        x_l, x_g = net.body(x), net.to_local(net.bypass.body(x))
        a = x_g.exp() / (x_g.exp() + x_l.exp())
        fused = a * x_g + (1 - a) * x_l
        on_local, on_global = (F.cross_entropy(s, y) for s in (net.head(fused), net.bypass.head(net.to_global(fused))))
        return 0.9 * on_global + 0.1 * on_local if net.bypass.training else 0.9 * on_local + 0.1 * on_global

    def fit(self, i: int, net: nn.Module) -> None:
        net.bypass.eval()
        self.steps(i, net, lambda name: not name.startswith("bypass."), count=1)
        net.eval()
        net.bypass.train()
        self.steps(i, net, lambda name: name.startswith("bypass."), count=1, lr=LR / 10)


class PlainDitto(PlainFedAvg):
    def begin(self) -> None:
        self.personal: dict[int, Values] = {}
        self.pulled = False

    def corrected(self, i: int, name: str, p: Tensor, gradient: Tensor) -> Tensor:
        return gradient + 0.3 * (p - self.w[name]) if self.pulled else gradient

    def client(self, i: int) -> Values:
        end = super().client(i)
        net = self.loaded(self.personal.get(i, self.w))
        self.pulled = True
        self.steps(i, net)
        self.pulled = False
        self.personal[i] = floats(net)
        return end

    def memories(self) -> dict[int, dict[str, Values]]:
        return {i: {"v": w} for i, w in self.personal.items()}


class PlainLGFedAvg(PlainPersonal):
    private = "body."

    def aggregate(self, ends: Mapping[int, Values]) -> None:
        self.w = self.plain_mean(ends)


class PlainAPFL(PlainPersonal):
    private = "v."
    alpha = 0.3

    def fit(self, i: int, net: nn.Module) -> None:
        """w by its own gradient, v by that of the mixture, which reaches it scaled by alpha."""
        w = {n: p for n, p in net.named_parameters() if not n.startswith("v.")}
        v = dict(net.v.named_parameters())
        if i not in self.taken:
            net.v.load_state_dict({n: net.state_dict()[n] for n in net.v.state_dict()})
        x, y = self.data[i]
        velocity = {p: torch.zeros_like(p) for p in (*w.values(), *v.values())}
        for _ in range(STEPS):
            mixed = {n: self.alpha * v[n] + (1 - self.alpha) * w[n].detach() for n in v}
            of_w = torch.autograd.grad(F.cross_entropy(net(x), y), [*w.values()])
            of_v = torch.autograd.grad(F.cross_entropy(functional_call(net.v, mixed, (x,)), y), [*v.values()])
            with torch.no_grad():
                for p, gradient in zip((*w.values(), *v.values()), (*of_w, *of_v), strict=True):
                    velocity[p] = MOMENTUM * velocity[p] + gradient + DECAY * p
                    p -= LR * velocity[p]


class PlainFedProto(PlainPersonal):
    def begin(self) -> None:
        super().begin()
        self.centres: dict[int, Tensor] = {}

    def loss(self, i: int, net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        z = net.features(x)
        value = F.cross_entropy(net.head(z), y)
        gaps = [F.mse_loss(row, self.centres[c]) for row, c in zip(z, y.tolist(), strict=True) if c in self.centres]
        return value + 0.7 * torch.stack(gaps).mean() if gaps else value

    def one_round(self, cohort: list[int]) -> None:
        local = []
        for i in cohort:
            self.client(i)
            x, y = self.data[i]
            with torch.no_grad():
                z = self.loaded(self.own[i]).eval().features(x)
            local.append({c: z[y == c].mean(0) for c in y.unique().tolist()})
        for c in {c for means in local for c in means}:
            held = [means[c] for means in local if c in means]
            self.centres[c] = sum(held) / len(held)

    def server_items(self) -> Values:
        return {"prototypes": torch.stack([self.centres[c] for c in range(len(CLASSES))])}


class PlainFedMD(PlainPersonal):
    """Whole networks stay, and meet on six public images. A site first trains on its own; then, in a round, it sends
    what it sees in them, approaches a teacher, and trains on its own again, each time without momentum from before."""

    first_steps = 1
    digest_steps = 1

    def begin(self) -> None:
        super().begin()
        public = THREE.run_sites(FedMD()).server(0).public
        self.public, _ = public.take(public.index)

    def sent(self, logits: Tensor) -> Tensor:
        return logits

    def teachers(self, sent: dict[int, Tensor]) -> dict[int, Tensor]:
        return dict.fromkeys(sent, sum(sent.values()) / len(sent))

    def distance(self, logits: Tensor, teacher: Tensor) -> Tensor:
        return F.l1_loss(logits, teacher)

    def loss(self, i: int, net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return self.distance(net(x), y) if y.is_floating_point() else F.cross_entropy(net(x), y)

    def one_round(self, cohort: list[int]) -> None:
        for i in {*cohort} - self.taken:
            self.trained(i, self.first_steps)
        with torch.no_grad():
            sent = {i: self.sent(self.loaded(self.own[i]).eval()(self.public)) for i in cohort}
        for i, teacher in self.teachers(sent).items():
            own, self.data[i] = self.data[i], (self.public, teacher)
            self.trained(i, self.digest_steps)
            self.data[i] = own
            self.trained(i, STEPS)
        self.taken |= {*cohort}

    def trained(self, i: int, count: int) -> None:
        net = self.loaded(self.own[i])
        self.steps(i, net, count=count)
        self.own[i] = floats(net)


class PlainDSpFL(PlainFedMD):
    first_steps = STEPS
    digest_steps = STEPS

    def sent(self, logits: Tensor) -> Tensor:
        return logits.softmax(1)

    def teachers(self, sent: dict[int, Tensor]) -> dict[int, Tensor]:
        return {i: (mean / 0.3).softmax(1) for i, mean in super().teachers(sent).items()}

    def distance(self, logits: Tensor, teacher: Tensor) -> Tensor:
        return -(teacher * logits.log_softmax(1)).sum(1).mean()


class PlainKTpFL(PlainFedMD):
    """With a fixed rate of the coefficients. Those of sites that are here are renewed among themselves."""

    def begin(self) -> None:
        super().begin()
        self.c = torch.full((CLIENTS, CLIENTS), 1 / CLIENTS, dtype=torch.float64)

    def sent(self, logits: Tensor) -> Tensor:
        return (logits / 2.0).softmax(1)

    def teachers(self, sent: dict[int, Tensor]) -> dict[int, Tensor]:
        here = [*sent]
        held = self.c[here][:, here].sum(1)
        teachers = {}
        for k, i in enumerate(here):
            row = (self.c[i, here] / held[k]).clone().requires_grad_()
            mixed = sum(share * p.double() for share, p in zip(row, sent.values(), strict=True))
            gap = F.mse_loss(mixed, sent[i].double()) + 0.7 * F.mse_loss(row, torch.full_like(row, 1 / len(here)))
            moved = row.detach() - 2.0 * torch.autograd.grad(gap, row)[0]
            shares = (5 * moved).softmax(0)
            self.c[i, here] = held[k] * shares
            teachers[i] = sum(share.float() * p for share, p in zip(shares, sent.values(), strict=True))
        return teachers

    def distance(self, logits: Tensor, teacher: Tensor) -> Tensor:
        return F.kl_div((logits / 2.0).log_softmax(1), teacher, reduction="batchmean")

    def server_items(self) -> Values:
        return {"coefficients": self.c}


CASES: dict[str, tuple[Method, tuple[Plugin, ...], type[PlainFedAvg]]] = {
    "fedavg": (FedAvg(), (), PlainFedAvg),
    "fedprox": (FedProx(mu=0.3), (), PlainFedProx),
    "fedavg+prox": (FedAvg(), (Prox(weight=0.3),), PlainFedProx),
    "fedavg+bsm": (FedAvg(), (Bsm(),), PlainBalanced),
    "scaffold": (Scaffold(), (), PlainScaffold),
    "scaffold I": (Scaffold(option="I"), (), PlainScaffoldOne),
    "feddyn": (FedDyn(alpha=0.2), (), PlainFedDyn),
    "feddc": (FedDC(alpha=0.2), (), PlainFedDC),
    "fedrs": (FedRS(), (), PlainFedRS),
    "fedlc": (FedLC(tau=0.7), (), PlainFedLC),
    "moon": (Moon(mu=2.0, tau=0.4, projection=6), (), PlainMoon),
    "fedproc": (FedProc(projection=6), (), PlainFedProc),
    "fednh": (FedNH(), (), PlainFedNH),
    "fedetf": (FedETF(), (), PlainFedETF),
    "fedcb": (FedCB(tau=4.0), (), PlainFedCB),
    "fedcb, balanced": (FedCB(tau=4.0, balanced=True), (), PlainBalancedFedCB),
    "balancefl": (BalanceFL(noise=0.0, balanced=False), (), PlainBalanceFL),
    "random-frozen": (RandomFrozen(), (), PlainRandomFrozen),
    "fedbabu": (FedBABU(), (), PlainRandomFrozen),
    "local": (Local(), (), PlainPersonal),
    "fedrep": (FedRep(), (), PlainFedRep),
    "fedrod": (FedRoD(), (), PlainFedRoD),
    "lg-fedavg": (LGFedAvg(warmup=0.0), (), PlainLGFedAvg),
    "apfl": (APFL(alpha=0.3), (), PlainAPFL),
    "fedproto": (FedProto(weight=0.7), (), PlainFedProto),
    "ditto": (Ditto(weight=0.3), (), PlainDitto),
    "mh-pflgb": (MHpFLGB(), (), PlainMHpFLGB),
    "fedmd": (FedMD(start_epochs=1), (), PlainFedMD),
    "ds-pfl": (DSpFL(temperature=0.3), (), PlainDSpFL),
    "kt-pfl": (KTpFL(temperature=2.0, coefficient_lr=2.0), (), PlainKTpFL),
}


def test_two_of_three_clients_take_part_and_all_do_twice():
    assert cohorts(PLAN, [0, 1, 2]) == COHORTS


@pytest.mark.parametrize("name", CASES)
def test_three_rounds(name: str):
    check_three_rounds(*CASES[name])
