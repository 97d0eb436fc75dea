"""Roster: which sites take part, by which node, and which do not and why; at the start and at any time later."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from flwr.app import Message
from flwr.clientapp import ClientApp

from crossward import __version__
from crossward.core.disclosure import DisclosureKind
from crossward.hospitals.flower.loopback_grid import LoopbackGrid
from crossward.hospitals.flower.messenger import Messenger
from crossward.hospitals.flower.records import from_records, to_records
from crossward.hospitals.flower.roster import WAIT_INTERVAL, Roster
from crossward.hospitals.messages import PROTOCOL, SiteMessage
from crossward.hospitals.policy import Policy
from crossward.methods.scaffold import Scaffold
from crossward.testing import loopback_federation as loopback
from crossward.testing.loopback_federation import FakeClock
from crossward.testing.toy import Toy

NAMES = ("north", "south", "west")
FACTS = {"task": "classification", "classes": ["a", "b", "c"], "channels": 3, "size": [28, 28]}


def site_header(name, **changes):
    return {"site": name, "crossward": __version__, "protocol": PROTOCOL, **FACTS, **changes}


@dataclass
class FakeNodes:
    """Nodes that answer with the headers in `headers`. A node whose header is None has gone, though it is still listed.
    Nodes come and go at the times of `events`."""

    headers: dict  # node -> header
    events: dict = field(default_factory=dict)  # time -> what happens
    clock: FakeClock = field(default_factory=FakeClock)
    opened: list = field(default_factory=list)  # nodes, in turn
    slept: list = field(default_factory=list)

    def __post_init__(self):
        app = ClientApp()

        @app.query("open")
        def answer(message, context):
            self.opened.append(context.node_id)
            self.request = from_records(message.content).header
            return Message(to_records(SiteMessage(self.headers[context.node_id])), reply_to=message)

        self.grid = LoopbackGrid(app, {})
        self.grid.get_node_ids = lambda: list(self.headers)
        self.grid.push_messages = self.push
        messenger = Messenger(self.grid, patience=5.0, clock=self.clock, sleep=self.sleep)
        self.roster = Roster(NAMES, messenger, {"run": "r1", "crossward": __version__})

    def push(self, messages):
        self.grid.nodes = {node: {} for node, header in self.headers.items() if header is not None}
        return LoopbackGrid.push_messages(self.grid, messages)

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.clock.sleep(seconds)
        for time in [time for time in self.events if time <= self.clock.now]:
            self.events.pop(time)()

    def opened_roster(self):
        self.roster.open_new_nodes()
        return self.roster


def test_sites_are_known_by_the_names_they_say():
    nodes = FakeNodes(
        {
            70: site_header("west"),
            80: site_header("north"),
            90: site_header("south", images={"train": 5, "val": 0, "test": 0}),
        }
    )
    roster = nodes.opened_roster()
    assert roster.nodes == {0: 80, 1: 90, 2: 70}
    assert roster.facts[1]["images"]["train"] == 5
    assert roster.refused == {}
    assert nodes.request == {"do": "open", "run": "r1", "crossward": __version__}
    nodes.opened_roster()
    assert sorted(nodes.opened) == [70, 80, 90], "each once"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"crossward": "0.0.9"}, f"it runs crossward 0.0.9, the coordinator {__version__}: install the same version"),
        ({"protocol": 99}, f"it speaks protocol 99, the coordinator {PROTOCOL}: install the same version"),
        ({"crossward": "0.0.9", "failure": "the coordinator is too new"}, f"it runs crossward 0.0.9, the coordinator "
         f"{__version__}: install the same version"),
        ({"failure": "its disk is full"}, "its disk is full"),
        ({"classes": ["a", "b", "d"]}, "it has the classes a, b, d, where south and west have a, b, c"),
        ({"classes": ["b", "a", "c"]}, "it has the classes b, a, c, where south and west have a, b, c"),
        ({"task": "segmentation"}, "it has the task segmentation, where south and west have classification"),
        ({"channels": 1}, "it has the channels 1, where south and west have 3"),
        ({"size": [28, 32]}, "it has the size 28, 32, where south and west have 28, 28"),
        ({"depth": 16}, "it has the depth 16, where south and west have 8"),
    ],
    ids=["version", "protocol", "version first", "failure", "classes", "order", "task", "channels", "size", "depth"],
)  # fmt: skip
def test_a_site_that_does_not_fit_is_refused_by_name(changes, reason):
    roster = FakeNodes(
        {1: site_header("south"), 2: site_header("north", **changes), 3: site_header("west")}
    ).opened_roster()
    assert roster.nodes == {1: 1, 2: 3}
    assert roster.refused == {"north": reason}


def test_a_name_that_is_not_of_this_federation():
    roster = FakeNodes({1: site_header("east")}).opened_roster()
    assert roster.nodes == {}
    assert roster.refused == {"east": "it is not of this federation, whose sites are north, south, west"}


@pytest.mark.parametrize("lacks", [[], ["classes"], ["task", "size"]])
def test_a_site_that_does_not_say_what_it_has(lacks):
    roster = FakeNodes(
        {1: {key: value for key, value in site_header("north").items() if key not in lacks}}
    ).opened_roster()
    assert roster.refused == ({"north": f"it does not say what its images are: {', '.join(lacks)}"} if lacks else {})


def test_a_node_whose_app_fails_is_named_by_its_number():
    nodes = FakeNodes({4: site_header("north")})
    nodes.headers[4] = {"bad": object()}  # which JSON does not take: the app raises
    assert nodes.opened_roster().refused["node 4"].startswith("CLIENT_APP_RAISED_EXCEPTION: ")


def test_two_nodes_of_one_name():
    nodes = FakeNodes({1: site_header("north"), 2: site_header("north")})
    roster = nodes.opened_roster()
    assert roster.nodes == {0: 1}
    assert roster.refused == {"north": "two nodes say that they are north: stop one of them"}
    nodes.opened_roster()
    assert nodes.opened == [1, 2]
    del nodes.headers[1]
    assert nodes.opened_roster().nodes == {0: 2}
    assert roster.refused == {}


def test_a_restarted_site_with_a_new_node_takes_the_place_of_the_old():
    nodes = FakeNodes({1: site_header("north"), 2: site_header("south")})
    nodes.opened_roster()
    del nodes.headers[1]
    nodes.headers[3] = site_header("north", images={"train": 9, "val": 0, "test": 0})
    roster = nodes.opened_roster()
    assert roster.nodes == {0: 3, 1: 2}
    assert roster.facts[0]["images"]["train"] == 9
    assert roster.refused == {}


def test_it_does_so_as_well_if_flower_still_lists_the_old_node_for_a_while():
    nodes = FakeNodes({1: site_header("north")})
    nodes.opened_roster()
    nodes.headers |= {1: None, 3: site_header("north")}
    assert nodes.opened_roster().nodes == {0: 1}
    del nodes.headers[1]
    assert nodes.opened_roster().nodes == {0: 3}
    assert nodes.opened_roster().refused == {}
    assert nodes.opened == [1, 3, 3]


def test_a_node_that_has_gone_before_it_was_opened_is_nobody():
    nodes = FakeNodes({1: None, 2: site_header("north")}, {3.0: lambda: nodes.headers.pop(1)})
    roster = nodes.opened_roster()
    assert roster.nodes == {0: 2}
    assert roster.refused == {}


def test_the_same_node_come_back_is_not_opened_again():
    """A site takes up a run by itself, from its own folder."""
    nodes = FakeNodes({1: site_header("north")})
    nodes.opened_roster()
    north = nodes.headers.pop(1)
    assert nodes.opened_roster().nodes == {0: 1}
    nodes.headers[1] = north
    assert nodes.opened_roster().nodes == {0: 1}
    assert nodes.opened == [1]


def test_a_refused_site_is_asked_again_when_it_has_been_away():
    nodes = FakeNodes({1: site_header("south"), 2: site_header("north", channels=-1)})
    assert "north" in nodes.opened_roster().refused
    del nodes.headers[2]
    nodes.opened_roster()
    nodes.headers[2] = site_header("north")
    assert nodes.opened_roster().nodes == {0: 2, 1: 1}
    assert nodes.opened_roster().refused == {}


def test_a_site_may_change_what_it_alone_says():
    """Its own classes of before are no reason against it."""
    nodes = FakeNodes({1: site_header("north")})
    nodes.opened_roster()
    del nodes.headers[1]
    nodes.headers[2] = site_header("north", classes=["x", "y"])
    assert nodes.opened_roster().facts[0]["classes"] == ["x", "y"]


def test_waiting_returns_when_all_are_there():
    nodes = FakeNodes({1: site_header("north")})
    nodes.events = {
        4.0: lambda: nodes.headers.update({2: site_header("south")}),
        8.0: lambda: nodes.headers.update({3: site_header("west")}),
    }
    nodes.roster.wait_for_sites(60.0)
    assert nodes.roster.nodes == {0: 1, 1: 2, 2: 3}
    assert nodes.slept == [WAIT_INTERVAL] * 8
    assert nodes.opened == [1, 2, 3]


def test_waiting_returns_when_the_time_is_up_and_never_runs_without_sleeping():
    nodes = FakeNodes({1: site_header("north")})
    nodes.roster.wait_for_sites(20.0)
    assert nodes.roster.nodes == {0: 1}
    assert nodes.clock.now == pytest.approx(20.0, abs=2 * WAIT_INTERVAL)
    assert len(nodes.slept) == 21


def test_waiting_returns_at_once_when_a_site_cannot_take_part():
    nodes = FakeNodes({1: site_header("north"), 2: site_header("south", failure="its disk is full")})
    nodes.roster.wait_for_sites(60.0)
    assert list(nodes.roster.refused) == ["south"]
    assert nodes.clock.now == 0.0


def test_one_site_that_cannot_take_part_does_not_cut_the_waiting_short_if_enough_are_left():
    nodes = FakeNodes({1: site_header("north", failure="its disk is full")})
    nodes.events = {
        4.0: lambda: nodes.headers.update({2: site_header("south")}),
        8.0: lambda: nodes.headers.update({3: site_header("west")}),
    }
    nodes.roster.wait_for_sites(60.0, least=2)
    assert nodes.roster.nodes == {1: 2, 2: 3}
    assert nodes.clock.now == pytest.approx(8.0, abs=2 * WAIT_INTERVAL)


def test_waiting_does_not_wait_for_those_it_has():
    nodes = FakeNodes({n: site_header(name) for n, name in enumerate(NAMES)})
    nodes.roster.wait_for_sites(0.0)
    nodes.roster.wait_for_sites(60.0)
    assert nodes.slept == []
    assert len(nodes.opened) == 3


def test_a_site_whose_policy_refuses_is_named_with_its_reason(tmp_path):
    run_sites = Toy(sizes=((4, 1, 0),) * 2, common=0).run_sites(Scaffold())
    allow_all = Policy(allow=loopback.ALLOW_ALL.allow, min_class_count=0)
    policies = [allow_all, Policy(allow=(DisclosureKind.SAMPLE_COUNT,))]
    services = [loopback.create_service(run_sites, site, tmp_path, policies[site]) for site in run_sites.ids]
    roster = loopback.create_roster(run_sites, loopback.create_grid(services))
    roster.open_new_nodes()
    assert roster.nodes == {0: 0}
    assert roster.facts[0]["counts"] == [3, 1, 0]
    assert roster.facts[0]["images"] == {"train": 4, "val": 1, "test": 0}
    assert "weights" in roster.refused["site-1"]
    assert "'dy'" in roster.refused["site-1"]


def test_a_site_cannot_pass_for_another():
    """It is refused by the name that its key has; the site whose name it took comes in as ever."""
    nodes = FakeNodes({7: site_header("north"), 8: site_header("north"), 9: site_header("west")})
    nodes.roster.registered = {"north": 7, "south": 8, "west": 9}
    nodes.roster.open_new_nodes()
    assert nodes.roster.nodes == {0: 7, 2: 9}
    assert nodes.roster.refused == {"south": "it has the key of south and says that it is north"}
    nodes.headers[8] = site_header("south")
    nodes.roster._opened.clear()
    nodes.roster.open_new_nodes()
    assert nodes.roster.nodes == {0: 7, 1: 8, 2: 9}
    assert nodes.roster.refused == {}


def test_a_key_of_no_site():
    nodes = FakeNodes({7: site_header("north"), 5: site_header("south")})
    nodes.roster.registered = {"north": 7}
    nodes.roster.open_new_nodes()
    assert nodes.roster.nodes == {0: 7}
    assert nodes.roster.refused == {"node 5": "it has no key of a site of this run: it was told nothing"}
    assert nodes.opened == [7]


def test_a_site_that_says_no_name_is_known_by_its_key():
    nodes = FakeNodes({7: {"failure": "out of memory"}})
    nodes.roster.registered = {"north": 7}
    nodes.roster.open_new_nodes()
    assert nodes.roster.refused_sites == {"north": "out of memory"}


def test_a_key_of_a_site_of_another_run():
    nodes = FakeNodes({7: site_header("north"), 5: site_header("east")})
    nodes.roster.registered = {"north": 7, "east": 5}
    nodes.roster.open_new_nodes()
    assert nodes.opened == [7]


# who is right when sites differ -------------------------------------------------------------------------------------
OTHER = ["a", "b", "x"]


def disagreeing(**classes):
    nodes = FakeNodes({n: site_header(name, classes=said) for n, (name, said) in enumerate(classes.items())})
    return nodes, nodes.roster


def test_the_first_to_come_is_not_right_for_that():
    _nodes, roster = disagreeing(north=OTHER, south=FACTS["classes"], west=FACTS["classes"])
    roster.wait_for_sites(0.0)
    assert roster.nodes == {1: 1, 2: 2}
    assert roster.refused == {"north": "it has the classes a, b, x, where south and west have a, b, c"}
    assert roster.known["classes"] == FACTS["classes"]


def test_two_that_differ_wait_for_the_third():
    nodes, roster = disagreeing(north=OTHER, south=FACTS["classes"])
    nodes.events = {5.0: lambda: nodes.headers.update({7: site_header("west")})}
    roster.wait_for_sites(60.0)
    assert nodes.clock.now == pytest.approx(5.0, abs=2 * WAIT_INTERVAL)
    assert list(roster.refused) == ["north"]


def test_two_that_differ_are_both_named_if_nobody_else_comes():
    _nodes, roster = disagreeing(north=OTHER, south=FACTS["classes"])
    roster.wait_for_sites(3.0)
    undecided = "and no more sites say the one than the other: see who is right"
    assert roster.refused == {
        "north": f"it has the classes a, b, x, where south has a, b, c, {undecided}",
        "south": f"it has the classes a, b, c, where north has a, b, x, {undecided}",
    }
    assert roster.nodes == {}


def test_the_configuration_is_right_against_all():
    _nodes, roster = disagreeing(north=OTHER, south=OTHER, west=FACTS["classes"])
    roster.known = {"classes": FACTS["classes"]}
    roster.wait_for_sites(0.0)
    assert roster.nodes == {2: 2}
    reason = "it has the classes a, b, x, where the configuration has a, b, c"
    assert roster.refused == {"north": reason, "south": reason}


def test_a_late_site_must_be_like_those_that_began():
    nodes, roster = disagreeing(north=FACTS["classes"])
    roster.wait_for_sites(0.0)
    nodes.headers |= {8: site_header("south", classes=OTHER), 9: site_header("west", classes=OTHER)}
    roster.open_new_nodes()
    assert roster.nodes == {0: 0}
    reason = "it has the classes a, b, x, where north has a, b, c"
    assert roster.refused == {"south": reason, "west": reason}


@pytest.mark.parametrize(
    "header", [{}, {"site": ["north"]}, {"site": None}, {"failure": {"a": 1}}, {"failure": "\x1b[2J"}]
)
def test_answers_that_are_none(header):
    roster = FakeNodes({4: header}).opened_roster()
    assert roster.nodes == {}
    assert len(roster.refused) == 1
    assert all(text.isprintable() for text in [*roster.refused, *roster.refused.values()])
