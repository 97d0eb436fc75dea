"""A secure sum among sites that are all in this process: for simulations, tests and measurements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossward.core.tree import Tree, decode, encode
from crossward.privacy.secure_identity import KnownSites, SiteIdentity, known_sites
from crossward.privacy.secure_messages import (
    ADVERTISE,
    CONFIRM,
    MASK,
    SHARE,
    STEPS,
    MessageRefused,
    SecurePolicy,
    SecureTerms,
)
from crossward.privacy.secure_server import SecureMean, SecureServer
from crossward.privacy.secure_site import SecureSite


@dataclass(frozen=True)
class SiteInput:
    """What a site adds to the sum."""

    vector: NDArray[np.floating[Any]]
    weight: int = 1
    rounding_seed: int = 0


def run_secure_sum(
    terms: SecureTerms,
    identities: Mapping[str, SiteIdentity],
    inputs: Mapping[str, SiteInput],
    *,
    drops: Mapping[str, str] | None = None,
    policy: SecurePolicy | None = None,
) -> SecureMean:
    """The mean of the inputs. `drops` names sites that stop answering and the step from which on they do. Every message
    and what a site keeps between two steps pass through the codec, as they would between machines. A site that refuses
    a message of the server has left; if too few are left, SecureSumFailed is raised."""
    known = known_sites(identities.values())
    server = SecureServer(terms, known)
    memories: dict[str, bytes] = {}
    payloads = server.start()
    for step in STEPS:
        for member, payload in payloads.items():
            if member not in inputs or (drops and _has_left(drops.get(member), step)):
                continue
            try:
                reply, memories[member] = _answer(
                    step, payload, identities[member], known, inputs[member], memories.get(member), policy
                )
                server.receive(member, reply)
            except MessageRefused as error:
                server.refused[member] = str(error)
        payloads = server.close_step()
    return server.result()


def _has_left(drop: str | None, step: str) -> bool:
    return drop is not None and STEPS.index(step) >= STEPS.index(drop)


def _answer(
    step: str,
    payload: Tree,
    identity: SiteIdentity,
    known: KnownSites,
    given: SiteInput,
    memory: bytes | None,
    policy: SecurePolicy | None,
) -> tuple[Tree, bytes]:
    """A site's reply to a step, and what it keeps."""
    payload = decode(encode(payload))
    if step == ADVERTISE:
        site = SecureSite.begin(identity, known, payload, policy)
        return site.advertise(), encode(site.tree())
    assert memory is not None
    site = SecureSite.from_tree(decode(memory), identity, known, policy)
    reply = answer_step(site, step, payload, given)
    return decode(encode(reply)), encode(site.tree())


def answer_step(site: SecureSite, step: str, payload: Tree, given: SiteInput) -> Tree:
    """A site's reply to a step after the first."""
    if step == SHARE:
        return site.share(payload)
    if step == MASK:
        return site.mask(payload, given.vector, given.weight, given.rounding_seed)
    return site.confirm(payload) if step == CONFIRM else site.unmask(payload)
