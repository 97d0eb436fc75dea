"""Roster: which of Flower's nodes is which site, and which sites may take part in a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from crossward import __version__
from crossward.hospitals.flower.messenger import Messenger
from crossward.hospitals.messages import PROTOCOL, SiteMessage

WAIT_INTERVAL = 1.0  # seconds between two looks for new nodes
COMMON_FACTS = ("task", "classes", "channels", "size")  # in which the images of all sites must agree


@dataclass
class Roster:
    """The sites of a run. Nodes may connect at any time; each new one is sent `opening`, the header of the message that
    opens the run, with `opening_payload`."""

    names: tuple[str, ...]  # of the sites, in the order of their numbers
    messenger: Messenger
    opening: dict[str, Any]
    opening_payload: bytes = b""  # an encoded tree, such as the public images
    registered: Mapping[str, int] = field(default_factory=dict)  # site -> the node that has its key, if nodes have keys
    nodes: dict[int, int] = field(default_factory=dict)  # site -> node
    facts: dict[int, dict[str, Any]] = field(default_factory=dict)  # of each site that takes part: classes, counts ...
    refused: dict[str, str] = field(default_factory=dict)  # site, or node, -> why it does not take part
    _opened: set[int] = field(default_factory=set)  # nodes that have answered the opening
    _duplicates: dict[int, int] = field(default_factory=dict)  # node -> the one that has the same name and came before

    def open_new_nodes(self) -> None:
        """Open the run at nodes that are new, and again at duplicates whose rival has gone."""
        connected = self.messenger.connected_nodes()
        new = [
            node
            for node in sorted(connected)
            if node not in self._opened or self._duplicates.get(node, node) not in connected
        ]
        opening = SiteMessage({"do": "open", **self.opening}, self.opening_payload)
        for node, answer in self.messenger.exchange(dict.fromkeys(new, opening), "query.open"):
            self._handle_answer(node, answer, self.messenger.connected_nodes())
        self._opened &= connected | {*self.nodes.values()}

    def wait_for_sites(self, seconds: float) -> None:
        """Wait until all sites have joined, one of them cannot take part, or the time is up."""
        end = self.messenger.clock() + seconds
        while len(self.nodes) < len(self.names):
            self.open_new_nodes()
            if len(self.nodes) == len(self.names) or self.refused_sites or self.messenger.clock() > end:
                return
            self.messenger.sleep(WAIT_INTERVAL)

    @property
    def refused_sites(self) -> dict[str, str]:
        """The sites of this federation that do not take part, and why; without strangers and unnamed nodes."""
        return {name: reason for name, reason in self.refused.items() if name in self.names}

    def _handle_answer(self, node: int, answer: SiteMessage | str, connected: set[int]) -> None:
        if isinstance(answer, str) and node not in connected:
            return  # the SuperLink still listed a node that has gone
        self._opened.add(node)
        self._duplicates.pop(node, None)
        header = answer.header if isinstance(answer, SiteMessage) else {"failure": answer}
        name, problem = self._identify(node, header)
        problem = problem or self._refusal(name, header)
        if not problem:
            problem = self._duplicate_problem(node, name, connected)
        if problem:
            self.refused[name] = problem
            return
        site = self.names.index(name)
        self.nodes[site] = node
        self.facts[site] = header
        self.refused.pop(name, None)

    def _identify(self, node: int, header: dict[str, Any]) -> tuple[str, str]:
        """Which site a node is, by its key if nodes have keys; and a problem if it claims to be another site."""
        claimed = str(header.get("site", f"node {node}"))
        if not self.registered:
            return claimed, ""
        owners = [site for site, known in self.registered.items() if known == node]
        owner = owners[0] if owners else f"node {node}"
        if owner != claimed and claimed in self.names:
            return owner, f"it has the key of {owner} and says that it is {claimed}"
        return owner, ""

    def _refusal(self, name: str, header: dict[str, Any]) -> str:
        """Why a site does not take part; empty if it may."""
        version = header.get("crossward", __version__)
        if version != __version__:
            return f"it runs crossward {version}, the coordinator {__version__}: install the same version"
        protocol = header.get("protocol", PROTOCOL)
        if protocol != PROTOCOL:
            return f"it speaks protocol {protocol}, the coordinator {PROTOCOL}: install the same version"
        failure = header.get("failure")
        if failure:
            return str(failure)
        if name not in self.names:
            return f"it is not of this federation, whose sites are {', '.join(self.names)}"
        missing = [key for key in COMMON_FACTS if key not in header]
        if missing:
            return f"it does not say what its images are: {', '.join(missing)}"
        return self._fact_mismatch(name, header)

    def _fact_mismatch(self, name: str, header: dict[str, Any]) -> str:
        """In what a site's images differ from those of the sites that joined before; empty if in nothing."""
        for site, facts in self.facts.items():
            for key in COMMON_FACTS:
                if facts[key] != header[key] and self.names[site] != name:
                    return (
                        f"it has the {key} {_listed(header[key])}, where {self.names[site]} has {_listed(facts[key])}"
                    )
        return ""

    def _duplicate_problem(self, node: int, name: str, connected: set[int]) -> str:
        """A problem if another connected node has the same name."""
        rival = self.nodes.get(self.names.index(name), node)
        if rival == node or rival not in connected:
            return ""
        self._duplicates[node] = rival
        return f"two nodes say that they are {name}: stop one of them"


def _listed(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
