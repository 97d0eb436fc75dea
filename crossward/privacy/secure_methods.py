"""Which methods a secure sum can serve: those whose server needs the mean of the sites' weights and nothing else.

Methods declare it: `server_needs` says why the server must see what single sites send, `discloses` what they send. No
torch is imported here, so that `crossward methods NAME` can say so at once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from crossward.core.disclosure import SAMPLE_COUNT, WEIGHTS, Disclosure

if TYPE_CHECKING:
    from crossward.core.method import Method

SERVER_HALF = ("aggregate", "round")


def secure_refusal(method: Method) -> str:
    """Why a secure sum cannot serve the method with these options; empty: it can."""
    kind = type(method)
    if refusal := class_secure_refusal(kind.server_needs, kind.discloses, kind.sometimes):
        return refusal
    if not _says_what_its_server_needs(kind):
        return "its server half is its own, and is not known to need the mean of the weights alone"
    if getattr(method, "tau", None) == "auto":
        return 'tau = "auto" is chosen by how well each site does; a number for tau can be served'
    if getattr(method, "weighting", "samples") != "samples":
        return 'weighting = "uniform": sites still send how many images they have; "samples" can be served'
    if kind.__name__ == "FedBM" and method.buffers != "average":
        return f'buffers = "{method.buffers}": sites send moments of their features; "average" can be served'
    return ""


def class_secure_refusal(
    server_needs: str, discloses: Mapping[str, Disclosure], sometimes: Collection[str] = ()
) -> str:
    """The same of a class with its default options, by what it declares."""
    if server_needs:
        return f"the server must see what each site sends: {server_needs}"
    others = [about.what for item, about in discloses.items() if _is_beside(about) and item not in sometimes]
    if others:
        return f"sites send {' and '.join(others)}; secure sums carry weights alone"
    return "" if discloses else "sites send nothing"


def secure_service(server_needs: str, discloses: Mapping[str, Disclosure], sometimes: Collection[str] = ()) -> str:
    """In a sentence, whether a secure sum can serve a method of the catalogue with its default options."""
    refusal = class_secure_refusal(server_needs, discloses, sometimes)
    if refusal:
        return f"Secure aggregation cannot serve it: {refusal}."
    return "Secure aggregation can serve it: the server needs the mean of the weights alone."


def _is_beside(about: Disclosure) -> bool:
    """Whether an item is neither weights nor the number that they are weighted by."""
    return about not in (WEIGHTS, SAMPLE_COUNT)


def _says_what_its_server_needs(kind: type[Method]) -> bool:
    """Whether `server_needs` is declared by the class that wrote the server half, or by one made of it."""
    for cls in kind.__mro__:
        if "server_needs" in vars(cls):
            return True
        if any(half in vars(cls) for half in SERVER_HALF):
            return False
    return False


def is_secured(method: Method) -> bool:
    """Whether the weights of a method travel by secure sums (`secure_steps.secured`)."""
    return hasattr(type(method), "plain")


def masked_items(method: Method) -> frozenset[str]:
    """The items of a method's replies that only a sum over sites makes readable."""
    return frozenset({"secure"}) if is_secured(method) else frozenset()
