"""SecureServer: the server's half of a secure sum. It learns the sum, who took part in it, and nothing else of them.

Messages come in by `receive`, each checked by itself: one that is malformed, repeated, foreign or late is refused with
the name of its sender and changes nothing. `close_step` ends a step with those who have answered and says what to send
to whom next; sites that did not answer are out from there on. If too few are left, it raises SecureSumFailed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crossward.core.tree import Tree
from crossward.privacy.secure_identity import MOST_SIGNATURE, KnownSites
from crossward.privacy.secure_keys import (
    DIGESTS_BYTES,
    SEALED_BYTES,
    PublicKeys,
    commitment,
    own_mask_seed,
    pair_mask_seed,
    public_key,
    share_digest,
)
from crossward.privacy.secure_masks import Words, add_mask
from crossward.privacy.secure_messages import (
    ADVERTISE,
    CONFIRM,
    MASK,
    SHARE,
    STEPS,
    UNMASK,
    MessageRefused,
    SecureSumFailed,
    SecureTerms,
    as_bytes,
    as_tensor,
    by_number,
    message,
    opened,
)
from crossward.privacy.secure_shares import SHARE_BYTES, combine_shares
from crossward.privacy.secure_site import DONE, advertised_keys, pair_sign, survivors_statement


@dataclass(frozen=True)
class SecureMean:
    """What the server learns."""

    mean: NDArray[np.float64]  # weighted by the sites' weights
    weight: int  # of all sites in the sum
    sites: tuple[str, ...]  # in the sum
    error: float  # each number of the mean is at most this far from the mean of the clipped vectors


@dataclass(frozen=True)
class _Dealt:
    """What a site has dealt: sealed shares by holder, and their digests."""

    shares: dict[int, bytes]
    digests: dict[int, bytes]


@dataclass
class SecureServer:
    terms: SecureTerms
    known: KnownSites
    step: str = ADVERTISE
    refused: dict[str, str] = field(default_factory=dict)  # by site, the last reason

    def __post_init__(self) -> None:
        self._advertised: dict[int, Tree] = {}
        self._keys: dict[int, PublicKeys] = {}
        self._dealt: dict[int, _Dealt] = {}
        self._total: Words = np.zeros(self.terms.format.length + 1, self.terms.format.dtype)
        self._survivors: set[int] = set()
        self._confirmations: dict[int, bytes] = {}
        self._helpers: set[int] = set()  # who gave shares that take masks away
        self._shares: dict[tuple[str, int], dict[int, bytes]] = {}  # of "seed" or "key" and a dealer, by holder

    def start(self) -> dict[str, Tree]:
        """What to send to each site first: the terms."""
        return {member: self.terms.tree() for member in self.terms.members}

    def receive(self, sender: str, tree: object) -> None:
        """Take a site's message of the current step, or raise MessageRefused."""
        try:
            if sender not in self.terms.members:
                raise MessageRefused(sender, "it is not among the sites of the sum")
            number = self.terms.number(sender)
            if self.step == DONE:
                raise MessageRefused(sender, "its message comes too late: the sum is over")
            if number in self._answered():
                raise MessageRefused(sender, f"it has sent its message of step {self.step!r} before")
            if number not in self._expected():
                raise MessageRefused(sender, f"it has left before step {self.step!r}")
            _RECEIVERS[self.step](self, number, tree)
        except MessageRefused as error:
            self.refused[error.sender] = error.why
            raise

    def close_step(self) -> dict[str, Tree]:
        """End the current step: what to send to each site that is left, or nothing if the sum is complete."""
        answered = self._answered()
        if len(answered) < self.terms.threshold:
            self._fail(answered)
        payloads = _PAYLOADS[self.step](self)
        position = STEPS.index(self.step) + 1
        self.step = STEPS[position] if position < len(STEPS) else DONE
        return {self.terms.member(number): payload for number, payload in payloads.items()}

    def result(self) -> SecureMean:
        """The mean, once all steps are closed."""
        if self.step != DONE:
            raise RuntimeError(f"the secure sum is at step {self.step!r}")
        total = self._total.copy()
        for number in sorted(self._survivors):
            add_mask(total, own_mask_seed(self.terms, number, self._seed(number)), -1)
        for dropped in sorted(set(self._dealt) - self._survivors):
            private = self._mask_key(dropped)
            for other in sorted(self._survivors):
                seed = pair_mask_seed(self.terms, private, dropped, other, self._keys[other].mask_key)
                add_mask(total, seed, pair_sign(dropped, other))  # what it would have added itself
        sites = tuple(self.terms.member(number) for number in sorted(self._survivors))
        try:
            mean, weight = self.terms.format.mean(total, len(sites))
        except ValueError as error:
            raise SecureSumFailed(f"{self.terms.label}: {error}") from None
        return SecureMean(mean, weight, sites, self.terms.format.error_bound(len(sites), weight))

    # who answers what -------------------------------------------------------------------------------------------------
    def _answered(self) -> set[int]:
        """Who has answered in the current step."""
        answers: dict[str, Collection[int]] = {
            ADVERTISE: self._advertised,
            SHARE: self._dealt,
            MASK: self._survivors,
            CONFIRM: self._confirmations,
            UNMASK: self._helpers,
        }
        return set(answers[self.step])

    def _expected(self) -> set[int]:
        """Who was asked in the current step."""
        asked: dict[str, Collection[int]] = {
            ADVERTISE: self.terms.numbers,
            SHARE: self._advertised,
            MASK: self._dealt,
            CONFIRM: self._survivors,
            UNMASK: self._confirmations,
        }
        return set(asked[self.step])

    def _fail(self, answered: set[int]) -> None:
        missing = sorted(set(self.terms.numbers) - answered)
        names = [self.terms.member(number) for number in missing]
        raise SecureSumFailed(
            f"{self.terms.label}: {len(answered)} of {len(self.terms.members)} sites are left at step {self.step!r} of "
            f"the secure sum, {self.terms.threshold} are needed",
            details=[f"{name}: {self.refused.get(name, 'no answer')}" for name in names],
            hint="Nothing of any site was learned. The round can be repeated with the sites that are there.",
        )

    # messages ---------------------------------------------------------------------------------------------------------
    def _receive_keys(self, number: int, tree: object) -> None:
        keys = advertised_keys(self.terms, self.known, number, tree)
        assert isinstance(tree, dict)
        taken = {key for other in self._keys.values() for key in (other.cipher_key, other.mask_key)}
        if keys.cipher_key == keys.mask_key or taken & {keys.cipher_key, keys.mask_key}:
            raise MessageRefused(self.terms.member(number), "its keys are those of another site, or twice the same")
        self._keys[number] = keys
        self._advertised[number] = dict(tree)

    def _receive_shares(self, number: int, tree: object) -> None:
        sender = self.terms.member(number)
        fields = opened(self.terms, SHARE, sender, tree, ("shares", "digests"))
        holders = set(self._advertised)
        shares = by_number(fields["shares"], self.terms, sender, "a share", holders - {number})
        digests = by_number(fields["digests"], self.terms, sender, "a digest", holders)
        if set(shares) != holders - {number} or set(digests) != holders:
            raise MessageRefused(sender, "it has not dealt a share to each site")
        self._dealt[number] = _Dealt(
            {n: as_bytes(s, sender, "a share", least=SEALED_BYTES, most=SEALED_BYTES) for n, s in shares.items()},
            {n: as_bytes(d, sender, "a digest", least=DIGESTS_BYTES, most=DIGESTS_BYTES) for n, d in digests.items()},
        )

    def _receive_masked(self, number: int, tree: object) -> None:
        sender = self.terms.member(number)
        masked = opened(self.terms, MASK, sender, tree, ("masked",))["masked"]
        format = self.terms.format
        dtype = torch.int32 if format.bits == 32 else torch.int64
        if not isinstance(masked, Tensor) or masked.dtype != dtype or tuple(masked.shape) != (format.length + 1,):
            raise MessageRefused(sender, f"its masked vector is not one of {format.length + 1} numbers of {dtype}")
        self._total += masked.detach().cpu().contiguous().numpy().view(format.dtype)
        self._survivors.add(number)

    def _receive_confirmation(self, number: int, tree: object) -> None:
        sender = self.terms.member(number)
        value = opened(self.terms, CONFIRM, sender, tree, ("signature",))["signature"]
        signature = as_bytes(value, sender, "its signature", least=1, most=MOST_SIGNATURE)
        if not self.known.has_signed(sender, survivors_statement(self.terms, self._survivors), signature):
            raise MessageRefused(sender, "its confirmation is not signed by it, or is of other survivors")
        self._confirmations[number] = signature

    def _receive_unmasking(self, number: int, tree: object) -> None:
        sender = self.terms.member(number)
        fields = opened(self.terms, UNMASK, sender, tree, ("seeds", "keys"))
        allowed = {"seed": self._survivors, "key": set(self._dealt) - self._survivors}
        entries = {
            "seed": by_number(fields["seeds"], self.terms, sender, "a share of a seed", allowed["seed"]),
            "key": by_number(fields["keys"], self.terms, sender, "a share of a key", allowed["key"]),
        }
        shares = {
            (kind, dealer): self._checked_share(kind, dealer, number, value)
            for kind, dealt in entries.items()
            for dealer, value in dealt.items()
        }
        for place, share in shares.items():
            self._shares.setdefault(place, {})[number] = share
        self._helpers.add(number)

    def _checked_share(self, kind: str, dealer: int, holder: int, value: object) -> bytes:
        sender = self.terms.member(holder)
        what = f"its share of the {kind} of {self.terms.member(dealer)}"
        share = as_bytes(value, sender, what, least=SHARE_BYTES, most=SHARE_BYTES)
        digests = self._dealt[dealer].digests[holder]
        half = len(digests) // 2
        expected = digests[:half] if kind == "seed" else digests[half:]
        if share_digest(self.terms, kind, dealer, holder, share) != expected:
            raise MessageRefused(sender, f"{what} is not the one it was dealt")
        return share

    # what goes out ----------------------------------------------------------------------------------------------------
    def _keys_payloads(self) -> dict[int, Tree]:
        keys = {str(number): tree for number, tree in sorted(self._advertised.items())}
        return dict.fromkeys(sorted(self._advertised), message(self.terms, SHARE, keys=keys))

    def _share_payloads(self) -> dict[int, Tree]:
        def delivered(holder: int) -> Tree:
            dealers = [number for number in sorted(self._dealt) if number != holder]
            shares = {str(n): as_tensor(self._dealt[n].shares[holder]) for n in dealers}
            digests = {str(n): as_tensor(self._dealt[n].digests[holder]) for n in dealers}
            return message(self.terms, MASK, shares=shares, digests=digests)

        return {number: delivered(number) for number in sorted(self._dealt)}

    def _survivor_payloads(self) -> dict[int, Tree]:
        survivors = {str(number): True for number in sorted(self._survivors)}
        return dict.fromkeys(sorted(self._survivors), message(self.terms, CONFIRM, survivors=survivors))

    def _confirmation_payloads(self) -> dict[int, Tree]:
        signatures = {str(n): as_tensor(signature) for n, signature in sorted(self._confirmations.items())}
        return dict.fromkeys(sorted(self._confirmations), message(self.terms, UNMASK, confirmations=signatures))

    def _last_payloads(self) -> dict[int, Tree]:
        return {}

    # masks ------------------------------------------------------------------------------------------------------------
    def _seed(self, number: int) -> bytes:
        seed = self._combined("seed", number)
        if commitment(self.terms, number, seed) != self._keys[number].commitment:
            self._blame(number, "the shares of its seed do not fit together")
        return seed

    def _mask_key(self, number: int) -> bytes:
        private = self._combined("key", number)
        if public_key(private) != self._keys[number].mask_key:
            self._blame(number, "the shares of its key do not fit together")
        return private

    def _combined(self, kind: str, dealer: int) -> bytes:
        shares = self._shares.get((kind, dealer), {})
        if len(shares) < self.terms.threshold:
            self._blame(
                dealer, f"{len(shares)} sites can give a share of its {kind}, {self.terms.threshold} are needed"
            )
        return combine_shares(shares, self.terms.threshold)

    def _blame(self, number: int, why: str) -> None:
        member = self.terms.member(number)
        self.refused[member] = why
        raise SecureSumFailed(
            f"{self.terms.label}: the masks of {member} cannot be taken away",
            details=[f"{member}: {why}"],
            hint="Nothing of any site was learned. The round can be repeated without that site.",
        )


_RECEIVERS: dict[str, Callable[[SecureServer, int, object], None]] = {
    ADVERTISE: SecureServer._receive_keys,
    SHARE: SecureServer._receive_shares,
    MASK: SecureServer._receive_masked,
    CONFIRM: SecureServer._receive_confirmation,
    UNMASK: SecureServer._receive_unmasking,
}
_PAYLOADS: dict[str, Callable[[SecureServer], dict[int, Tree]]] = {
    ADVERTISE: SecureServer._keys_payloads,
    SHARE: SecureServer._share_payloads,
    MASK: SecureServer._survivor_payloads,
    CONFIRM: SecureServer._confirmation_payloads,
    UNMASK: SecureServer._last_payloads,
}
