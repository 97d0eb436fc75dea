"""Which methods a secure sum can serve: those whose server needs the mean of the sites' weights and nothing else.

No torch is imported here, so that `crossward methods NAME` can say so at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from crossward.core.method import Method

BY_CLASS = "secure sums carry weights alone"
# Why the server needs more than the mean of the weights, by the name of a method's class.
REFUSALS = {
    "FedDC": "the server divides each site's update by that site's own number of steps",
    "FedProc": f"sites also send feature sums and counts of each class; {BY_CLASS}",
    "FedProto": f"sites send prototypes and counts of each class; {BY_CLASS}",
    "FedNH": f"sites also send prototypes and counts of each class; {BY_CLASS}",
    "CReFF": f"sites also send gradients of each class and which classes they have; {BY_CLASS}",
    "FedCD": "the server weighs each site's class vectors by their quality, for which it must see them",
    "LGFedAvg": "the server weighs heads and bodies differently; a secure sum has one weight for each site",
    "FedMD": f"sites send logits on the public set; {BY_CLASS}",
    "FedDF": "the server distils from the network of each site",
    "PFedDF": "the server distils from the network of each site",
    "DSpFL": f"sites send probabilities on the public set; {BY_CLASS}",
    "KTpFL": "the server mixes the predictions of the sites anew for each site",
    "FedSM": "the server keeps a personalised network of each site",
    "LCFed": "the server hands the head of each site to the others",
    "Local": "sites send nothing",
    "Central": "all images are in one place",
}
# Methods with a server half of their own that only takes means of the weights.
TAKE_MEANS = frozenset({"Scaffold", "FedDyn", "FedCB", "FedBM"})


def secure_refusal(method: Method) -> str:
    """Why a secure sum cannot serve the method with these options; empty: it can."""
    from crossward.core.method import Method as FedAvg

    kind = type(method)
    if kind.__name__ in REFUSALS:
        return REFUSALS[kind.__name__]
    inherited = kind.aggregate is FedAvg.aggregate and kind.round is FedAvg.round
    if not inherited and kind.__name__ not in TAKE_MEANS:
        return "its server half is its own, and is not known to need the mean of the weights alone"
    if getattr(method, "tau", None) == "auto":
        return 'tau = "auto" is chosen by how well each site does; a number for tau can be served'
    if getattr(method, "weighting", "samples") != "samples":
        return 'weighting = "uniform": sites still send how many images they have; "samples" can be served'
    if kind.__name__ == "FedBM" and method.buffers != "average":
        return f'buffers = "{method.buffers}": sites send moments of their features; "average" can be served'
    return ""


def secure_service(class_name: str) -> str:
    """In a sentence, whether a secure sum can serve a method of the catalogue with its default options."""
    refusal = REFUSALS.get(class_name)
    if refusal:
        return f"Secure aggregation cannot serve it: {refusal}."
    return "Secure aggregation can serve it: the server needs the mean of the weights alone."
