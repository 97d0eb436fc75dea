"""FedNPR: Non-parametric Regularization for Class Imbalance Federated Medical Image Classification.
Wicaksana, Yan, Cheng, https://github.com/Jwicaksana/FedNPR, Algorithm 1 and Eqs. 1-6.

    paper       here                      lives
    w = (u, v)  state["model"]            server: features f_u and classifier g_v, both averaged
    pi_i        the plugin bsm            client: class shares, Eq. 4
    P_i^c       the plugin npr            client, between rounds: sub-prototypes, Eqs. 1-3
    lambda, K   weight, k
    |D_i|       reply["n"]                sent

The method is FedAvg with two plugins: `fednpr` is `fedavg+bsm+npr`, to the bit. Eq. 5 is the sum of their losses, Eq. 6
FedAvg's mean. Its paper trains with Adam, whose state the sites keep (`[train] recipe = "paper"`).

Departures: those of plugins/bsm.py and plugins/npr.py. The paper takes K = 4, lambda = 0.1 for skin lesions (our
defaults) and K = 2, lambda = 0.05 for head CT; the code K = 4 and an effective lambda of 1 for both. All sites start
from one network, where the code averages heads that start apart. The aggregated network is scored at every site, as
the text has it; the code scores networks after local training, at the round that does best on the test set.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge

from crossward.core.method import Method
from crossward.core.plugin import Plugin
from crossward.plugins.bsm import Bsm
from crossward.plugins.npr import Npr


@dataclass(frozen=True)
class FedNPR(Method):
    tasks: ClassVar[tuple[str, ...]] = ("classification", "segmentation")
    recipe: ClassVar[Mapping[str, Any]] = {
        "optimizer": "adam", "lr": 1e-3, "weight_decay": 5e-4, "batch_size": 64, "epochs": 1,
        "schedule": "milestones", "gamma": 0.1, "milestones": (60, 70), "keep_state": True,
    }  # fmt: skip

    k: Annotated[int, Ge(1)] | Literal["auto"] = 4  # sub-clusters of a class; auto: more where it has more samples
    weight: Annotated[float, Ge(0)] = 0.1  # lambda
    epsilon: Annotated[float, Ge(1e-4)] = 0.05  # entropy of the assignment
    iterations: Annotated[int, Ge(1)] = 3  # of Sinkhorn
    layernorm: bool = True  # whether the scores of the classes are normalised before the cross entropy
    missing: Literal["keep", "mask"] = "keep"  # what becomes of a class without samples in the loss
    private_cycle: Annotated[int, Ge(1)] = 10  # with privacy: rounds between two releases of prototypes

    @property
    def carried(self) -> tuple[Plugin, ...]:
        options = (self.k, self.weight, self.epsilon, self.iterations, self.layernorm, self.missing)
        return Bsm(), Npr(*options, private_cycle=self.private_cycle)
