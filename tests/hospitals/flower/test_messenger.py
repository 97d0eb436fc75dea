"""Post on a SuperLink that is played by hand, on a clock that moves only when somebody sleeps: every node is reported
once, with its answer or with the reason why there is none, whatever is lost on the way."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random

import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError

from crossward.hospitals.flower.loopback_grid import LoopbackGrid
from crossward.hospitals.flower.messenger import ATTEMPTS, LOOK, POLL, SLACK, Messenger
from crossward.hospitals.flower.records import parcel, records
from crossward.hospitals.messages import SiteMessage
from crossward.testing.loopback_federation import FakeClock

ANSWER, NOTHING, ALIEN = "answer", "nothing", "alien"  # what comes back
GONE = Error(ErrorCode.NODE_UNAVAILABLE, "offline")
CRASHED = Error(ErrorCode.CLIENT_APP_CRASHED, "stopped responding")
RAISED = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "ValueError: 3 < 2")
PROBE = 0.5  # seconds that a node takes for one


@dataclass
class Superlink(LoopbackGrid):
    """Nodes take one message at a time, in order. `plays` says what becomes of a node's questions in turn, and how many
    seconds that takes; later ones are answered after a second, probes after half of one. What gives NOTHING is lost in
    a restart, and keeps a node busy no longer."""

    clock: FakeClock = field(default_factory=FakeClock)
    plays: dict = field(default_factory=dict)  # node -> [(seconds, what)]
    absent: dict = field(default_factory=dict)  # node -> (from, to): not connected
    deaf: Counter = field(default_factory=Counter)  # node -> how many probes are lost there
    takes_messages: bool = True
    order: Random = field(default_factory=lambda: Random(0))
    sent: list = field(default_factory=list)  # (when, node, kind)
    living: list = field(default_factory=list)  # how long each message may
    due: dict = field(default_factory=dict)  # id -> (when, reply)
    free: Counter = field(default_factory=Counter)  # node -> when it is done with what it has

    def get_node_ids(self):
        away = [n for n, (start, end) in self.absent.items() if start <= self.clock.now < end]
        return [node for node in self.plays if node not in away]

    def push_messages(self, messages):
        return [self._taken(message) for message in messages] if self.takes_messages else []

    def _taken(self, message):
        node, kind, id = message.metadata.dst_node_id, message.metadata.message_type, f"m{len(self.sent)}"
        if node not in self.plays:
            return None
        self.sent.append((round(self.clock.now, 1), node, kind))
        self.living.append(message.metadata.ttl)
        message.metadata.__dict__["_message_id"] = id
        seconds, what = self._play(node, kind)
        if what is not NOTHING:
            self.free[node] = max(self.clock.now, self.free[node]) + seconds
            self.due[id] = (self.free[node], self._reply(message, what))
        return id

    def _play(self, node, kind):
        if kind == "query.hello":
            self.deaf[node] -= 1
            return PROBE, NOTHING if self.deaf[node] >= 0 else ANSWER
        return self.plays[node].pop(0) if self.plays[node] else (1.0, ANSWER)

    def _reply(self, message, what):
        if isinstance(what, Error):
            return Message(what, reply_to=message)
        asked = parcel(message.content)
        told = SiteMessage({"node": message.metadata.dst_node_id, **asked.about}, asked.tree)
        content = RecordDict({"about": ConfigRecord()}) if what is ALIEN else records(told)
        return Message(content, reply_to=message)

    def pull_messages(self, message_ids):
        here = [id for id in message_ids if id in self.due and self.due[id][0] <= self.clock.now]
        self.order.shuffle(here)
        return [self.due.pop(id)[1] for id in here]


def superlink(plays, **more):
    return Superlink(ClientApp(), {}, plays=plays, **more)


def posted(at, nodes=None, kind="train", **post):
    """What is reported of every node, and when."""
    clock = at.clock
    asked = {n: SiteMessage({"do": "job", "round": 3, "n": n}, bytes([n])) for n in nodes or at.plays}
    told = Messenger(at, clock=clock, sleep=clock.sleep, **{"rarely": 0.0} | post).exchange(asked, kind)
    found = [(node, answer, round(clock.now, 1)) for node, answer in told]
    assert sorted(node for node, _, _ in found) == sorted(asked), "every node once"
    return {node: (answer, when) for node, answer, when in found}


def answered(node):
    return SiteMessage({"node": node, "do": "job", "round": 3, "n": node}, bytes([node]))


def near(seconds, by=2 * POLL):
    """When something is seen: these Posts look ten times a second."""
    return pytest.approx(seconds, abs=by)


def jobs(at):
    return [(when, node) for when, node, kind in at.sent if kind != "query.hello"]


def test_answers_are_reported_as_they_come():
    at = superlink({1: [(3.0, ANSWER)], 2: [(0.0, ANSWER)], 3: [(2.0, ANSWER)], 4: [(0.0, ANSWER)]})
    found = posted(at)
    assert found == {
        1: (answered(1), near(3.0)),
        2: (answered(2), near(0.0)),
        3: (answered(3), near(2.0)),
        4: (answered(4), near(0.0)),
    }
    assert at.clock.now == near(3.0)
    assert [kind for _, _, kind in at.sent] == ["train"] * 4


def test_it_looks_more_rarely_the_longer_it_takes():
    at, looks = superlink({1: [(100.0, ANSWER)]}), []
    post = Messenger(at, clock=at.clock, sleep=lambda seconds: (looks.append(seconds), at.clock.sleep(seconds)))
    assert [node for node, _ in post.exchange({1: SiteMessage({"do": "job", "round": 3, "n": 1})}, "train")] == [1]
    assert at.clock.now == near(100.0, LOOK)
    assert (looks[0], looks[-1], len(looks) < 200) == (POLL, LOOK, True)
    assert looks == sorted(looks)


def test_a_question_that_breaks_off_on_its_way_is_sent_again(monkeypatch):
    at = superlink({1: []})
    push = at.push_messages
    broken = iter([ObjectPushError("f00", 1, "a session")])

    def push_messages(messages):
        for error in broken:
            raise error
        return push(messages)

    monkeypatch.setattr(at, "push_messages", push_messages)
    assert posted(at) == {1: (answered(1), near(2.0, LOOK))}


def test_nothing_to_send():
    assert posted(superlink({}), nodes=[]) == {}


def test_a_node_that_the_superlink_does_not_know():
    at = superlink({1: []})
    found = posted(at, nodes=[1, 9], patience=20.0)
    assert found[1] == (answered(1), near(1.0))
    assert found[9][0] == "not connected for 20 s"
    assert found[9][1] == near(20.0)


def test_a_node_that_comes_back_within_its_patience_is_asked_again():
    """Even where patience is shorter than the time after which a quiet node is probed."""
    at = superlink({1: [(2.0, GONE), (1.0, ANSWER)]}, absent={1: (0.0, 8.5)})
    assert posted(at, patience=10.0) == {1: (answered(1), near(10.0, LOOK))}
    assert len(jobs(at)) == 2
    assert jobs(at)[1][0] == near(8.5, LOOK)


def test_a_node_that_does_not_come_back():
    at = superlink({1: [(2.0, GONE)], 2: []}, absent={1: (0.0, 999.0)})
    found = posted(at, patience=30.0)
    assert found == {1: ("not connected for 30 s", near(32.1)), 2: (answered(2), near(1.0))}
    assert len(jobs(at)) == 2


def test_no_answer_before_the_deadline():
    at = superlink({1: [(500.0, ANSWER)], 2: [(80.0, GONE)]}, absent={2: (80.0, 999.0)})
    found = posted(at, deadline=100.0)
    assert found[1] == ("no answer within 100 s", near(100.1))
    assert found[2] == ("no answer within 100 s, not connected for 20 s", near(100.1))


def test_messages_live_a_little_longer_than_the_deadline_and_no_more():
    """A question that is sent again must not be taken up by a site when nobody waits for its answer."""
    at = superlink({1: [(40.0, CRASHED), (1.0, ANSWER)]})
    assert posted(at, deadline=100.0, quiet=50.0)[1][0] == answered(1)
    assert at.living == [100.0 + SLACK, near(60.0 + SLACK, 2 * LOOK)]


def test_a_late_reply_is_not_taken_for_an_answer_to_a_later_question():
    at = superlink({1: [(15.0, ANSWER), (4.0, ANSWER)]})
    post = Messenger(at, deadline=10.0, clock=at.clock, sleep=at.clock.sleep)
    assert list(post.exchange({1: SiteMessage({"round": 1})}, "train")) == [(1, "no answer within 10 s")]
    assert list(post.exchange({1: SiteMessage({"round": 2})}, "train")) == [(1, SiteMessage({"node": 1, "round": 2}))]
    assert at.clock.now == near(19.0)


@pytest.mark.parametrize("kind", ["train", "evaluate", "query.open"])
def test_a_question_that_a_restarted_site_has_lost_is_sent_again_once(kind):
    """It answers a probe, which came later. The other node is at work all the time, and answers its probes after."""
    at = superlink({1: [(1.0, NOTHING), (40.0, ANSWER)], 2: [(60.0, ANSWER)]})
    found = posted(at, kind=kind)
    assert found == {1: (answered(1), near(57.0, 2.0)), 2: (answered(2), near(60.0))}
    assert [(node, k) for _, node, k in at.sent if k == kind] == [(1, kind), (2, kind), (1, kind)]
    assert min(when for when, _, k in at.sent if k == "query.hello") == near(15.0)


def test_a_probe_may_be_lost_too():
    at = superlink({1: [(1.0, NOTHING), (1.0, ANSWER)]}, deaf=Counter({1: 1}))
    assert posted(at) == {1: (answered(1), near(48.0, 2.0))}
    assert [kind for _, _, kind in at.sent] == ["train", "query.hello", "query.hello", "train"]


def test_probes_become_rarer():
    """Each is a process that Flower starts at the site when it has done its work."""
    at = superlink({1: [(1000.0, ANSWER)]})
    assert posted(at) == {1: (answered(1), near(1000.0))}
    probes = [when for when, _, kind in at.sent if kind == "query.hello"]
    assert probes == pytest.approx([15, 45, 105, 225, 465, 945], abs=2.0)


def test_an_answer_that_comes_together_with_its_probe_counts():
    for seed in range(8):  # in whatever order they are pulled
        at = superlink({1: [(20.0, ANSWER)]}, order=Random(seed))
        post = Messenger(at, clock=at.clock, sleep=lambda s, at=at: at.clock.sleep(16.0))
        assert list(post.exchange({1: SiteMessage({"n": 1})}, "train")) == [(1, SiteMessage({"node": 1, "n": 1}))]
        assert [kind for _, _, kind in at.sent] == ["train", "query.hello"], seed


def test_a_probe_that_went_before_tells_nothing_of_what_is_sent_again():
    """The first attempt crashes at 30 s, with a probe in the queue; that is answered while the second is at work."""
    at = superlink({1: [(30.0, CRASHED), (20.0, ANSWER)]})
    assert posted(at)[1][0] == answered(1)
    assert len(jobs(at)) == 2


def test_a_client_app_that_raises_is_told_with_its_reason():
    at = superlink({1: [(1.0, RAISED)], 2: [(1.0, Error(99, "of the future"))]})
    found = posted(at)
    assert found[1][0] == "CLIENT_APP_RAISED_EXCEPTION: ValueError: 3 < 2"
    assert found[2][0] == "error 99: of the future"
    assert len(at.sent) == 2


def test_a_client_app_that_always_crashes_is_not_asked_for_ever():
    at = superlink({1: [(3.0, CRASHED)] * 50})
    found = posted(at)
    assert found[1][0] == f"lost {ATTEMPTS} times, at last: CLIENT_APP_CRASHED"
    assert len(jobs(at)) == ATTEMPTS
    assert at.clock.now < 30


def test_a_message_that_the_superlink_refuses_is_told():
    """Such as one that is too large for it: Flower then gives no id at all."""
    at = superlink({1: []}, takes_messages=False)
    assert posted(at)[1][0] == "lost 5 times, at last: the SuperLink does not take it"


def test_a_reply_that_is_not_ours():
    answer, _ = posted(superlink({1: [(1.0, ALIEN)]}))[1]
    assert answer.failure.startswith("a message that is not crossward's")


def test_the_round_is_the_group_that_flower_shows():
    at = superlink({1: []})
    groups = []
    at.__dict__["push_messages"] = lambda messages: groups.extend(m.metadata.group_id for m in messages) or []
    posted(at)
    assert groups == ["3"] * ATTEMPTS


@pytest.mark.parametrize("seed", range(10))
def test_twenty_nodes_of_which_some_fail(seed):
    rng = Random(seed)
    mishaps = (NOTHING, GONE, CRASHED, RAISED, ALIEN, ANSWER)
    plays = {n: [(rng.uniform(0.1, 60.0), rng.choice(mishaps)) for _ in range(rng.randrange(4))] for n in range(18)}
    plays |= {18: [], 19: [(200.0, ANSWER)]}
    absent = {n: (start := rng.uniform(0, 60), start + rng.uniform(0, 90)) for n in range(9)}
    at = superlink({n: list(p) for n, p in plays.items()}, absent=absent, order=rng)
    found = posted(at, nodes=range(21), deadline=300.0, patience=60.0)
    assert at.clock.now <= 300.0 + 2 * POLL
    assert found[18][0] == answered(18)
    assert found[19][0] == answered(19)
    assert found[20][0] == "not connected for 60 s"
    for node in range(18):
        last = next(
            (what for _, what in plays[node] if all(what is not lost for lost in (NOTHING, GONE, CRASHED))), ANSWER
        )
        answer = found[node][0]
        if isinstance(answer, SiteMessage):
            assert last is (ANSWER if answer == answered(node) else ALIEN), node
        elif answer.startswith("CLIENT_APP_RAISED_EXCEPTION: "):
            assert last is RAISED, node
        else:
            assert answer.startswith(("not connected for ", "no answer within ")), node
