"""Roster: who takes part, under which node, and who does not, with the reason; at the start and at any time later."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from flwr.app import Message
from flwr.clientapp import ClientApp

from crossward import __version__
from crossward.core.disclosure import DisclosureKind
from crossward.hospitals.flower.loopback_grid import LoopbackGrid
from crossward.hospitals.flower.messenger import Messenger
from crossward.hospitals.flower.records import parcel, records
from crossward.hospitals.flower.roster import WAIT, Roster
from crossward.hospitals.messages import PROTOCOL, SiteMessage
from crossward.hospitals.policy import Policy
from crossward.methods.scaffold import Scaffold
from crossward.testing import loopback_federation as loopback
from crossward.testing.loopback_federation import FakeClock
from crossward.testing.toy import Toy

NAMES = ("north", "south", "west")
FACTS = {"task": "classification", "classes": ["a", "b", "c"], "channels": 3, "size": [28, 28]}


def said(name, **other):
    return {"site": name, "crossward": __version__, "protocol": PROTOCOL, **FACTS, **other}


@dataclass
class Federation:
    """Nodes that say of themselves what `at` holds; a node of which that is None has gone, though it is listed. Nodes
    come and go at the times of `happens`."""

    at: dict
    happens: dict = field(default_factory=dict)  # when -> what
    clock: FakeClock = field(default_factory=FakeClock)
    opened: list = field(default_factory=list)  # nodes, in turn
    slept: list = field(default_factory=list)

    def __post_init__(self):
        app = ClientApp()

        @app.query("open")
        def answer(message, context):
            self.opened.append(context.node_id)
            self.asked = parcel(message.content).about
            return Message(records(SiteMessage(self.at[context.node_id])), reply_to=message)

        self.grid = LoopbackGrid(app, {})
        self.grid.get_node_ids = lambda: list(self.at)
        self.grid.push_messages = self.push
        post = Messenger(self.grid, patience=5.0, clock=self.clock, sleep=self.sleep)
        self.roster = Roster(NAMES, post, {"run": "r1", "crossward": __version__})

    def push(self, messages):
        self.grid.nodes = {node: {} for node, said in self.at.items() if said is not None}
        return LoopbackGrid.push_messages(self.grid, messages)

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.clock.sleep(seconds)
        for when in [when for when in self.happens if when <= self.clock.now]:
            self.happens.pop(when)()

    def greeted(self):
        self.roster.open_new_nodes()
        return self.roster


def test_sites_are_known_by_the_names_they_say():
    federation = Federation({70: said("west"), 80: said("north"), 90: said("south", images={"train": 5})})
    roster = federation.greeted()
    assert roster.nodes == {0: 80, 1: 90, 2: 70}
    assert roster.facts[1]["images"] == {"train": 5}
    assert roster.refused == {}
    assert federation.asked == {"do": "open", "run": "r1", "crossward": __version__}
    federation.greeted()
    assert sorted(federation.opened) == [70, 80, 90], "each once"


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"crossward": "0.0.9"}, f"it runs crossward 0.0.9, the coordinator {__version__}: install the same version"),
        ({"protocol": 99}, f"it speaks protocol 99, the coordinator {PROTOCOL}: install the same version"),
        ({"crossward": "0.0.9", "failure": "the coordinator is too new"}, f"it runs crossward 0.0.9, the coordinator "
         f"{__version__}: install the same version"),
        ({"failure": "its disk is full"}, "its disk is full"),
        ({"classes": ["a", "b", "d"]}, "it has the classes a, b, d, where south has a, b, c"),
        ({"classes": ["b", "a", "c"]}, "it has the classes b, a, c, where south has a, b, c"),
        ({"task": "segmentation"}, "it has the task segmentation, where south has classification"),
        ({"channels": 1}, "it has the channels 1, where south has 3"),
        ({"size": [28, 32]}, "it has the size 28, 32, where south has 28, 28"),
    ],
    ids=["version", "protocol", "version first", "failure", "classes", "order", "task", "channels", "size"],
)  # fmt: skip
def test_a_site_that_does_not_fit_is_refused_by_name(other, reason):
    roster = Federation({1: said("south"), 2: said("north", **other), 3: said("west")}).greeted()
    assert roster.nodes == {1: 1, 2: 3}
    assert roster.refused == {"north": reason}


def test_a_name_that_is_not_of_this_federation():
    roster = Federation({1: said("east")}).greeted()
    assert roster.nodes == {}
    assert roster.refused == {"east": "it is not of this federation, whose sites are north, south, west"}


@pytest.mark.parametrize("lacks", [[], ["classes"], ["task", "size"]])
def test_a_site_that_does_not_say_what_it_has(lacks):
    roster = Federation({1: {key: value for key, value in said("north").items() if key not in lacks}}).greeted()
    assert roster.refused == ({"north": f"it does not say what its images are: {', '.join(lacks)}"} if lacks else {})


def test_a_node_whose_app_fails_is_told_by_its_number():
    federation = Federation({4: said("north")})
    federation.at[4] = {"bad": object()}  # which JSON does not take: the app raises
    assert federation.greeted().refused["node 4"].startswith("CLIENT_APP_RAISED_EXCEPTION: ")


def test_two_nodes_of_one_name():
    federation = Federation({1: said("north"), 2: said("north")})
    roster = federation.greeted()
    assert roster.nodes == {0: 1}
    assert roster.refused == {"north": "two nodes say that they are north: stop one of them"}
    federation.greeted()
    assert federation.opened == [1, 2]
    del federation.at[1]
    assert federation.greeted().nodes == {0: 2}
    assert roster.refused == {}


def test_a_restarted_site_with_a_new_node_takes_the_place_of_the_old():
    federation = Federation({1: said("north"), 2: said("south")})
    federation.greeted()
    del federation.at[1]
    federation.at[3] = said("north", images={"train": 9})
    roster = federation.greeted()
    assert roster.nodes == {0: 3, 1: 2}
    assert roster.facts[0]["images"] == {"train": 9}
    assert roster.refused == {}


def test_it_does_so_as_well_if_flower_still_lists_the_old_node_for_a_while():
    federation = Federation({1: said("north")})
    federation.greeted()
    federation.at |= {1: None, 3: said("north")}
    assert federation.greeted().nodes == {0: 1}
    del federation.at[1]
    assert federation.greeted().nodes == {0: 3}
    assert federation.greeted().refused == {}
    assert federation.opened == [1, 3, 3]


def test_a_node_that_has_gone_before_it_was_met_is_nobody():
    federation = Federation({1: None, 2: said("north")}, {3.0: lambda: federation.at.pop(1)})
    roster = federation.greeted()
    assert roster.nodes == {0: 2}
    assert roster.refused == {}


def test_the_same_node_come_back_is_not_opened_again():
    """A site takes up a run by itself, from its own folder."""
    federation = Federation({1: said("north")})
    federation.greeted()
    north = federation.at.pop(1)
    assert federation.greeted().nodes == {0: 1}
    federation.at[1] = north
    assert federation.greeted().nodes == {0: 1}
    assert federation.opened == [1]


def test_a_refused_site_is_asked_again_when_it_has_been_away():
    federation = Federation({1: said("south"), 2: said("north", channels=1)})
    assert "north" in federation.greeted().refused
    del federation.at[2]
    federation.greeted()
    federation.at[2] = said("north")
    assert federation.greeted().nodes == {0: 2, 1: 1}
    assert federation.greeted().refused == {}


def test_a_site_may_change_what_it_alone_says():
    """Its own classes of before are no reason against it."""
    federation = Federation({1: said("north")})
    federation.greeted()
    del federation.at[1]
    federation.at[2] = said("north", classes=["x", "y"])
    assert federation.greeted().facts[0]["classes"] == ["x", "y"]


def test_gather_returns_when_all_are_there():
    federation = Federation({1: said("north")})
    federation.happens = {
        4.0: lambda: federation.at.update({2: said("south")}),
        8.0: lambda: federation.at.update({3: said("west")}),
    }
    federation.roster.gather(60.0)
    assert federation.roster.nodes == {0: 1, 1: 2, 2: 3}
    assert federation.slept == [WAIT] * 8
    assert federation.opened == [1, 2, 3]


def test_gather_returns_when_the_time_is_up_and_never_runs_without_sleeping():
    federation = Federation({1: said("north")})
    federation.roster.gather(20.0)
    assert federation.roster.nodes == {0: 1}
    assert federation.clock.now == pytest.approx(20.0, abs=2 * WAIT)
    assert len(federation.slept) == 21


def test_gather_returns_at_once_when_a_site_cannot_take_part():
    federation = Federation({1: said("north"), 2: said("south", channels=1)})
    federation.roster.gather(60.0)
    assert list(federation.roster.refused) == ["south"]
    assert federation.clock.now == 0.0


def test_gather_does_not_wait_for_those_it_has():
    federation = Federation({n: said(name) for n, name in enumerate(NAMES)})
    federation.roster.gather(0.0)
    federation.roster.gather(60.0)
    assert federation.slept == []
    assert len(federation.opened) == 3


def test_a_site_whose_policy_refuses_is_named_with_its_reason(tmp_path):
    run_sites = Toy(sizes=((4, 1, 0),) * 2, common=0).run_sites(Scaffold())
    policies = [loopback.ALLOW_ALL, Policy(allow=(DisclosureKind.SAMPLE_COUNT,))]
    services = [loopback.service(run_sites, site, tmp_path, policies[site]) for site in run_sites.ids]
    roster = loopback.roster(run_sites, loopback.grid(services))
    roster.open_new_nodes()
    assert roster.nodes == {0: 0}
    assert roster.facts[0]["counts"] == [3, 1, 0]
    assert roster.facts[0]["images"] == {"train": 4, "val": 1, "test": 0}
    assert "weights" in roster.refused["site-1"]
    assert "'dy'" in roster.refused["site-1"]


def test_a_site_cannot_pass_for_another():
    """It is refused by the name that its key has; the site whose name it took comes in as ever."""
    at = Federation({7: said("north"), 8: said("north"), 9: said("west")})
    at.roster.keys = {"north": 7, "south": 8, "west": 9}
    at.roster.open_new_nodes()
    assert at.roster.nodes == {0: 7, 2: 9}
    assert at.roster.refused == {"south": "it has the key of south and says that it is north"}
    at.at[8] = said("south")
    at.roster._met.clear()
    at.roster.open_new_nodes()
    assert at.roster.nodes == {0: 7, 1: 8, 2: 9}
    assert at.roster.refused == {}


def test_a_key_of_no_site():
    at = Federation({7: said("north"), 5: said("south")})
    at.roster.keys = {"north": 7}
    at.roster.open_new_nodes()
    assert at.roster.nodes == {0: 7}
    assert at.roster.refused == {"node 5": "it has the key of node 5 and says that it is south"}


def test_a_site_that_says_no_name_is_known_by_its_key():
    at = Federation({7: {"failure": "out of memory"}})
    at.roster.keys = {"north": 7}
    at.roster.open_new_nodes()
    assert at.roster.unfit_sites == {"north": "out of memory"}
