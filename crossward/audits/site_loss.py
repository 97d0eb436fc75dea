"""The loss by which a site trains, as an attacker computes it who knows the method and what the server sends.

A classifier made of text (FedCB, FedBM) is not among the weights: the server sends it beside them, so that a hostile
coordinator has it, and everybody else in the run, too.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from crossward.core.method import Method
from crossward.core.net import Net
from crossward.core.task import Task
from crossward.core.tree import Tree
from crossward.methods.fedcb import FedCB
from crossward.privacy.secure_steps import plain_method

SiteLoss = Callable[[Net, Tensor, Tensor], Tensor]  # network, features z of a batch, its classes -> the mean loss


def site_loss(method: Method, task: Task) -> SiteLoss:
    """The supervised loss; with a classifier of text, its alignment term as well. What a method adds that depends on
    all images of the site (a prior of its classes) is left out."""
    plain = plain_method(method)

    def supervised(net: Net, z: Tensor, y: Tensor) -> Tensor:
        return task.loss(net.head(z), y)

    def aligned(net: Net, z: Tensor, y: Tensor) -> Tensor:
        assert isinstance(plain, FedCB)
        return supervised(net, z, y) + plain.alignment(net, z, y).mean()

    return aligned if isinstance(plain, FedCB) else supervised


def with_classifier(net: Net, method: Method, start: Tree) -> Net:
    """The network with what the server sends beside the weights, from the server's state before round 1. A tau that is
    chosen by trials is taken to be the middle one: scores differ by their scale alone."""
    plain = plain_method(method)
    if isinstance(plain, FedCB) and plain.uses_text:
        tau = float(start["tau"]) or plain.middle_tau
        plain.set_classifier(net, start | {"tau": tau})
    return net
