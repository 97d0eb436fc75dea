"""FedCB: Stealing Knowledge from Pre-trained Language Models for Federated Classifier Debiasing.
Zhu, Yang, Gao, Liu, Yuan, MICCAI 2024, https://github.com/CUHK-AIM-Group/FedCB, Eqs. 1-5: a classifier built from what
a language model says of the classes, and frozen (LKCC, linguistic-knowledge-based classifier construction).

    paper          here                            lives
    e_m^(k)        ctx.server.text                 server: unit embeddings of M prompts for each of K classes
    mu, Sigma      state["text"]                   server; sent once, then in site.memory["server"]["text"]
    F, h_i         site.model.features             client: body, projection, unit length
    tau            state["tau"]                    server; a multiplier of scores, not a divisor
    W_fe           state["model"]                  server
    N_c            reply["n"]                      sent

Departures:
- Eqs. 4 and 5 print F(h, k) = h.mu_k + tau/2 h^2 Sigma_k inside the softmax, which lacks a factor tau and is no upper
  bound of Eq. 3. The appendix and the authors' code multiply by tau: s_k = tau h.mu_k + tau^2/2 h^2.Sigma_k. So do we.
- Sigma is its diagonal, as in FedBM and in the code; classifier = "full" takes FedCB's quadratic form h^T Sigma h.
- Embeddings have unit length and their mean is left as it is (code; the papers do not say).
- tau is not in the papers. The code has 17.5 and 12.5 for OCT-C8, 12.5 and 7.5 for Kvasir: 12.5, the mean and the
  median of these, is the default. tau = "auto" trains `warmup` rounds with each of `taus` from the initial weights and
  measures the macro F1 on validation (the federation's own set if there is one, else the sites') after every round of
  the second half. It keeps the middle of `taus`, unless another is better by more, in the mean of these rounds, than
  the difference between the two varies from round to round. Two rounds alone are noise: on the phantom (4 seeds,
  Dirichlet 0.1) F1 is .05 to .32 by then, and the largest tau, which learns faster at first, leads in 3 of 4; over
  rounds 10 to 14 it is between .05 below the middle one and .01 above. The choice costs len(taus) x warmup rounds of
  the first cohort, 30 at the defaults.
- Predictions are the softmax of s_k, which is what the loss trains. The authors evaluate the softmax of s_k / tau: the
  same classes, an AUC lower by .000 to .006 in the runs above, and a calibration error of .42 to .59 in place of .15 to
  .37, since scores within -1 and 1 allow no class of eight much more than half. log(p) / tau of kept predictions gives
  the authors' scores again.
- Clients are weighted by N_c as in the code; the papers print 1/C (weighting = "uniform").
- balanced = True adds the logarithm of how often a site sees each class to the scores in training (Ren et al., NeurIPS
  2020), as FedETF does: without it a site of few classes pushes all others away. A class it lacks counts as a sample.
- classifier = "average" is the ablation of Eq. 1 with the mean embedding alone, "random" an ordinary head left at its
  random initial weights with plain cross entropy, "trained" an ordinary head that learns (FedAvg).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge, Gt, MinLen
from torch import Tensor, nn

from crossward.core.disclosure import SAMPLE_COUNT, VALIDATION_CONFUSION, WEIGHTS, Disclosure
from crossward.core.method import Clients, Method, Need, RoundContext, View
from crossward.core.net import Net, NetSpec
from crossward.core.noisy_statistics import CLASS_COUNTS
from crossward.core.plugin import RunFacts
from crossward.core.site import Out, Predictor, Site
from crossward.core.tree import Tree
from crossward.core.weights import Weights, mean
from crossward.errors import ConfigError
from crossward.losses import log_prior
from crossward.nets.parts.feature_moments import reset_batchnorm_statistics
from crossward.nets.parts.unit_norm import UnitNorm
from crossward.statistics import confusion, macro_f1

CONCEPT_PARTS: Mapping[str, tuple[str, ...]] = {  # what each classifier is built from
    "distribution": ("mean", "variance"),
    "full": ("mean", "factor"),
    "average": ("mean",),
    "random": (),
    "trained": (),
}
Positive = Annotated[float, Gt(0)]


class ConceptHead(nn.Module):
    """Unit features h (B, D) -> scores (B, K). Its concepts are set by `set_concepts`, and not among the weights."""

    mean: Tensor | None
    variance: Tensor | None
    factor: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.tau = 1.0
        for name in ("mean", "variance", "factor"):
            self.register_buffer(name, None, persistent=False)

    def set_concepts(
        self, tau: float, mean: Tensor, variance: Tensor | None = None, factor: Tensor | None = None
    ) -> None:
        """mean (K, D); and of the covariance its diagonal (K, D), or its factor (K, M, D), or nothing."""
        self.tau = tau
        self.mean = mean
        self.variance = variance
        self.factor = factor

    def forward(self, h: Tensor) -> Tensor:
        """s_k(h) = tau h.mu_k + 1/2 tau^2 h^T Sigma_k h, the logarithm of E[exp(tau h.e)] for e ~ N(mu_k, Sigma_k)."""
        if self.mean is None:
            raise RuntimeError("the classifier has not been given its concepts")
        return self.tau * (h @ self.mean.T) + self.spread(h)

    def spread(self, h: Tensor) -> Tensor:
        """(B, K): 1/2 tau^2 h^T Sigma_k h."""
        if self.factor is not None:
            k, m, d = self.factor.shape
            along = (h @ self.factor.reshape(k * m, d).T).view(len(h), k, m)
            return 0.5 * self.tau**2 * along.square().sum(2)
        if self.variance is not None:
            return 0.5 * self.tau**2 * (h.square() @ self.variance.T)
        return h.new_zeros(len(h), 0 if self.mean is None else len(self.mean))


@dataclass(frozen=True)
class FedCB(Method):
    needs: ClassVar[frozenset[Need]] = frozenset({Need.SAME_NETS, Need.CLASS_TEXT})
    tasks: ClassVar[tuple[str, ...]] = ("classification",)
    steps: ClassVar[tuple[str, ...]] = ("train", "trial", "score")
    discloses: ClassVar[Mapping[str, Disclosure]] = {
        "model": WEIGHTS,
        "n": SAMPLE_COUNT,
        "confusion": VALIDATION_CONFUSION,
    }
    server_needs: ClassVar[str] = ""
    sometimes: ClassVar[tuple[str, ...]] = ("confusion",)  # tau = "auto", and no validation set at the server

    recipe: ClassVar[Mapping[str, Any]] = {
        "optimizer": "sgd", "lr": 0.01, "momentum": 0.9, "weight_decay": 5e-4, "batch_size": 8, "epochs": 2,
        "schedule": "round", "gamma": 0.99, "keep_state": True,
    }  # fmt: skip

    tau: Positive | Literal["auto"] = 12.5  # multiplies the scores; auto: chosen on validation
    taus: Annotated[tuple[Positive, ...], MinLen(1)] = (7.5, 12.5, 17.5)  # what auto chooses from
    warmup: Annotated[int, Ge(1)] = 10  # rounds of each trial of auto
    classifier: Literal["distribution", "full", "average", "random", "trained"] = "distribution"  # what it is
    weighting: Literal["samples", "uniform"] = "samples"  # of the clients in the mean
    balanced: bool = False  # whether local training allows for how often a site sees each class (balanced softmax)

    @property
    def allows_for_prior(self) -> bool:
        return self.balanced

    def cautions(self, facts: RunFacts) -> list[str]:
        notes = []
        if self.tau == "auto" and self.uses_text:
            notes.append(f'tau = "auto" trains {len(self.taus)} x {self.warmup} rounds before the first')
            if self.warmup == 1:
                notes.append(f"warmup = 1 shows no spread between rounds, so tau will be {self.middle_tau:g}")
        return notes

    def noisy_statistics(self, rounds: int) -> Mapping[str, int]:
        return {CLASS_COUNTS: int(self.balanced)}

    # both halves -----------------------------------------------------------------------------------------------------
    def build(self, net: Net, spec: NetSpec) -> Net:
        if not self.uses_text:
            for parameter in net.head.parameters():
                parameter.requires_grad_(self.classifier != "random")
            return net
        body = nn.Sequential(net.body, nn.Linear(net.width, spec.text), UnitNorm())  # h = F(x) / ||F(x)||
        return Net(body, ConceptHead(), spec.text)

    @property
    def uses_text(self) -> bool:
        """Whether the classifier comes from language."""
        return bool(CONCEPT_PARTS[self.classifier])

    def set_classifier(self, net: Net, down: Tree) -> Net:
        """The same network, its classifier made of the concepts that the server sent."""
        if isinstance(net.head, ConceptHead):
            device = next(net.parameters()).device
            concepts = {name: down["text"][name].to(device) for name in CONCEPT_PARTS[self.classifier]}
            net.head.set_concepts(down["tau"], **concepts)
        return net

    def alignment(self, net: Net, h: Tensor, y: Tensor) -> Tensor:
        """(B,) 1/2 tau^2 h^2 Sigma_y: what Eq. 4 adds to the cross entropy so that it bounds Eq. 3."""
        if isinstance(net.head, ConceptHead):
            return net.head.spread(h).gather(1, y[:, None])[:, 0]
        return h.new_zeros(())

    # server half -----------------------------------------------------------------------------------------------------
    def start(self, ctx: RoundContext) -> Tree:
        state = super().start(ctx) | {"tau": 0.0 if self.tau == "auto" else float(self.tau), "sent": {}}
        return state | self.text(ctx)

    def text(self, ctx: RoundContext) -> Tree:
        """Eq. 2: what the clients must know of mu and Sigma."""
        if not self.text_parts:
            return {}
        concepts = ctx.server.text
        assert concepts is not None  # Need.CLASS_TEXT
        parts = {"mean": concepts.mean, "variance": concepts.variance, "factor": concepts.factor}
        return {"text": {name: parts[name].clone() for name in self.text_parts}}

    @property
    def text_parts(self) -> tuple[str, ...]:
        """What of the concepts a client is sent."""
        return CONCEPT_PARTS[self.classifier]

    def versions(self, state: Tree) -> Mapping[str, int]:
        """What is sent to a client only when it has another version of it, or none."""
        return {"text": 1} if "text" in state else {}

    def broadcast(self, state: Tree) -> Tree:
        return {name: state[name] for name in ("model", "tau", "text") if name in state}

    def round(self, state: Tree, clients: Clients, ctx: RoundContext) -> Tree:
        if ctx.round == 0 and self.tau == "auto" and self.uses_text:
            state = state | {"tau": self._choose_tau(state, clients, ctx)}
        versions = self.versions(state)
        replies = clients.ask("train", lambda client: self._payload(state, versions, client))
        sent = {str(client): dict(versions) for client in replies}
        return self.aggregate(state, replies, ctx) | {"sent": state["sent"] | sent}

    def _payload(self, state: Tree, versions: Mapping[str, int], client: int) -> Tree:
        sent = state["sent"].get(str(client), {})
        new = {name: state[name] for name, version in versions.items() if sent.get(name) != version}
        return {"model": state["model"], "tau": state["tau"]} | new

    def aggregate(self, state: Tree, replies: Mapping[int, Tree], ctx: RoundContext) -> Tree:
        if self.weighting == "samples":
            return super().aggregate(state, replies, ctx)
        averaged = mean(reply["model"] for reply in replies.values())
        return state | {"model": Weights({**state["model"], **averaged})}

    @property
    def middle_tau(self) -> float:
        """What auto keeps without evidence for another; the lower of two."""
        return sorted(self.taus)[(len(self.taus) - 1) // 2]

    def _choose_tau(self, state: Tree, clients: Clients, ctx: RoundContext) -> float:
        """The tau with the largest gain over the middle one, of those whose gain exceeds its own spread."""
        self._require_validation(state, clients, ctx)
        curves = {tau: self._trial_curve(state | {"tau": tau}, clients, ctx) for tau in self.taus}
        chosen = self.middle_tau
        largest_gain = 0.0
        for tau in self.taus:
            gains = [f1 - usual for f1, usual in zip(curves[tau], curves[self.middle_tau], strict=True)]
            gain = statistics.mean(gains)
            spread = statistics.stdev(gains) if len(gains) > 1 else math.inf
            if gain > max(spread, largest_gain):
                chosen, largest_gain = tau, gain
        return chosen

    def _trial_curve(self, trial: Tree, clients: Clients, ctx: RoundContext) -> list[float]:
        """The macro F1 on validation after each of the last rounds of a trial: half of them, two if there are two."""
        curve = []
        first = min(self.warmup // 2, max(0, self.warmup - 2))
        for round in range(self.warmup):
            trial = self.aggregate(trial, clients.ask("trial", self.broadcast(trial)), ctx)
            if round >= first:
                curve.append(macro_f1(self._confusion(trial, clients, ctx)))
        return curve

    def _confusion(self, state: Tree, clients: Clients, ctx: RoundContext) -> Tensor:
        down = self.broadcast(state)
        if ctx.server.val is not None and self.buffers != "local":  # "local": the server has the network of no site
            net = ctx.server.new_net().to(ctx.server.device)
            down["model"].into(net)
            return confusion(self.set_classifier(net, down).eval(), ctx.server.val.in_order(256), ctx.num_classes)
        return torch.stack([reply["confusion"] for reply in clients.ask("score", down).values()]).sum(0)

    def _require_validation(self, state: Tree, clients: Clients, ctx: RoundContext) -> None:
        """Before anything is trained for nothing."""
        if not self._confusion(state | {"tau": self.taus[0]}, clients, ctx).sum():
            raise ConfigError(
                'method.tau = "auto" is chosen on validation images, and the sites of the first round have none',
                hint="Set method.tau, for example 12.5, or give partition.split a share for validation.",
            )

    # client half -----------------------------------------------------------------------------------------------------
    def train(self, site: Site, down: Tree) -> Tree:
        down = self._with_stored(site, down)
        down["model"].into(site.model)
        self.set_classifier(site.model, down)
        self.fit(site, down)
        return {"model": Weights.of(site.model, self.returns), "n": site.size}

    def fit(self, site: Site, down: Tree) -> None:
        site.fit(self.loss(site))

    def loss(self, site: Site, synthetic: float = 0.0) -> Callable[[Out], Tensor]:
        """`synthetic` is the share of generated images in a batch, of all classes alike."""
        prior = log_prior(site.counts, least=1, even=synthetic) if self.balanced else None  # (K,)

        def surrogate(out: Out) -> Tensor:  # Eq. 4, with s_k of Eq. 5 as logits
            supervised = site.loss(out.logits, out.y) if prior is None else site.task.loss(out.logits + prior, out.y)
            return supervised + self.alignment(site.model, out.z, out.y).mean()

        return surrogate

    def _with_stored(self, site: Site, down: Tree) -> Tree:
        """The payload with what the client has stored of earlier ones; what is new in it is stored, too."""
        new = {name: value for name, value in down.items() if name not in ("model", "tau")}
        stored: Tree = site.memory.get("server", {}) | new
        site.memory |= {"server": stored}
        return stored | down

    def trial(self, site: Site, down: Tree) -> Tree:
        """As `train`, but nothing of it stays at the site."""
        memory = dict(site.memory)
        stays = Weights.of(site.model, ~self.travels)
        reply = self.train(site, down)
        site.memory = memory
        stays.into(site.model)
        return reply

    def score(self, site: Site, down: Tree) -> Tree:
        """How a trial does on the site's validation images. BatchNorm statistics that stay at a site are measured: the
        trial has left none."""
        stays = Weights.of(site.model, ~self.travels)
        predictor = self.predictor(site, down)
        if self.buffers == "local":
            reset_batchnorm_statistics(site.model, (x for x, _ in site.train.in_order(256)))
        site.model.eval()
        counts = confusion(predictor, site.val.in_order(256), site.num_classes)
        stays.into(site.model)
        return {"confusion": counts}

    def predictor(self, site: Site, down: Tree, view: View = "local") -> Predictor:
        """One network for all: scores s_k, of which the largest decides."""
        if "model" in down:
            down["model"].into(site.model)
        return self.set_classifier(site.model, down)
