"""Roster: which of Flower's nodes is which site, and which sites may take part in a run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from crossward import __version__
from crossward.foreign import MAX_NAME, ForeignError, printable
from crossward.hospitals.federation_monitor import SiteWatch
from crossward.hospitals.flower.messenger import Messenger
from crossward.hospitals.messages import PROTOCOL, SiteMessage
from crossward.hospitals.recoveries import RECOVERIES_KEY, checked_recoveries
from crossward.hospitals.site_facts import COMMON_FACTS, checked_facts

WAIT_INTERVAL = 1.0  # seconds between two looks for new nodes


@dataclass
class Roster:
    """The sites of a run. Nodes may connect at any time; each new one is sent `opening`, the header of the message that
    opens the run, with `opening_payload`. If nodes have keys, one whose key is not registered is sent nothing.

    What the images of all sites are is `known`, from the configuration or the coordinator's own images. Whatever that
    leaves open is what most sites say: one that lies cannot have the others refused in its stead.
    """

    names: tuple[str, ...]  # of the sites, in the order of their numbers
    messenger: Messenger
    opening: dict[str, Any]
    opening_payload: bytes = b""  # an encoded tree, such as the public images
    registered: Mapping[str, int] | None = None  # site -> the node that has its key; None: nodes have no keys
    known: dict[str, Any] = field(default_factory=dict)  # facts that every site must have
    sources: tuple[str, ...] = ("the configuration",)  # who says so
    watch: SiteWatch = field(default_factory=SiteWatch)
    nodes: dict[int, int] = field(default_factory=dict)  # site -> node
    facts: dict[int, dict[str, Any]] = field(default_factory=dict)  # of each site that takes part: classes, counts ...
    recovered: dict[int, dict[str, int]] = field(default_factory=dict)  # site -> what it had recovered from, last told
    _came: dict[int, tuple[int, dict[str, Any]]] = field(default_factory=dict)  # site -> node and facts, agreed or not
    _rejected: dict[str, str] = field(default_factory=dict)  # site, or node, -> why its answer does not count
    _disagreeing: dict[str, str] = field(default_factory=dict)  # site -> in what it differs from the others
    _opened: set[int] = field(default_factory=set)  # nodes that have answered the opening
    _duplicates: dict[int, int] = field(default_factory=dict)  # node -> the one that has the same name and came before

    def __post_init__(self) -> None:
        self.messenger.watch = self

    def open_new_nodes(self) -> None:
        """Open the run at nodes that are new, and again at duplicates whose rival has gone."""
        connected = self.messenger.connected_nodes()
        new = [
            node
            for node in sorted(self._with_keys(connected))
            if node not in self._opened or self._duplicates.get(node, node) not in connected
        ]
        names = self._names_by_node()
        self.watch.opening([names[node] for node in new if node in names])
        opening = SiteMessage({"do": "open", **self.opening}, self.opening_payload)
        for node, answer in self.messenger.exchange(dict.fromkeys(new, opening), "query.open"):
            self._handle_answer(node, answer, self.messenger.connected_nodes())
        self._opened &= connected | {*self.nodes.values()}
        self._compare(final=False)
        if new:
            self.messenger.connected_nodes()  # names of nodes without keys are known by now

    def wait_for_sites(self, seconds: float, least: int | None = None) -> None:
        """Wait until every site has joined or cannot take part, until so many cannot that fewer than `least` (all, if
        it is not given) are left, or until the time is up. From then on a site that comes must have the facts of those
        that are here."""
        end = self.messenger.clock() + seconds
        while len(self.nodes) < len(self.names):
            self.open_new_nodes()
            left = {*self.names} - {*self.refused_sites}
            here = {self.names[site] for site in self.nodes}
            enough = len(self.names) if least is None else least
            if left <= here or len(left) < enough or self.messenger.clock() > end:
                break
            self.messenger.sleep(WAIT_INTERVAL)
        self._compare(final=True)
        if self.facts and {*self.known} != {*COMMON_FACTS}:
            first = self.facts[min(self.facts)]
            self.known = {key: first[key] for key in COMMON_FACTS}
            self.sources = tuple(self.names[site] for site in sorted(self.facts))

    @property
    def refused(self) -> dict[str, str]:
        """Sites and nodes that do not take part, and why."""
        return self._rejected | self._disagreeing

    @property
    def refused_sites(self) -> dict[str, str]:
        """The sites of this federation that do not take part, and why; without strangers and unnamed nodes."""
        return {name: reason for name, reason in self.refused.items() if name in self.names}

    # what the messenger notifies of -----------------------------------------------------------------------------------
    def nodes_connected(self, nodes: set[int]) -> None:
        names = self._names_by_node()
        self.watch.connected({names[node] for node in nodes if node in names})

    def node_lost(self, node: int, why: str, seconds: float) -> None:
        names = self._names_by_node()
        if node in names:
            self.watch.lost(names[node], why, seconds)

    def node_asked_again(self, node: int, seconds: float) -> None:
        names = self._names_by_node()
        if node in names:
            self.watch.asked_again(names[node], seconds)

    def _names_by_node(self) -> dict[int, str]:
        """The sites of this run that nodes are, by their keys, or by what nodes without keys said of themselves."""
        if self.registered is not None:
            return {node: site for site, node in self.registered.items() if site in self.names}
        return {node: self.names[site] for site, (node, _) in self._came.items()}

    def _with_keys(self, connected: set[int]) -> set[int]:
        """The nodes that may know of the run. Strangers are written down."""
        if self.registered is None:
            return connected
        invited = {node for site, node in self.registered.items() if site in self.names}
        for node in connected - invited:
            self._rejected[f"node {node}"] = "it has no key of a site of this run: it was told nothing"
        return connected & invited

    def _handle_answer(self, node: int, answer: SiteMessage | str, connected: set[int]) -> None:
        if isinstance(answer, str) and node not in connected:
            return  # the SuperLink still listed a node that has gone
        self._opened.add(node)
        self._duplicates.pop(node, None)
        message = answer if isinstance(answer, SiteMessage) else SiteMessage({"failure": answer})
        name = f"node {node}"
        facts: dict[str, Any] = {}
        recovered: dict[str, int] = {}
        try:
            name, problem = self._identify(node, message.header)
            facts = {} if problem else self._checked(name, message)
            recovered = checked_recoveries(message.header.get(RECOVERIES_KEY, {}))
            problem = problem or self._duplicate_problem(node, name, connected)
        except ForeignError as error:
            problem = printable(error)
        except Exception as error:
            problem = f"its answer cannot be handled ({type(error).__name__})"
        if problem:
            self._rejected[name] = problem
            return
        self._came[self.names.index(name)] = (node, facts)
        self.recovered.setdefault(self.names.index(name), recovered)
        self._rejected.pop(name, None)

    def _identify(self, node: int, header: dict[str, Any]) -> tuple[str, str]:
        """Which site a node is, by its key if nodes have keys; and a problem if it claims to be another site."""
        claimed = printable(header.get("site", f"node {node}"), MAX_NAME)
        if self.registered is None:
            return claimed, ""
        owners = [site for site, known in self.registered.items() if known == node]
        owner = owners[0] if owners else f"node {node}"
        if owner != claimed and claimed in self.names:
            return owner, f"it has the key of {owner} and says that it is {claimed}"
        return owner, ""

    def _checked(self, name: str, message: SiteMessage) -> dict[str, Any]:
        """What a site says of its images; ForeignError says why it does not take part."""
        header = message.header
        version = header.get("crossward", __version__)
        if version != __version__:
            raise ForeignError(
                f"it runs crossward {printable(version, MAX_NAME)}, the coordinator {__version__}: "
                "install the same version"
            )
        protocol = header.get("protocol", PROTOCOL)
        if protocol != PROTOCOL:
            raise ForeignError(
                f"it speaks protocol {printable(protocol, MAX_NAME)}, the coordinator {PROTOCOL}: "
                "install the same version"
            )
        if message.failure:
            raise ForeignError(message.failure)
        if name not in self.names:
            raise ForeignError(f"it is not of this federation, whose sites are {', '.join(self.names)}")
        return checked_facts(header)

    def _duplicate_problem(self, node: int, name: str, connected: set[int]) -> str:
        """A problem if another connected node has the same name."""
        rival, _ = self._came.get(self.names.index(name), (node, {}))
        if rival == node or rival not in connected:
            return ""
        self._duplicates[node] = rival
        return f"two nodes say that they are {name}: stop one of them"

    def _compare(self, final: bool) -> None:
        """Who of those that came takes part, and who differs. Unless it is `final`, sites that are yet to come may
        still decide between those that differ."""
        differing = {site: _difference(facts, self.known, *self.sources) for site, (_, facts) in self._came.items()}
        agreed = [site for site, difference in differing.items() if not difference]
        groups: dict[str, list[int]] = {}
        for site in sorted(agreed):
            facts = self._came[site][1]
            groups.setdefault(json.dumps([facts[key] for key in COMMON_FACTS]), []).append(site)
        largest, *others = sorted(groups.values(), key=len, reverse=True) or [[]]
        if others:
            absent = 0 if final else len({*self.names} - {self.names[site] for site in self._came} - {*self._rejected})
            if len(largest) > len(others[0]) + absent:
                differing |= self._minority(largest, others)
            elif not absent:
                differing |= self._undecided([largest, *others])
        self._disagreeing = {self.names[site]: reason for site, reason in differing.items() if reason}
        taking_part = {site: came for site, came in self._came.items() if not differing[site]}
        self.nodes = {site: node for site, (node, _) in taking_part.items()}
        self.facts.clear()  # the same object: replies are held against it
        self.facts.update({site: facts for site, (_, facts) in taking_part.items()})
        self.watch.opened([self.names[site] for site in self.nodes], self.refused_sites)

    def _minority(self, largest: list[int], others: Iterable[list[int]]) -> dict[int, str]:
        """Why each site that differs from most does not take part."""
        facts = self._came[largest[0]][1]
        whose = [self.names[site] for site in largest]
        return {site: _difference(self._came[site][1], facts, *whose) for group in others for site in group}

    def _undecided(self, groups: list[list[int]]) -> dict[int, str]:
        """Why none takes part of sites that differ, if no more of them say the one than the other."""
        reasons = {}
        for group in groups:
            rival = next(other for other in groups if other is not group)
            facts, whose = self._came[rival[0]][1], [self.names[site] for site in rival]
            for site in group:
                difference = _difference(self._came[site][1], facts, *whose)
                reasons[site] = f"{difference}, and no more sites say the one than the other: see who is right"
        return reasons


def _difference(facts: Mapping[str, Any], others: Mapping[str, Any], *whose: str) -> str:
    """In what a site's facts differ from others, with what each says; empty if in nothing."""
    for key in COMMON_FACTS:
        if key in others and facts[key] != others[key]:
            have = "have" if len(whose) > 1 else "has"
            return f"it has the {key} {_listed(facts[key])}, where {_and(whose)} {have} {_listed(others[key])}"
    return ""


def _and(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _listed(value: Any) -> str:
    return ", ".join(map(printable, value)) if isinstance(value, list) else printable(value)
