"""Secure sums at the coordinator of hospitals: who the sites are, by their certificates, and what replies look like.

The coordinator only passes certificates on. Each site checks them itself.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

from crossward.config.schema import Config
from crossward.core.inspection import TensorSpec, TreeSpec, WeightsSpec
from crossward.core.method import Method
from crossward.core.tree import Tree
from crossward.errors import ConfigError, RunError
from crossward.foreign import ForeignError
from crossward.hospitals import pem
from crossward.hospitals.peers import certified_site_key
from crossward.hospitals.site_facts import Facts
from crossward.hospitals.site_sums import STEPS_BY_NAME, sum_label
from crossward.privacy.secure_identity import KnownSites
from crossward.privacy.secure_messages import SecureSumFailed
from crossward.privacy.secure_steps import (
    LAYOUT,
    SECURE,
    SecureSteps,
    layout_length,
    layout_text,
    summed_items,
    with_directory,
)

NONCE_BYTES = 8
SITE_BYTES = 1024  # of a reply, for each site of the sum


@dataclass(frozen=True)
class HospitalDirectory:
    """The sites of a run, by the certificates that they showed when they joined."""

    run: str
    names: Sequence[str]  # of all sites, in the order of their numbers
    facts: Mapping[int, Facts]  # of each site that has joined, as they are now
    authority: x509.Certificate

    def member(self, client: int) -> str:
        return self.names[client]

    def label(self, round: int) -> str:
        return sum_label(self.run, round, secrets.token_hex(NONCE_BYTES))

    def problems(self, clients: Sequence[int]) -> Mapping[int, str]:
        reasons = {}
        for client in clients:
            try:
                self._key(client)
            except ForeignError as error:
                reasons[client] = f"rejected: {error}"
        return reasons

    def known(self, members: Sequence[str]) -> KnownSites:
        return KnownSites({member: self._key(self.names.index(member)) for member in members})

    def introduction(self, members: Sequence[str]) -> Tree:
        return {
            "certificates": {member: str(self.facts[self.names.index(member)]["certificate"]) for member in members}
        }

    def _key(self, client: int) -> EllipticCurvePublicKey:
        certificate = self.facts.get(client, {}).get("certificate")
        return certified_site_key(certificate, self.authority, self.names[client])


def check_secure_terms(config: Config, authority: str, *, trusted: bool) -> None:
    """Refuse a secure sum among sites that nobody gave keys."""
    if config.privacy.secure_aggregation and (trusted or not authority):
        raise ConfigError(
            "privacy.secure_aggregation across hospitals needs the certificate of the federation's authority",
            hint='Start the run anew by `crossward federation run`; a simulation has engine.name = "local" or "pool".',
        )


def with_hospital_keys(
    method: Method, run: str, names: Sequence[str], facts: Mapping[int, Facts], authority: str
) -> Method:
    """The method as the coordinator runs it; a method without a secure sum as it is. Too few sites whose keys can be
    trusted end the run before round 1."""
    if not isinstance(method, SecureSteps):
        return method
    directory = HospitalDirectory(run, names, facts, pem.load_certificate(authority.encode()))
    problems = directory.problems([*facts])
    least = method.settings.min_sites
    if len(facts) - len(problems) < least:
        raise RunError(
            f"{len(facts) - len(problems)} sites can be in a secure sum, {least} are needed",
            details=[f"{names[site]}: {why}" for site, why in problems.items()],
            hint="With fewer sites, each could compute what the others sent.",
        )
    return with_directory(method, directory)


# what replies look like -----------------------------------------------------------------------------------------------
def secure_reply_problems(method: SecureSteps, step: str, reply: Tree, plain: TreeSpec | None) -> list[str]:
    """What is wrong with a reply of a secured method, before the sum itself checks it. `plain` is what the method
    without the sum replies to training, if that is known."""
    item = SECURE if step in STEPS_BY_NAME else LAYOUT
    if set(reply) != {item}:
        return [f"its reply to {step!r} is not {item!r} alone"]
    if item == SECURE:
        return [] if isinstance(reply[SECURE], dict) else [f"{SECURE} is no tree"]
    layout = reply[LAYOUT]
    if not isinstance(layout, str):
        return [f"{LAYOUT} is not text"]
    try:
        layout_length(layout)
    except SecureSumFailed as error:
        return [error.what]
    expected = None if plain is None else expected_layout(method, plain)
    return [f"{LAYOUT} is not that of the network"] if expected not in (None, layout) else []


def expected_layout(method: SecureSteps, plain: TreeSpec) -> str:
    """The names and shapes of weights that sites send, from what the method replies without a secure sum."""
    outline = {}
    for item in summed_items(method.plain):
        spec = plain.items.get(item)
        if isinstance(spec, WeightsSpec):
            outline[item] = {name: _shape(tensor) for name, tensor in spec.tensors.items()}
    return layout_text(outline)


def _shape(tensor: TensorSpec) -> list[Any]:
    return [tensor.dtype, *tensor.shape]
