"""FedNPR-Per: FedNPR with a classifier of its own at every site.
Wicaksana, Yan, Cheng, Non-parametric Regularization for Class Imbalance Federated Medical Image Classification, Eq. 7.

    paper       here                      lives
    u           state["model"]            server: the features f_u alone are averaged
    v_i         the head of site.model    client, between rounds
    the rest    as in fednpr.py

Departures: those of fednpr.py. A site that has not taken part yet predicts with its own initial head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from crossward.core import select
from crossward.core.select import Select
from crossward.methods.fednpr import FedNPR


@dataclass(frozen=True)
class FedNPRPer(FedNPR):
    shared: ClassVar[Select] = select.body  # Eq. 7
