"""Rare classes: what class counts and prototypes tell of classes of which a site has few images.

A count tells that a class is there, and how often. The prototype of a class with one image is that image's feature.
One more round of the run is carried out, and what the sites send in it is read: as a simulation sends it, and as a
hospital with the default policy would (counts below 5 are sent as 0, and so are the rows of these classes).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from crossward.audits.audited_run import AuditedRun
from crossward.audits.finding import DoesNotApply, Finding, Measurement
from crossward.audits.likeness import mean_estimate
from crossward.audits.stored_state import stored_state
from crossward.core.disclosure import Disclosure, DisclosureKind, Made
from crossward.core.method import Method, RoundContext, answer
from crossward.core.seeds import derive
from crossward.core.tree import Tree
from crossward.errors import RunError
from crossward.hospitals.policy import Policy, PolicyViolation
from crossward.hospitals.site_rules import HospitalRules
from crossward.runs.sites import RunSites

TOLD = (DisclosureKind.CLASS_COUNTS, DisclosureKind.PROTOTYPES)
POLICY = Policy(allow=tuple(DisclosureKind))  # a hospital that allows every kind, with the default of small counts


@dataclass(frozen=True)
class Sent:
    """What one site sent in a round, beside what it has."""

    site: str
    reply: Tree
    counts: Tensor  # (K,) training images of each class
    features: Tensor  # (n, D) of its training images, after the step
    labels: Tensor  # (n,)
    buffers: frozenset[str]  # of its network


@dataclass
class WatchedClients:
    """The clients of one more round, whose replies are kept."""

    run_sites: RunSites
    memories: Mapping[int, Tree]
    round: int
    seed: int
    sent: list[Sent] = field(default_factory=list)

    @property
    def ids(self) -> list[int]:
        return self.run_sites.clients

    def ask(self, step: str, payload: Tree | Callable[[int], Tree]) -> Mapping[int, Tree]:
        replies = {}
        for number in self.ids:
            site = self.run_sites.open(number, self.round, dict(self.memories.get(number, {})))
            down = payload(number) if callable(payload) else payload
            seed = derive(self.seed, "rare classes", step, number)
            replies[number] = answer(self.run_sites.method, site, step, down, seed)
            rows = list(site.vectors(site.train))
            features, labels = (torch.cat([row[k] for row in rows]).cpu() for k in (0, 1))
            buffers = frozenset(name for name, _ in site.model.named_buffers())
            self.sent.append(Sent(site.name, replies[number], site.counts.cpu(), features, labels, buffers))
        return replies

    def leave_out(self, client: int, why: str) -> None:
        """All clients are of this process: none sends what is of no use."""
        raise RunError(f"{self.run_sites.name(client)}: {why}")

    def failure_of(self, client: int) -> str:
        return ""


# what is told ---------------------------------------------------------------------------------------------------------
def told_counts(reply: Tree, discloses: Mapping[str, Disclosure]) -> Tensor | None:
    """(K,) class counts in a reply; None if it has none."""
    for item, about in discloses.items():
        if about.kind is DisclosureKind.CLASS_COUNTS and isinstance(reply.get(item), Tensor) and item != "classes":
            counts: Tensor = reply[item]
            return counts.sum(1) if counts.dim() > 1 else counts
    return None


def prototype_rows(reply: Tree, discloses: Mapping[str, Disclosure]) -> Tensor | None:
    """(K, D) means of the features of each class in a reply; None if it has none."""
    for item, about in discloses.items():
        rows = reply.get(item)
        if about.by_class and about.kind is DisclosureKind.PROTOTYPES and isinstance(rows, Tensor) and rows.dim() == 2:
            counts = told_counts(reply, discloses)
            summed = about.made is Made.SUM and counts is not None
            return rows / counts.clamp_min(1)[:, None] if summed and counts is not None else rows
    return None


def nearness(prototype: Tensor, feature: Tensor, others: Tensor) -> float:
    """The distance of a prototype to the feature of the only image of its class, as a share of that to the nearest
    feature of another image; 0: it is that feature."""
    away = float((others - prototype).norm(dim=1).min()) if len(others) else float(feature.norm())
    return float((feature - prototype).norm()) / max(away, 1e-12)


# on a run -------------------------------------------------------------------------------------------------------------
def rare(run: AuditedRun) -> Finding:
    method = run.prepared.run_sites.method
    items = [item for item, about in method.discloses.items() if about.kind in TOLD]
    if not items:
        raise DoesNotApply(
            f"{run.method} sends neither prototypes nor class counts. (Weights may still tell of classes.)"
        )
    if run.task != "classification":
        raise DoesNotApply(f"this is {run.task}: its counts are of pixels or labels, not of patients with one class.")
    sent = one_more_round(run)
    small = [(each, k) for each in sent for k in range(len(each.counts)) if 0 < each.counts[k] < POLICY.min_class_count]
    if not small:
        raise DoesNotApply(f"no site has a class of 1 to {POLICY.min_class_count - 1} images.")
    measurements: list[Measurement] = []
    for when, screen in (("as sent", _as_sent), ("default policy", _screened)):
        replies = [(each, screen(method, each)) for each in sent]
        measurements += _count_figures(when, replies, method, len(small))
        measurements += _prototype_figures(when, replies, method)
    return _finding(measurements, items, len(small))


def one_more_round(run: AuditedRun) -> list[Sent]:
    stored = stored_state(run.result, "last")
    run_sites = run.prepared.run_sites
    clients = WatchedClients(run_sites, stored.memories, stored.round, run.options.seed)
    server = run_sites.server(stored.round)
    context = RoundContext(stored.round, stored.round + 1, len(clients.ids), run_sites.task, server)
    run_sites.method.round(stored.state, clients, context)
    return [each for each in clients.sent if told_counts(each.reply, run_sites.method.discloses) is not None] or (
        clients.sent[: len(clients.ids)]
    )


def _as_sent(method: Method, sent: Sent) -> Tree:
    return sent.reply


def _screened(method: Method, sent: Sent) -> Tree:
    """The reply as a hospital's policy lets it out; empty if it refuses to send it."""
    try:
        return HospitalRules(POLICY, sent.buffers).screen(method, sent.reply)
    except PolicyViolation:
        return {}


def _count_figures(when: str, replies: list[tuple[Sent, Tree]], method: Method, small: int) -> Iterator[Measurement]:
    present, exact = 0, 0
    for sent, reply in replies:
        counts = told_counts(reply, method.discloses)
        rare = (sent.counts > 0) & (sent.counts < POLICY.min_class_count)
        if counts is not None:
            present += int((rare & (counts.round() > 0)).sum())
            exact += int((rare & (counts.round() == sent.counts)).sum())
    how = "counted over all sites and classes: no interval"
    for name, told in (("whose presence", present), ("whose exact count", exact)):
        yield Measurement(f"rare classes {name} is told, {when}", told / small, how=how, n=small, baseline=0.0,
                          baseline_name="nothing sent")  # fmt: skip


def _prototype_figures(when: str, replies: list[tuple[Sent, Tree]], method: Method) -> Iterator[Measurement]:
    """Of classes with one image at a site."""
    shares = []
    singles = 0
    for sent, reply in replies:
        rows = prototype_rows(reply, method.discloses)
        for k in (sent.counts == 1).nonzero()[:, 0].tolist():
            singles += 1
            if rows is None or not bool(rows[k].any()) or rows.shape[1] != sent.features.shape[1]:
                continue
            own = sent.labels == k
            shares.append(nearness(rows[k], sent.features[own][0], sent.features[~own]))
    if singles:
        how = "counted over all sites and classes: no interval"
        read = sum(share < 0.01 for share in shares)
        yield Measurement(f"single images whose feature is told, {when}", read / singles, how=how, n=singles,
                          baseline=0.0, baseline_name="nothing sent")  # fmt: skip
    if shares:
        name = f"distance to the only image, over that to the next, {when}"
        yield Measurement.of(
            name, mean_estimate(name, shares), len(shares), baseline=1.0, baseline_name="another image"
        )


def _finding(measurements: list[Measurement], items: list[str], small: int) -> Finding:
    values = {each.name: each.value or 0.0 for each in measurements}

    def words(when: str) -> str:
        text = f"{100 * values[f'rare classes whose presence is told, {when}']:.0f} in 100"
        single = values.get(f"single images whose feature is told, {when}")
        return text if single is None else f"{text} (and the feature of {100 * single:.0f} in 100 single images)"

    text = (
        f"{small} times a site has a class of 1 to {POLICY.min_class_count - 1} images. What the method sends tells of "
    )
    text += f"{words('as sent')} of them; under the default policy of a hospital, {words('default policy')}."
    tried = f"The attacker is the coordinator, who reads {', '.join(items)} in one more round of the run."
    return Finding("rare", "", "measured", text, tried, tuple(measurements), (), {"min_class_count": 5, "items": items})
