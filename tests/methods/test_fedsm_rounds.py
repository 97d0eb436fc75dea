"""Three rounds of FedSM in plain torch: the global model, SoftPull among those who are there, and the selector."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch.nn import functional as F

from crossward.core.method import PERSONAL
from crossward.methods.fedsm import FedSM
from crossward.testing.plain_rounds import PlainFedAvg, Values, check_three_rounds, floats

torch.set_num_threads(1)
KEEP, SELECTOR_STEPS, SELECTOR_LR = 0.8, 2, 1e-3
STATISTICS = ("running_mean", "running_var")


class PlainFedSM(PlainFedAvg):
    """A site that is there for the first time begins with the initial weights."""

    def begin(self) -> None:
        self.selector = self.net.selector
        self.adam = torch.optim.Adam(self.selector.parameters(), lr=SELECTOR_LR)
        self.w = self.initial = {n: t for n, t in self.w.items() if self.travels(n)}
        self.personal: dict[int, Values] = {}

    def travels(self, name: str) -> bool:
        return not name.startswith("selector.")

    def one_round(self, cohort: list[int]) -> None:
        for _ in range(SELECTOR_STEPS):
            self.teach_selector(cohort)
        own = {i: self.trained(i, self.personal.get(i, self.initial), "personal") for i in cohort}
        for i, mine in own.items():
            others = self.plain_mean({j: w_j for j, w_j in own.items() if j != i})
            self.personal[i] = {n: KEEP * mine[n] + (1 - KEEP) * others[n] for n in mine}
        super().one_round(cohort)

    def teach_selector(self, cohort: list[int]) -> None:
        """A step of Adam for the images of the cohort together, each labelled with its site."""
        x = torch.cat([self.data[i][0] for i in cohort])
        whose = torch.cat([torch.full((len(self.data[i][1]),), i) for i in cohort])
        self.adam.zero_grad()
        F.cross_entropy(self.selector(x), whose).backward()
        self.adam.step()

    def client(self, i: int) -> Values:
        return self.trained(i, self.w, "global")

    def trained(self, i: int, start: Values, which: str) -> Values:
        net = self.loaded(start)
        self.steps(i, net, lambda name: not name.startswith("selector."))
        return {n: t for n, t in floats(net).items() if n in start}

    def server_items(self) -> Mapping[str, object]:
        parameters = dict(self.selector.named_parameters())
        moments = {n: self.adam.state[p] for n, p in parameters.items()}
        return {
            "personal": {str(i): w for i, w in self.personal.items()},
            "selector": floats(self.selector),
            "moments": {
                "first": {n: m["exp_avg"] for n, m in moments.items()},
                "second": {n: m["exp_avg_sq"] for n, m in moments.items()},
                "steps": int(moments["head.0.bias"]["step"]),
            },
        }


class PlainOwnStatistics(PlainFedSM):
    """BatchNorm statistics stay at a site: some for the global model, and some for its personalised one."""

    def begin(self) -> None:
        super().begin()
        first = {n: t for n, t in floats(self.net).items() if n.endswith(STATISTICS)}
        self.own = {which: dict.fromkeys(range(len(self.data)), first) for which in ("global", "personal")}
        self.taken: set[int] = set()

    def travels(self, name: str) -> bool:
        return super().travels(name) and not name.endswith(STATISTICS)

    def trained(self, i: int, start: Values, which: str) -> Values:
        end = super().trained(i, start | self.own[which][i], which)
        self.own[which][i] = {n: end.pop(n) for n in self.own[which][i]}
        self.taken.add(i)
        return end

    def memories(self) -> Mapping[int, Mapping[str, object]]:
        return {
            i: {PERSONAL: self.own["global"][i], "personal": {PERSONAL: self.own["personal"][i]}} for i in self.taken
        }


@pytest.mark.parametrize(("buffers", "plain"), [("average", PlainFedSM), ("local", PlainOwnStatistics)])
def test_three_rounds(buffers: str, plain: type[PlainFedAvg]):
    method = FedSM(keep=KEEP, selector_steps=SELECTOR_STEPS, selector_lr=SELECTOR_LR, buffers=buffers)
    check_three_rounds(method, (), plain)
