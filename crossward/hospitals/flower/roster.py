"""Roster: which of Flower's nodes is which site, and what each site says of itself before it takes part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from crossward import __version__
from crossward.hospitals.flower.messenger import Post
from crossward.hospitals.messages import PROTOCOL, Parcel

WAIT = 1.0  # seconds between two looks at who has come
ALIKE = ("task", "classes", "channels", "size")  # what all sites must have in common


@dataclass
class Roster:
    """`opening` is what a site is told of the run when it is first met: sites may come at any time."""

    names: tuple[str, ...]  # of the sites, in the order of their numbers
    post: Post
    opening: dict[str, Any]
    sent: bytes = b""  # a tree that goes with it, as the public images do
    keys: Mapping[str, int] = field(default_factory=dict)  # site -> the node that has its key, where nodes have keys
    nodes: dict[int, int] = field(default_factory=dict)  # site -> node
    facts: dict[int, dict[str, Any]] = field(default_factory=dict)  # of each site that takes part: classes, counts ...
    refused: dict[str, str] = field(default_factory=dict)  # site, or node, -> why it does not take part
    _met: set[int] = field(default_factory=set)  # nodes
    _doubles: dict[int, int] = field(default_factory=dict)  # node -> the one that bears its name already

    def greet(self) -> None:
        """Open the run at the nodes that are new."""
        here = self.post.connected()
        new = [n for n in sorted(here) if n not in self._met or self._doubles.get(n, n) not in here]
        for node, answer in self.post.exchange(
            {n: Parcel({"do": "open", **self.opening}, self.sent) for n in new}, "query.open"
        ):
            self._welcome(node, answer, self.post.connected())
        self._met &= here | {*self.nodes.values()}

    def gather(self, wait: float) -> None:
        """Wait until all sites are here, one of them cannot take part, or the time is up."""
        end = self.post.clock() + wait
        while len(self.nodes) < len(self.names):
            self.greet()
            if len(self.nodes) == len(self.names) or self.unfit or self.post.clock() > end:
                return
            self.post.sleep(WAIT)

    @property
    def unfit(self) -> dict[str, str]:
        """The sites of this federation that do not take part, and why; not strangers, nor nodes that say no name."""
        return {name: why for name, why in self.refused.items() if name in self.names}

    def _welcome(self, node: int, answer: Parcel | str, here: set[int]) -> None:
        if isinstance(answer, str) and node not in here:
            return  # what the SuperLink still knew of a site that has gone
        self._met.add(node)
        self._doubles.pop(node, None)
        about = answer.about if isinstance(answer, Parcel) else {"failure": answer}
        name, reason = self._known(node, about)
        reason = reason or self._reason(name, about)
        rival = node if reason else self.nodes.get(self.names.index(name), node)
        if rival != node and rival in here:
            self._doubles[node] = rival
            reason = f"two nodes say that they are {name}: stop one of them"
        if reason:
            self.refused[name] = reason
            return
        site = self.names.index(name)
        self.nodes[site], self.facts[site] = node, about
        self.refused.pop(name, None)

    def _known(self, node: int, about: dict[str, Any]) -> tuple[str, str]:
        """Which site it is, by its key if nodes have keys; and what is wrong if it says otherwise."""
        said = str(about.get("site", f"node {node}"))
        if not self.keys:
            return said, ""
        owner = next((site for site, known in self.keys.items() if known == node), f"node {node}")
        return owner, f"it has the key of {owner} and says that it is {said}" if owner != said in self.names else ""

    def _reason(self, name: str, about: dict[str, Any]) -> str:
        """Why it does not take part; empty if it may."""
        if (theirs := about.get("crossward", __version__)) != __version__:
            return f"it runs crossward {theirs}, the coordinator {__version__}: install the same version"
        if about.get("protocol", PROTOCOL) != PROTOCOL:
            return f"it speaks protocol {about['protocol']}, the coordinator {PROTOCOL}: install the same version"
        if failure := about.get("failure"):
            return str(failure)
        if name not in self.names:
            return f"it is not of this federation, whose sites are {', '.join(self.names)}"
        if missing := [key for key in ALIKE if key not in about]:
            return f"it does not say what its images are: {', '.join(missing)}"
        return self._other_classes(name, about)

    def _other_classes(self, name: str, about: dict[str, Any]) -> str:
        """Sites that are here first say what the classes are."""
        for site, facts in self.facts.items():
            for key in ALIKE:
                if facts[key] != about[key] and self.names[site] != name:
                    return f"it has the {key} {_said(about[key])}, where {self.names[site]} has {_said(facts[key])}"
        return ""


def _said(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
