"""What a secure sum costs: processor seconds of a site, of the server, and bytes, in one round.

    python benchmarks/secure_sum.py [--parameters 11000000] [--sites 10] [--drops 0] [--bits 64] [--json FILE] [--smoke]

Random vectors go through the protocol, all sites in this process and on one thread. `site` is the mean over the sites
of all that a site computes: keys, shares, quantising, masks, signatures, and keeping its state between the steps as it
would be stored. It is processor time, which other work on the machine disturbs little. The bar is 3 s for 11 million
parameters and 10 sites. With --drops so many sites leave before they send their vector, which costs the server most.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from crossward.core.tree import Tree, decode, encode, sizes
from crossward.privacy.secure_format import SumFormat
from crossward.privacy.secure_identity import KnownSites, SiteIdentity, known_sites, simulated_identities
from crossward.privacy.secure_messages import ADVERTISE, MASK, STEPS, SecureTerms, default_threshold
from crossward.privacy.secure_server import SecureServer
from crossward.privacy.secure_site import SecureSite
from crossward.privacy.secure_sum import SiteInput, answer_step

BAR = 3.0  # seconds of a site
T = TypeVar("T")


@dataclass(frozen=True)
class Figures:
    site: float  # processor seconds of a site that stays, on average
    steps: dict[str, float]  # of them, by step
    server: float  # processor seconds
    up: int  # bytes that a site sends
    error: float  # largest difference from the plain mean
    bound: float  # what the format says it is at most
    met: bool


class Clock:
    """Adds up processor seconds by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    def measure(self, name: str, work: Callable[[], T]) -> T:
        began = time.process_time()
        result = work()
        self.seconds[name] += time.process_time() - began
        return result


def site_step(
    step: str, payload: Tree, identity: SiteIdentity, known: KnownSites, memory: bytes, given: SiteInput
) -> tuple[Tree, bytes]:
    """A site's reply and what it keeps, starting from what it kept."""
    if step == ADVERTISE:
        site = SecureSite.begin(identity, known, payload)
        reply = site.advertise()
    else:
        site = SecureSite.from_tree(decode(memory), identity, known)
        reply = answer_step(site, step, payload, given)
    return reply, encode(site.tree())


def measure(parameters: int, sites: int, drops: int, bits: int) -> Figures:
    names = [f"site-{number:03}" for number in range(sites)]
    format = SumFormat(parameters, sites, 10.0, 10_000, bits)
    terms = SecureTerms("benchmark", tuple(names), default_threshold(sites), format)
    identities = simulated_identities(names, 0)
    known = known_sites(identities.values())
    clock = Clock()
    server = SecureServer(terms, known)
    memories = dict.fromkeys(names, b"")
    up: dict[str, int] = defaultdict(int)
    took_part = dict.fromkeys(STEPS, 0)
    plain = np.zeros(parameters)
    total = 0
    payloads = server.start()
    for step in STEPS:
        for number, (name, payload) in enumerate(payloads.items()):
            if step == MASK and number < drops:
                continue
            vector = _vector(parameters, name) if step == MASK else np.zeros(0, np.float32)
            given = SiteInput(vector, 100 + number)
            work = lambda n=name, p=payload, g=given: site_step(step, p, identities[n], known, memories[n], g)  # noqa: B023
            reply, memories[name] = clock.measure(step, work)
            took_part[step] += 1
            up[name] += sum(sizes(reply).values())
            clock.measure("server", lambda n=name, r=reply: server.receive(n, r))
            if step == MASK:
                plain += given.weight * vector.astype(np.float64)
                total += given.weight
        payloads = clock.measure("server", server.close_step)
    result = clock.measure("server", server.result)
    steps = {step: clock.seconds[step] / took_part[step] for step in STEPS}
    seconds = sum(steps.values())
    error = float(np.abs(result.mean - plain / total).max())
    return Figures(seconds, steps, clock.seconds["server"], max(up.values()), error, result.error, seconds <= BAR)


def _vector(length: int, name: str) -> np.ndarray:
    return np.random.default_rng([*name.encode()]).normal(scale=0.1, size=length).astype(np.float32)


def main(arguments: Sequence[str] | None = None) -> Figures:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=int, default=11_000_000)
    parser.add_argument("--sites", type=int, default=10)
    parser.add_argument("--drops", type=int, default=0, help="sites that leave before they send their vector")
    parser.add_argument("--bits", type=int, choices=(32, 64), default=64)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--smoke", action="store_true", help="next to no work: it runs, its figures mean nothing")
    options = parser.parse_args(arguments)
    parameters, sites = (1000, 4) if options.smoke else (options.parameters, options.sites)
    figures = measure(parameters, sites, options.drops, options.bits)
    print(f"{parameters:,} parameters, {sites} sites, {options.drops} drop out, {options.bits} bits")
    shown = ", ".join(f"{step} {seconds:.3f}" for step, seconds in figures.steps.items())
    print(f"a site: {figures.site:.2f} s ({shown}); {figures.up / 1e6:.1f} MB up")
    print(f"the server: {figures.server:.2f} s")
    print(f"error of the mean: {figures.error:.2g}, at most {figures.bound:.2g}")
    print(f"bar: a site computes for at most {BAR:g} s: {'met' if figures.met else 'not met'}")
    if options.json:
        options.json.write_text(json.dumps(asdict(figures), indent=1))
    return figures


if __name__ == "__main__":
    main()
