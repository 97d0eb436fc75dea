"""SiteSums: a hospital's part in the secure sums of one run.

What the site has trained, and what it knows of the sum that runs, are in files of its own folder that no version of its
memory covers: a coordinator cannot go back to before a step. They are written before the reply leaves, and a message
that comes again, because its reply was lost, gets the same reply again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossward.core.tree import Tree, decode, encode
from crossward.disk import write_atomically
from crossward.errors import StorageError
from crossward.foreign import ForeignError
from crossward.hospitals.memory import PLAIN_SUFFIX, SEALED_SUFFIX, create_cipher, seal, unseal
from crossward.hospitals.peers import HospitalIdentity
from crossward.hospitals.refusal import Refusal
from crossward.hospitals.sum_journal import (
    ABANDONED,
    BEGUN,
    CONFIRMED,
    MASKED,
    UNMASKED,
    PastSum,
    SumJournal,
    check_repeat,
    check_survivors,
    related,
)
from crossward.privacy.secure_messages import (
    ADVERTISE,
    CONFIRM,
    MASK,
    SHARE,
    UNMASK,
    SecurePolicy,
    SecureTerms,
    as_tensor,
)
from crossward.privacy.secure_repeats import abandoned_by, signed_abandonments
from crossward.privacy.secure_site import SecureSite
from crossward.privacy.secure_steps import KEPT, SECURE, STEP_NAMES, LeftSecureSum, flattened, masked_message

STEPS_BY_NAME = {name: step for step, name in STEP_NAMES.items()}  # as jobs call them
TRAINED_FILE = "trained"  # what this site has trained and not yet summed
SUM_FILE = "sum"  # what it knows of the sum that runs, secrets included


@dataclass(frozen=True)
class PrivateFile:
    """Trees in the folder of a run, encrypted if the site has a key of memory."""

    folder: Path
    key: bytes | None = None

    def save(self, name: str, tree: Tree) -> None:
        data = encode(tree)
        if self.key is not None:
            data = seal(create_cipher(self.key), data, self._associated_data(name))
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(self._file(name), data, mode=0o600)

    def load(self, name: str) -> Tree:
        """The tree; empty if there is none."""
        try:
            data = self._file(name).read_bytes()
        except FileNotFoundError:
            return {}
        if self.key is not None:
            content = unseal(create_cipher(self.key), data, self._associated_data(name))
            if content is None:
                raise StorageError(f"{self._file(name)} does not open with the key of this site's memory")
            data = content
        return decode(data)

    def delete(self, name: str) -> None:
        self._file(name).unlink(missing_ok=True)

    def _file(self, name: str) -> Path:
        return self.folder / f"{name}{PLAIN_SUFFIX if self.key is None else SEALED_SUFFIX}"

    def _associated_data(self, name: str) -> bytes:
        return f"{self.folder.absolute().name}/{name}".encode()


@dataclass(frozen=True)
class SiteSums:
    run: str
    sites: Collection[str]  # of the run, as it was opened
    identity: HospitalIdentity
    policy: SecurePolicy
    files: PrivateFile
    journal: SumJournal

    def keep_trained(self, round: int, memory: Tree, protect: Callable[[Tree], Tree]) -> Tree:
        """Put away what the site has just trained, protected as if it left; its memory without it."""
        if KEPT not in memory:
            return memory
        kept = memory[KEPT]
        self.files.save(TRAINED_FILE, {"round": round, **kept, "weights": protect(kept["weights"])})
        return {name: value for name, value in memory.items() if name != KEPT}

    def answer(self, step_name: str, round: int, payload: bytes) -> Tree:
        """The reply to a step of a sum, or a refusal that says why there is none."""
        step = STEPS_BY_NAME[step_name]
        state = self.files.load(SUM_FILE)
        question = hashlib.sha256(f"{step} {round} ".encode() + payload).hexdigest()
        if state and state["question"] == question:
            reply: Tree = decode(state["reply"].numpy().tobytes())
            return {SECURE: reply}
        try:
            down = decode(payload) if payload else {}
            if step == ADVERTISE:
                reply, state = self._advertise(round, down)
            else:
                reply, state = self._go_on(step, round, down, state)
        except (ForeignError, LeftSecureSum, ValueError) as error:  # MessageRefused is a ForeignError
            raise Refusal(str(error)) from error
        self.files.save(SUM_FILE, state | {"question": question, "reply": as_tensor(encode(reply))})
        if step == UNMASK:
            self.files.delete(TRAINED_FILE)
        return {SECURE: reply}

    # steps ------------------------------------------------------------------------------------------------------------
    def _advertise(self, round: int, down: Tree) -> tuple[Tree, Tree]:
        vector = _digest(*self._trained(round))
        terms = SecureTerms.from_tree(down.get("terms"))
        if not terms.label.startswith(sum_label(self.run, round, "")):
            raise Refusal("the terms of the sum are of another run or round")
        if strangers := [member for member in terms.members if member not in self.sites]:
            raise Refusal(f"unknown sites in the sum: {', '.join(strangers[:3])}")
        certificates = down.get("certificates")
        known = self.identity.known(certificates, terms.members)
        part = SecureSite.begin(self.identity.signer, known, down["terms"], self.policy)
        digest = terms.digest.hex()
        sums = self.journal.sums()
        if digest in sums:
            raise Refusal("this site has been in this sum before")
        left = [past.digest for past in related(sums.values(), self.run, round, vector) if UNMASKED not in past.events]
        for other in left:
            if ABANDONED not in sums[other].events:
                self.journal.note(ABANDONED, other)
        self.journal.note(
            BEGUN, digest, run=self.run, round=round, members=list(terms.members), threshold=terms.threshold
        )
        reply = part.advertise(signed_abandonments(self.identity.signer, left))
        shown = {member: certificates[member] for member in terms.members} if isinstance(certificates, dict) else {}
        return reply, {"part": part.tree(), "certificates": shown, "vector": vector, "cleared": {}}

    def _go_on(self, step: str, round: int, down: Tree, state: Tree) -> tuple[Tree, Tree]:
        if not state or "part" not in state:
            raise Refusal(f"it is asked for {step!r} of a secure sum that has not begun, or is over")
        part = self._part(state)
        if not part.terms.label.startswith(sum_label(self.run, round, "")):
            raise Refusal("the sum that runs is of another round")
        sums = self.journal.sums()
        digest = part.terms.digest.hex()
        if digest not in sums or sums[digest].is_over:
            raise Refusal("this site has left that sum for good")
        vector = str(state["vector"])
        earlier = [past for past in related(sums.values(), self.run, round, vector) if past.digest != digest]
        if step == SHARE:
            reply, cleared = self._share(part, down, earlier)
            state = state | {"cleared": dict.fromkeys(cleared, True)}
        elif step == MASK:
            reply = self._mask(part, down, round, vector)
        elif step == CONFIRM:
            reply = self._confirm(part, down, earlier, state["cleared"])
        else:
            reply = part.unmask(down)
            self.journal.note(UNMASKED, digest)
            return reply, {}
        return reply, state | {"part": part.tree()}

    def _share(self, part: SecureSite, down: Tree, earlier: list[PastSum]) -> tuple[Tree, list[str]]:
        keys = down.get("keys")
        cleared = check_repeat(earlier, lambda other: abandoned_by(part.terms, part.known, keys, other))
        return part.share(down), cleared

    def _mask(self, part: SecureSite, down: Tree, round: int, vector: str) -> Tree:
        trained, count = self._trained(round)
        if _digest(trained, count) != vector:
            raise Refusal("this site has trained anew since the sum began")
        reply = masked_message(part, down, trained, count)
        self.journal.note(MASKED, part.terms.digest.hex(), vector=vector)
        return reply

    def _confirm(self, part: SecureSite, down: Tree, earlier: list[PastSum], cleared: Collection[str]) -> Tree:
        reply = part.confirm(down)
        survivors = frozenset(part.terms.member(number) for number in part.survivors)
        check_survivors(earlier, cleared, survivors)
        self.journal.note(CONFIRMED, part.terms.digest.hex(), survivors=sorted(survivors))
        return reply

    # what is kept -----------------------------------------------------------------------------------------------------
    def _part(self, state: Tree) -> SecureSite:
        members = SecureTerms.from_tree(state["part"]["terms"]).members
        known = self.identity.known(state["certificates"], members)
        return SecureSite.from_tree(state["part"], self.identity.signer, known, self.policy)

    def _trained(self, round: int) -> tuple[NDArray[np.floating[Any]], int]:
        kept = self.files.load(TRAINED_FILE)
        if kept.get("round") != round:
            raise Refusal(f"this site has trained nothing in round {round + 1} that it has not summed")
        return flattened(kept["weights"]), int(kept["count"])


def sum_label(run: str, round: int, nonce: str) -> str:
    """What the terms of a sum among hospitals are labelled with; rounds are from 0. No two sums have the same nonce."""
    return f"run {run}, round {round + 1}, sum {nonce}"


def _digest(vector: NDArray[np.floating[Any]], count: int) -> str:
    """Of what a site adds to a sum, to know it again."""
    return hashlib.sha256(vector.tobytes() + count.to_bytes(8, "big")).hexdigest()
