"""PayloadGuard: a site's defence against weights that were made to read its images. It looks at each payload before the
site trains on it, leaves the run if it is suspicious, and puts noise on the weights that go back."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from crossward.core.disclosure import HOLDS_WEIGHTS, DisclosureKind
from crossward.core.engine import Job
from crossward.core.method import COMMON_STEPS, Method
from crossward.core.tree import Tree, decode, encode
from crossward.core.weights import Weights
from crossward.disk import write_atomically
from crossward.foreign import printable
from crossward.hospitals.payload_checks import Finding, PayloadChecks
from crossward.hospitals.refusal import Refusal
from crossward.hospitals.site_notes import SUSPICIOUS, write_note
from crossward.privacy.noise import secret_generator
from crossward.privacy.update_noise import UpdateNoise

SEEN_FILE = "seen.tree"  # a sample of the last payload
LEFT_FILE = "left.json"  # why this site has left the run
SHOWN = 3  # findings in a note
NOISED = HOLDS_WEIGHTS | {DisclosureKind.GENERATOR, DisclosureKind.GRADIENTS}
NEAR = 0.9  # of its own length: weights that are nearer to others than this have come from them
LEAVING = "this question holds weights that training does not make: this site does not train on them and leaves the run"
LEFT = "this site has left the run, because of a question with weights that training does not make"


class SuspiciousPayload(Refusal):
    """The coordinator is told this and no figure: a figure would tell an attacker how far to go."""


@dataclass
class PayloadGuard:
    """The defence of one site in one run."""

    checks: PayloadChecks | None  # None: site.toml switches them off
    noise: UpdateNoise | None  # None: without noise, or with that of the site's own privacy budget in its place
    folder: Path  # of the site
    run_folder: Path  # of what it remembers of this run
    run: str

    def check(self, job: Job, payload: Tree) -> None:
        """Refuse a payload that training does not make, and from then on every other of this run."""
        self.require_in_run()
        if self.checks is None:
            return
        if not self.checks.seen and (self.run_folder / SEEN_FILE).exists():
            self.checks.seen = decode((self.run_folder / SEEN_FILE).read_bytes())
        first = job.round == 0 and job.step not in COMMON_STEPS
        suspicious = [finding for finding in self.checks.findings(payload, first=first) if finding.suspicious]
        if suspicious:
            self._leave(job, suspicious)
        if job.step not in COMMON_STEPS:
            self.checks.remember(payload)
            self.run_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_atomically(self.run_folder / SEEN_FILE, encode(self.checks.seen), durable=False, mode=0o600)

    def require_in_run(self) -> None:
        """Refuse any question of a run that this site has left."""
        if (self.run_folder / LEFT_FILE).exists():
            raise SuspiciousPayload(LEFT)

    def _leave(self, job: Job, suspicious: list[Finding]) -> None:
        lines = [str(finding) for finding in suspicious]
        self.run_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        reason = {"round": job.round + 1, "step": job.step, "findings": lines}
        write_atomically(self.run_folder / LEFT_FILE, json.dumps(reason, indent=1).encode(), mode=0o600)
        shown = "; ".join(lines[:SHOWN]) + (f" and {len(lines) - SHOWN} more" if len(lines) > SHOWN else "")
        place = self.run_folder / LEFT_FILE
        text = f"{SUSPICIOUS} in round {job.round + 1} ({job.step}), and this site has left the run. {shown}."
        write_note(self.folder, self.run, printable(f"{text} All: {place}. To take part again, delete that file."))
        raise SuspiciousPayload(LEAVING)

    def protect(self, job: Job, payload: Tree, reply: Tree, method: Method) -> Tree:
        """The reply with noise on the weights in it, by how they differ from those that came."""
        if self.noise is None or job.step in COMMON_STEPS:
            return reply
        protected = dict(reply)
        for item, value in reply.items():
            if isinstance(value, Weights) and item in method.discloses and method.discloses[item].kind in NOISED:
                rng = secret_generator()
                protected[item] = self.noise.weights(value, self._start(item, value, payload), rng)
        return protected

    def _start(self, item: str, sent: Weights, payload: Tree) -> Weights | None:
        """The weights that training began with; None for a difference of weights, which began with nothing."""
        known = payload.get(item)
        if isinstance(known, Weights) and _covers(known, sent):
            return known
        others = [value for value in payload.values() if isinstance(value, Weights) and _covers(value, sent)]
        if self.checks is not None and _covers(self.checks.network, sent):
            others.append(self.checks.network)
        distances = [float((sent - other.only(sent)).norm()) for other in others]
        nearest = min(range(len(others)), key=distances.__getitem__, default=None)
        if nearest is None or distances[nearest] > NEAR * float(sent.norm()):
            return None
        return others[nearest]


def _covers(start: Weights, sent: Weights) -> bool:
    return all(isinstance(start.get(name), Tensor) and start[name].shape == w.shape for name, w in sent.items())
