"""SecureSite: a site's half of a secure sum (Bonawitz et al., Practical Secure Aggregation for Privacy-Preserving
Machine Learning, CCS 2017, https://eprint.iacr.org/2017/281, the protocol of Fig. 4 with the consistency check).

A site answers five questions of the server, in this order and each once: it advertises keys, deals shares of its
secrets, sends its masked vector, confirms who has survived, and gives the shares that take masks away: of the seed of
those who survived, of the key of those who did not, never both of one site. Between two questions all it knows is a
Tree, which stays at the site.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from crossward.core.tree import Tree
from crossward.foreign import ForeignError
from crossward.privacy.secure_identity import MOST_SIGNATURE, KnownSites, SiteIdentity
from crossward.privacy.secure_keys import (
    DIGESTS_BYTES,
    SEALED_BYTES,
    Channel,
    PublicKeys,
    SecretKeys,
    is_usable,
    own_mask_seed,
    pair_mask_seed,
    share_digests,
)
from crossward.privacy.secure_masks import add_mask
from crossward.privacy.secure_messages import (
    ADVERTISE,
    CONFIRM,
    DIGEST_BYTES,
    KEY_BYTES,
    MASK,
    SHARE,
    STEPS,
    UNMASK,
    MessageRefused,
    SecurePolicy,
    SecureTerms,
    as_bytes,
    as_tensor,
    by_number,
    message,
    number_bytes,
    opened,
)
from crossward.privacy.secure_repeats import abandonment_tree, check_abandonments
from crossward.privacy.secure_shares import SHARE_BYTES, split_secret

SERVER = "the server"
DONE = "done"


@dataclass
class SecureSite:
    """One site in one secure sum. `begin` starts it; `from_tree` goes on with it."""

    identity: SiteIdentity
    known: KnownSites
    policy: SecurePolicy
    terms: SecureTerms
    secret: SecretKeys = field(repr=False)
    next_step: str = ADVERTISE
    peers: dict[int, PublicKeys] = field(default_factory=dict)  # who advertised, this site included
    held: dict[int, bytes] = field(default_factory=dict, repr=False)  # by dealer: a share of its seed, one of its key
    dealers: set[int] = field(default_factory=set)  # whose shares were delivered, this site included
    survivors: set[int] = field(default_factory=set)  # whose vectors are in the sum

    @classmethod
    def begin(
        cls, identity: SiteIdentity, known: KnownSites, terms: object, policy: SecurePolicy | None = None
    ) -> SecureSite:
        """A site that takes part under the terms that the server sent, if they are what the site accepts."""
        policy = policy or SecurePolicy()
        try:
            agreed = SecureTerms.from_tree(terms)
        except ForeignError as error:
            raise MessageRefused(SERVER, str(error)) from None
        if identity.name not in agreed.members:
            raise MessageRefused(SERVER, f"{identity.name} is not among the sites of the sum")
        if strangers := [member for member in agreed.members if member not in known]:
            raise MessageRefused(SERVER, f"unknown sites in the sum: {', '.join(strangers[:3])}")
        if refusal := policy.refusal(agreed):
            raise MessageRefused(SERVER, refusal)
        return cls(identity, known, policy, agreed, SecretKeys.generate())

    @property
    def number(self) -> int:
        return self.terms.number(self.identity.name)

    def advertise(self, abandons: Mapping[str, bytes] | None = None) -> Tree:
        """Public keys of this sum, signed; and by digest its signatures under the sums that it has left."""
        self._enter(ADVERTISE)
        public = self.secret.advertised(self.terms, self.number)
        signature = self.identity.sign(public.statement(self.terms, self.number))
        return message(
            self.terms,
            ADVERTISE,
            cipher_key=as_tensor(public.cipher_key),
            mask_key=as_tensor(public.mask_key),
            commitment=as_tensor(public.commitment),
            signature=as_tensor(signature),
            abandons=abandonment_tree(abandons or {}),
        )

    def share(self, payload: object) -> Tree:
        """Shares of the seed and of the mask key, encrypted for each of the sites that advertised keys."""
        self._expect(SHARE)
        keys = self._entries(payload, SHARE, "keys", set(self.terms.numbers))
        peers = {number: advertised_keys(self.terms, self.known, number, entry) for number, entry in keys.items()}
        self._check_peers(peers)
        self._enter(SHARE)
        self.peers = peers
        seeds = split_secret(self.secret.seed, self.terms.threshold, peers)
        mask_keys = split_secret(self.secret.mask_key, self.terms.threshold, peers)
        self.held = {self.number: seeds[self.number] + mask_keys[self.number]}
        digests = {n: share_digests(self.terms, self.number, n, seeds[n], mask_keys[n]) for n in peers}
        sealed = {n: self._channel(n).seal(seeds[n] + mask_keys[n]) for n in peers if n != self.number}
        return message(
            self.terms,
            SHARE,
            shares={str(n): as_tensor(data) for n, data in sealed.items()},
            digests={str(n): as_tensor(data) for n, data in digests.items()},
        )

    def mask(self, payload: object, vector: NDArray[np.floating[Any]], weight: int = 1, rounding_seed: int = 0) -> Tree:
        """The weighted vector and its weight under masks, of which nothing can be read."""
        self._expect(MASK)
        fields = opened(self.terms, MASK, SERVER, payload, ("shares", "digests"))
        others = set(self.peers) - {self.number}
        shares = by_number(fields["shares"], self.terms, SERVER, "a share", others)
        digests = by_number(fields["digests"], self.terms, SERVER, "a digest", others)
        if set(shares) != set(digests):
            raise MessageRefused(SERVER, "shares and digests are not of the same sites")
        dealers = {*shares, self.number}
        self._check_enough(dealers, "dealt shares")
        words = self.terms.format.quantise(vector, weight, rounding_seed)
        self._enter(MASK)
        self.dealers = dealers
        for dealer in shares:
            self._hold(dealer, shares[dealer], digests[dealer])
        add_mask(words, own_mask_seed(self.terms, self.number, self.secret.seed))
        for other in sorted(shares):
            seed = pair_mask_seed(self.terms, self.secret.mask_key, self.number, other, self.peers[other].mask_key)
            add_mask(words, seed, pair_sign(self.number, other))
        return message(self.terms, MASK, masked=torch.from_numpy(words.view(f"int{self.terms.format.bits}")))

    def confirm(self, payload: object) -> Tree:
        """A signature under the set of sites whose vectors are in the sum. There is one such set for this site."""
        self._expect(CONFIRM)
        survivors = set(self._entries(payload, CONFIRM, "survivors", self.dealers))
        if self.number not in survivors:
            raise MessageRefused(SERVER, f"{self.identity.name} is not among the survivors, but was asked to confirm")
        self._check_enough(survivors, "survived")
        self._enter(CONFIRM)
        self.survivors = survivors
        signature = self.identity.sign(survivors_statement(self.terms, survivors))
        return message(self.terms, CONFIRM, signature=as_tensor(signature))

    def unmask(self, payload: object) -> Tree:
        """Shares of the seeds of the survivors and of the keys of the others, once enough sites have confirmed the same
        survivors."""
        self._expect(UNMASK)
        signatures = self._entries(payload, UNMASK, "confirmations", self.survivors)
        statement = survivors_statement(self.terms, self.survivors)
        for number, value in signatures.items():
            member = self.terms.member(number)
            signature = as_bytes(value, SERVER, f"the confirmation of {member}", least=1, most=MOST_SIGNATURE)
            if not self.known.has_signed(member, statement, signature):
                raise MessageRefused(SERVER, f"{member} has not confirmed the survivors that this site was shown")
        self._check_enough(set(signatures), "confirmed the survivors")
        self._enter(UNMASK)
        readable = self.dealers & set(self.held)
        seeds = {str(n): as_tensor(self.held[n][:SHARE_BYTES]) for n in sorted(readable & self.survivors)}
        keys = {str(n): as_tensor(self.held[n][SHARE_BYTES:]) for n in sorted(readable - self.survivors)}
        self.held = {}
        return message(self.terms, UNMASK, seeds=seeds, keys=keys)

    # what is kept between two steps -----------------------------------------------------------------------------------
    def tree(self) -> Tree:
        """All that the site knows of the sum, secrets included: it stays at the site."""
        return {
            "next_step": self.next_step,
            "terms": self.terms.tree(),
            "secret": _packed(self.secret.cipher_key, self.secret.mask_key, self.secret.seed),
            "peers": {str(n): _packed(p.cipher_key, p.mask_key, p.commitment) for n, p in self.peers.items()},
            "held": {str(n): as_tensor(shares) for n, shares in self.held.items()},
            "dealers": {str(n): True for n in sorted(self.dealers)},
            "survivors": {str(n): True for n in sorted(self.survivors)},
        }

    @classmethod
    def from_tree(
        cls, tree: Tree, identity: SiteIdentity, known: KnownSites, policy: SecurePolicy | None = None
    ) -> SecureSite:
        """The site as `tree` left it."""
        return cls(
            identity,
            known,
            policy or SecurePolicy(),
            SecureTerms.from_tree(tree["terms"]),
            SecretKeys(*_unpacked(tree["secret"])),
            tree["next_step"],
            {int(n): PublicKeys(*_unpacked(packed)) for n, packed in tree["peers"].items()},
            {int(n): shares.cpu().numpy().tobytes() for n, shares in tree["held"].items()},
            {int(n) for n in tree["dealers"]},
            {int(n) for n in tree["survivors"]},
        )

    # checks -----------------------------------------------------------------------------------------------------------
    def _expect(self, step: str) -> None:
        if self.next_step == DONE:
            raise MessageRefused(SERVER, f"it asks for {step!r}, but the sum is over")
        if step != self.next_step:
            raise MessageRefused(SERVER, f"it asks for {step!r}, where {self.next_step!r} is next")

    def _enter(self, step: str) -> None:
        """From here on the step counts as taken, so that it is never taken twice."""
        self._expect(step)
        position = STEPS.index(step) + 1
        self.next_step = STEPS[position] if position < len(STEPS) else DONE

    def _entries(self, payload: object, step: str, item: str, allowed: set[int]) -> dict[int, Any]:
        fields = opened(self.terms, step, SERVER, payload, (item,))
        return by_number(fields[item], self.terms, SERVER, f"an entry of {item}", allowed)

    def _check_enough(self, sites: set[int], what: str) -> None:
        least = max(self.terms.threshold, self.policy.min_sites)
        if len(sites) < least:
            raise MessageRefused(SERVER, f"{len(sites)} sites have {what}, {least} are needed")

    def _check_peers(self, peers: Mapping[int, PublicKeys]) -> None:
        self._check_enough(set(peers), "advertised keys")
        if peers.get(self.number) != self.secret.advertised(self.terms, self.number):
            raise MessageRefused(SERVER, f"the keys that it shows as those of {self.identity.name} are others")
        keys = [key for public in peers.values() for key in (public.cipher_key, public.mask_key)]
        if len(set(keys)) != len(keys):
            raise MessageRefused(SERVER, "two sites have the same key")

    def _channel(self, other: int) -> Channel:
        return Channel(self.terms, self.secret.cipher_key, self.number, other, self.peers[other].cipher_key)

    def _hold(self, dealer: int, sealed: object, digests: object) -> None:
        """Keep a dealer's shares, if they are what the dealer told the server that they are. If they are not, this site
        cannot help with the dealer's masks; others can."""
        member = self.terms.member(dealer)
        try:
            data = as_bytes(sealed, member, "its shares", least=SEALED_BYTES, most=SEALED_BYTES)
            expected = as_bytes(digests, member, "its digest", least=DIGESTS_BYTES, most=DIGESTS_BYTES)
            shares = self._channel(dealer).open(data)
        except MessageRefused:
            return
        if expected == share_digests(self.terms, dealer, self.number, shares[:SHARE_BYTES], shares[SHARE_BYTES:]):
            self.held[dealer] = shares


def advertised_keys(terms: SecureTerms, known: KnownSites, number: int, entry: object) -> PublicKeys:
    """The public keys of a site, if the site itself has signed them for this sum."""
    member = terms.member(number)
    items = ("cipher_key", "mask_key", "commitment", "signature", "abandons")
    fields = opened(terms, ADVERTISE, member, entry, items)
    check_abandonments(member, fields["abandons"])
    public = PublicKeys(
        as_bytes(fields["cipher_key"], member, "its cipher key", least=KEY_BYTES, most=KEY_BYTES),
        as_bytes(fields["mask_key"], member, "its mask key", least=KEY_BYTES, most=KEY_BYTES),
        as_bytes(fields["commitment"], member, "its commitment", least=DIGEST_BYTES, most=DIGEST_BYTES),
    )
    if not (is_usable(public.cipher_key) and is_usable(public.mask_key)):
        raise MessageRefused(member, "its keys are no public keys of X25519")
    signature = as_bytes(fields["signature"], member, "its signature", least=1, most=MOST_SIGNATURE)
    if not known.has_signed(member, public.statement(terms, number), signature):
        raise MessageRefused(member, "its keys are not signed by it")
    return public


def survivors_statement(terms: SecureTerms, survivors: set[int]) -> bytes:
    """What a site signs to confirm whose vectors are in the sum."""
    return terms.statement("survivors", number_bytes(survivors))


def pair_sign(mine: int, other: int) -> Literal[1, -1]:
    """Of two sites, that with the smaller number adds their mask, the other subtracts it."""
    return 1 if mine < other else -1


def _packed(*parts: bytes) -> torch.Tensor:
    return as_tensor(b"".join(parts))


def _unpacked(packed: torch.Tensor) -> list[bytes]:
    data = packed.cpu().numpy().tobytes()
    return [data[start : start + KEY_BYTES] for start in range(0, len(data), KEY_BYTES)]
