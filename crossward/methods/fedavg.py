"""Communication-Efficient Learning of Deep Networks from Decentralized Data.
McMahan, Moore, Ramage, Hampson, Agüera y Arcas, AISTATS 2017, https://arxiv.org/abs/1602.05629, Algorithm 1.

    paper   here                  lives
    w_t     state["model"]        server
    w_k     site.model            client, within a round
    n_k     reply["n"]            sent
    E, B    Training.epochs, .batch_size

Departures: BatchNorm statistics, unknown to the paper, are averaged with the weights (option `buffers`);
the mean is over the n_k of the clients that answered, as in the corrected version of the paper.
"""

from __future__ import annotations

from dataclasses import dataclass

from crossward.core.method import Method


@dataclass(frozen=True)
class FedAvg(Method):
    """The base of all methods is this method: see crossward/core/method.py for its two halves."""
