"""Messenger with a scripted SuperLink, on a clock that moves only when somebody sleeps: every node is reported once,
with its reply or with the reason why there is none, whatever is lost on the way."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from random import Random

import httpx
import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError

from crossward.hospitals.flower.loopback_grid import LoopbackGrid
from crossward.hospitals.flower.messenger import (
    MAX_ATTEMPTS,
    MAX_POLL_INTERVAL,
    MIN_POLL_INTERVAL,
    RECONNECT_INTERVAL,
    SENT_TOGETHER,
    TTL_SLACK,
    Messenger,
)
from crossward.hospitals.flower.records import SMALL_PAYLOAD, from_records, to_records
from crossward.hospitals.messages import SiteMessage
from crossward.testing.loopback_federation import FakeClock

ANSWER, NOTHING, ALIEN = "answer", "nothing", "alien"  # what comes back
GONE = Error(ErrorCode.NODE_UNAVAILABLE, "offline")
CRASHED = Error(ErrorCode.CLIENT_APP_CRASHED, "stopped responding")
RAISED = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "ValueError: 3 < 2")
PROBE_SECONDS = 0.5  # that a node takes for a probe


@dataclass
class ScriptedSuperlink(LoopbackGrid):
    """Nodes handle one message at a time, in order. `scripts` says for each node what becomes of its messages in turn,
    and how many seconds that takes; further messages are answered after a second, probes after half a second. A message
    that gives NOTHING is lost in a restart, and no longer keeps the node busy."""

    clock: FakeClock = field(default_factory=FakeClock)
    scripts: dict = field(default_factory=dict)  # node -> [(seconds, what)]
    absent: dict = field(default_factory=dict)  # node -> (from, to): not connected
    lost_probes: Counter = field(default_factory=Counter)  # node -> how many probes are lost there
    takes_messages: bool = True
    order: Random = field(default_factory=lambda: Random(0))
    sent: list = field(default_factory=list)  # (time, node, message type)
    ttls: list = field(default_factory=list)  # of each message
    due: dict = field(default_factory=dict)  # id -> (time, reply)
    free: Counter = field(default_factory=Counter)  # node -> when it has handled its messages

    def get_node_ids(self):
        away = [n for n, (start, end) in self.absent.items() if start <= self.clock.now < end]
        return [node for node in self.scripts if node not in away]

    def push_messages(self, messages):
        return [self._handle(message) for message in messages] if self.takes_messages else []

    def _handle(self, message):
        node = message.metadata.dst_node_id
        message_type = message.metadata.message_type
        id = f"m{len(self.sent)}"
        if node not in self.scripts:
            return None
        self.sent.append((round(self.clock.now, 1), node, message_type))
        self.ttls.append(message.metadata.ttl)
        message.metadata.__dict__["_message_id"] = id
        seconds, what = self._next(node, message_type)
        if what is not NOTHING:
            self.free[node] = max(self.clock.now, self.free[node]) + seconds
            self.due[id] = (self.free[node], self._reply(message, what))
        return id

    def _next(self, node, message_type):
        if message_type == "query.hello":
            self.lost_probes[node] -= 1
            return PROBE_SECONDS, NOTHING if self.lost_probes[node] >= 0 else ANSWER
        return self.scripts[node].pop(0) if self.scripts[node] else (1.0, ANSWER)

    def _reply(self, message, what):
        if isinstance(what, Error):
            return Message(what, reply_to=message)
        if what is ALIEN:
            return Message(RecordDict({"about": ConfigRecord()}), reply_to=message)
        request = from_records(message.content)
        reply = SiteMessage({"node": message.metadata.dst_node_id, **request.header}, request.payload)
        return Message(to_records(reply), reply_to=message)

    def pull_messages(self, message_ids):
        ready = [id for id in message_ids if id in self.due and self.due[id][0] <= self.clock.now]
        self.order.shuffle(ready)
        return [self.due.pop(id)[1] for id in ready]


def scripted(scripts, **options):
    return ScriptedSuperlink(ClientApp(), {}, scripts=scripts, **options)


def exchanged(superlink, nodes=None, message_type="train", **options):
    """What is reported of every node, and when."""
    clock = superlink.clock
    messages = {n: SiteMessage({"do": "job", "round": 3, "n": n}, bytes([n])) for n in nodes or superlink.scripts}
    messenger = Messenger(superlink, clock=clock, sleep=clock.sleep, **{"poll_share": 0.0} | options)
    reports = [(node, reply, round(clock.now, 1)) for node, reply in messenger.exchange(messages, message_type)]
    assert sorted(node for node, _, _ in reports) == sorted(messages), "every node once"
    return {node: (reply, time) for node, reply, time in reports}


def reply_of(node):
    return SiteMessage({"node": node, "do": "job", "round": 3, "n": node}, bytes([node]))


def near(seconds, by=2 * MIN_POLL_INTERVAL):
    """When something is noticed: these messengers poll ten times a second."""
    return pytest.approx(seconds, abs=by)


def sent_jobs(superlink):
    return [(time, node) for time, node, message_type in superlink.sent if message_type != "query.hello"]


def test_answers_are_reported_as_they_come():
    superlink = scripted({1: [(3.0, ANSWER)], 2: [(0.0, ANSWER)], 3: [(2.0, ANSWER)], 4: [(0.0, ANSWER)]})
    reports = exchanged(superlink)
    assert reports == {
        1: (reply_of(1), near(3.0)),
        2: (reply_of(2), near(0.0)),
        3: (reply_of(3), near(2.0)),
        4: (reply_of(4), near(0.0)),
    }
    assert superlink.clock.now == near(3.0)
    assert [message_type for _, _, message_type in superlink.sent] == ["train"] * 4


def test_it_polls_more_rarely_the_longer_it_takes():
    superlink = scripted({1: [(100.0, ANSWER)]})
    intervals = []

    def sleep(seconds):
        intervals.append(seconds)
        superlink.clock.sleep(seconds)

    messenger = Messenger(superlink, clock=superlink.clock, sleep=sleep)
    reports = list(messenger.exchange({1: SiteMessage({"do": "job", "round": 3, "n": 1})}, "train"))
    assert [node for node, _ in reports] == [1]
    assert superlink.clock.now == near(100.0, MAX_POLL_INTERVAL)
    assert intervals[0] == MIN_POLL_INTERVAL
    assert intervals[-1] == MAX_POLL_INTERVAL
    assert len(intervals) < 200
    assert intervals == sorted(intervals)


def test_a_message_that_breaks_off_on_its_way_is_sent_again(monkeypatch):
    superlink = scripted({1: []})
    push = superlink.push_messages
    broken = iter([ObjectPushError("f00", 1, "a session")])

    def push_messages(messages):
        for error in broken:
            raise error
        return push(messages)

    monkeypatch.setattr(superlink, "push_messages", push_messages)
    assert exchanged(superlink) == {1: (reply_of(1), near(2.0, RECONNECT_INTERVAL))}


def test_sites_are_sent_the_same_payload_together_and_it_is_cut_up_once(monkeypatch):
    """Flower copies and hashes each array that it sends, for every site anew if each has an array of its own."""
    superlink = scripted({node: [] for node in range(1, 2 * SENT_TOGETHER)})
    push = superlink.push_messages
    batches = []

    def push_messages(messages):
        batches.append([message.content.array_records["arrays"]["tree"] for message in messages])
        return push(messages)

    monkeypatch.setattr(superlink, "push_messages", push_messages)
    payload = bytes(SMALL_PAYLOAD + 1)
    messages = {node: SiteMessage({"do": "job", "n": node}, payload) for node in superlink.scripts}
    messages[2] = SiteMessage({"do": "job", "n": 2}, payload + b"another")
    messenger = Messenger(superlink, clock=superlink.clock, sleep=superlink.clock.sleep)
    replies = dict(messenger.exchange(messages, "train"))
    assert {node: reply.payload for node, reply in replies.items()} == {n: m.payload for n, m in messages.items()}
    assert [len(batch) for batch in batches] == [SENT_TOGETHER, SENT_TOGETHER - 1]
    assert len({id(array) for array in batches[0]}) == 2


def test_messages_that_break_off_together_are_all_sent_again(monkeypatch):
    superlink = scripted({1: [], 2: []})
    push = superlink.push_messages
    broken = iter([ObjectPushError("f00", 1, "a session")])

    def push_messages(messages):
        for error in broken:
            raise error
        return push(messages)

    monkeypatch.setattr(superlink, "push_messages", push_messages)
    back = near(2.0, RECONNECT_INTERVAL)
    assert exchanged(superlink) == {1: (reply_of(1), back), 2: (reply_of(2), back)}


def test_nothing_to_send():
    assert exchanged(scripted({}), nodes=[]) == {}


def test_a_node_that_the_superlink_does_not_know():
    superlink = scripted({1: []})
    reports = exchanged(superlink, nodes=[1, 9], patience=20.0)
    assert reports[1] == (reply_of(1), near(1.0))
    assert reports[9][0] == "not connected for 20 s"
    assert reports[9][1] == near(20.0)


def test_a_node_that_comes_back_within_its_patience_is_asked_again():
    """Even where patience is shorter than the time after which a quiet node is probed."""
    superlink = scripted({1: [(2.0, GONE), (1.0, ANSWER)]}, absent={1: (0.0, 8.5)})
    assert exchanged(superlink, patience=10.0) == {1: (reply_of(1), near(10.0, RECONNECT_INTERVAL))}
    assert len(sent_jobs(superlink)) == 2
    assert sent_jobs(superlink)[1][0] == near(8.5, RECONNECT_INTERVAL)


def test_a_node_that_does_not_come_back():
    superlink = scripted({1: [(2.0, GONE)], 2: []}, absent={1: (0.0, 999.0)})
    reports = exchanged(superlink, patience=30.0)
    assert reports == {1: ("not connected for 30 s", near(32.1)), 2: (reply_of(2), near(1.0))}
    assert len(sent_jobs(superlink)) == 2


def test_no_answer_before_the_deadline():
    superlink = scripted({1: [(500.0, ANSWER)], 2: [(80.0, GONE)]}, absent={2: (80.0, 999.0)})
    reports = exchanged(superlink, deadline=100.0)
    assert reports[1] == ("no answer within 100 s", near(100.1))
    assert reports[2] == ("no answer within 100 s, not connected for 20 s", near(100.1))


def test_messages_live_a_little_longer_than_the_deadline_and_no_more():
    """A question that is sent again must not be taken up by a site when nobody waits for its answer."""
    superlink = scripted({1: [(40.0, CRASHED), (1.0, ANSWER)]})
    assert exchanged(superlink, deadline=100.0, probe_after=50.0)[1][0] == reply_of(1)
    assert superlink.ttls == [100.0 + TTL_SLACK, near(60.0 + TTL_SLACK, 2 * RECONNECT_INTERVAL)]


def test_a_late_reply_is_not_taken_for_the_reply_to_a_later_message():
    superlink = scripted({1: [(15.0, ANSWER), (4.0, ANSWER)]})
    messenger = Messenger(superlink, deadline=10.0, clock=superlink.clock, sleep=superlink.clock.sleep)
    assert list(messenger.exchange({1: SiteMessage({"round": 1})}, "train")) == [(1, "no answer within 10 s")]
    assert list(messenger.exchange({1: SiteMessage({"round": 2})}, "train")) == [
        (1, SiteMessage({"node": 1, "round": 2}))
    ]
    assert superlink.clock.now == near(19.0)


@pytest.mark.parametrize("message_type", ["train", "evaluate", "query.open"])
def test_a_message_that_a_restarted_site_has_lost_is_sent_again_once(message_type):
    """It answers a probe, which came later. The other node is at work all the time, and answers its probes after."""
    superlink = scripted({1: [(1.0, NOTHING), (40.0, ANSWER)], 2: [(60.0, ANSWER)]})
    reports = exchanged(superlink, message_type=message_type)
    assert reports == {1: (reply_of(1), near(57.0, 2.0)), 2: (reply_of(2), near(60.0))}
    assert [(node, k) for _, node, k in superlink.sent if k == message_type] == [
        (1, message_type),
        (2, message_type),
        (1, message_type),
    ]
    assert min(time for time, _, k in superlink.sent if k == "query.hello") == near(15.0)


def test_a_probe_may_be_lost_too():
    superlink = scripted({1: [(1.0, NOTHING), (1.0, ANSWER)]}, lost_probes=Counter({1: 1}))
    assert exchanged(superlink) == {1: (reply_of(1), near(48.0, 2.0))}
    assert [message_type for _, _, message_type in superlink.sent] == ["train", "query.hello", "query.hello", "train"]


def test_probes_become_rarer():
    """Each is a process that Flower starts at the site when it has done its work."""
    superlink = scripted({1: [(1000.0, ANSWER)]})
    assert exchanged(superlink) == {1: (reply_of(1), near(1000.0))}
    probes = [time for time, _, message_type in superlink.sent if message_type == "query.hello"]
    assert probes == pytest.approx([15, 45, 105, 225, 465, 945], abs=2.0)


def test_an_answer_that_comes_together_with_its_probe_counts():
    for seed in range(8):  # in whatever order they are pulled
        superlink = scripted({1: [(20.0, ANSWER)]}, order=Random(seed))
        sleep_long = partial(superlink.clock.sleep, 16.0)
        messenger = Messenger(superlink, clock=superlink.clock, sleep=lambda _, sleep=sleep_long: sleep())
        assert list(messenger.exchange({1: SiteMessage({"n": 1})}, "train")) == [(1, SiteMessage({"node": 1, "n": 1}))]
        assert [message_type for _, _, message_type in superlink.sent] == ["train", "query.hello"], seed


def test_a_probe_that_was_sent_before_says_nothing_of_a_message_that_is_sent_again():
    """The first attempt crashes at 30 s, with a probe in the queue; that is answered while the second is at work."""
    superlink = scripted({1: [(30.0, CRASHED), (20.0, ANSWER)]})
    assert exchanged(superlink)[1][0] == reply_of(1)
    assert len(sent_jobs(superlink)) == 2


def test_a_client_app_that_raises_is_reported_with_its_reason():
    superlink = scripted({1: [(1.0, RAISED)], 2: [(1.0, Error(99, "of the future"))]})
    reports = exchanged(superlink)
    assert reports[1][0] == "CLIENT_APP_RAISED_EXCEPTION: ValueError: 3 < 2"
    assert reports[2][0] == "error 99: of the future"
    assert len(superlink.sent) == 2


def test_a_client_app_that_always_crashes_is_not_asked_for_ever():
    superlink = scripted({1: [(3.0, CRASHED)] * 50})
    reports = exchanged(superlink)
    assert reports[1][0] == f"lost {MAX_ATTEMPTS} times, at last: CLIENT_APP_CRASHED"
    assert len(sent_jobs(superlink)) == MAX_ATTEMPTS
    assert superlink.clock.now < 30


def test_a_message_that_the_superlink_refuses():
    """Such as one that is too large for it: Flower then gives no id at all."""
    superlink = scripted({1: []}, takes_messages=False)
    assert exchanged(superlink)[1][0] == "lost 5 times, at last: the SuperLink does not take it"


def test_a_reply_that_is_not_ours():
    answer, _ = exchanged(scripted({1: [(1.0, ALIEN)]}))[1]
    assert answer.failure.startswith("a message that is not crossward's")


def test_the_round_is_the_group_that_flower_shows():
    superlink = scripted({1: []})
    groups = []
    superlink.__dict__["push_messages"] = lambda messages: groups.extend(m.metadata.group_id for m in messages) or []
    exchanged(superlink)
    assert groups == ["3"] * MAX_ATTEMPTS


@pytest.mark.parametrize("seed", range(10))
def test_twenty_nodes_of_which_some_fail(seed):
    rng = Random(seed)
    mishaps = (NOTHING, GONE, CRASHED, RAISED, ALIEN, ANSWER)
    scripts = {n: [(rng.uniform(0.1, 60.0), rng.choice(mishaps)) for _ in range(rng.randrange(4))] for n in range(18)}
    scripts |= {18: [], 19: [(200.0, ANSWER)]}
    absent = {n: (start := rng.uniform(0, 60), start + rng.uniform(0, 90)) for n in range(9)}
    superlink = scripted({n: list(p) for n, p in scripts.items()}, absent=absent, order=rng)
    reports = exchanged(superlink, nodes=range(21), deadline=300.0, patience=60.0)
    assert superlink.clock.now <= 300.0 + 2 * MIN_POLL_INTERVAL
    assert reports[18][0] == reply_of(18)
    assert reports[19][0] == reply_of(19)
    assert reports[20][0] == "not connected for 60 s"
    for node in range(18):
        last = next(
            (what for _, what in scripts[node] if all(what is not lost for lost in (NOTHING, GONE, CRASHED))), ANSWER
        )
        answer = reports[node][0]
        if isinstance(answer, SiteMessage):
            assert last is (ANSWER if answer == reply_of(node) else ALIEN), node
        elif answer.startswith("CLIENT_APP_RAISED_EXCEPTION: "):
            assert last is RAISED, node
        else:
            assert answer.startswith(("not connected for ", "no answer within ")), node


@dataclass
class PoisonedSuperlink(ScriptedSuperlink):
    """Replies of some nodes cannot be unpacked: whoever pulls one along with others gets none of them, and they are
    gone."""

    poisoned: set = field(default_factory=set)  # nodes
    error: Exception = field(default_factory=lambda: ValueError("\x1b[2J"))
    requests: dict = field(default_factory=dict)  # id -> message

    def _handle(self, message):
        id = super()._handle(message)
        self.requests[id] = message
        return id

    def pull_messages(self, message_ids):
        ready = [id for id in message_ids if id in self.due and self.due[id][0] <= self.clock.now]
        bad = [id for id in ready if self.requests[id].metadata.dst_node_id in self.poisoned]
        if not [id for id in bad if not self.due[id][1].has_error()]:
            return super().pull_messages(message_ids)
        for id in ready:
            gone = Error(ErrorCode.MESSAGE_UNAVAILABLE, "gone")
            self.due[id] = (self.clock.now, Message(gone, reply_to=self.requests[id]))
        raise self.error


def test_a_reply_that_flower_cannot_unpack_is_its_senders_failure():
    superlink = PoisonedSuperlink(ClientApp(), {}, scripts={1: [], 2: [], 3: []}, poisoned={2})
    reports = exchanged(superlink)
    assert {node: reply for node, (reply, _) in reports.items()} == {
        1: reply_of(1),
        2: "rejected: its reply cannot be unpacked (ValueError)",
        3: reply_of(3),
    }


@pytest.mark.parametrize("error", [httpx.ConnectError("refused"), ConnectionResetError()], ids=["http", "socket"])
def test_a_superlink_that_is_down_is_no_sites_failure(error):
    superlink = PoisonedSuperlink(ClientApp(), {}, scripts={1: [], 2: []}, poisoned={2}, error=error)
    with pytest.raises(type(error)):
        exchanged(superlink)


def test_the_reason_of_an_error_fits_into_a_line():
    forged = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "a\n2026 came north\x1b[2J" + "x" * 10**5)
    reason, _ = exchanged(scripted({1: [(0.0, forged)]}))[1]
    assert reason.startswith("CLIENT_APP_RAISED_EXCEPTION: a | 2026 came north\\x1b[2Jxxx")
    assert reason.isprintable()
    assert len(reason) <= 2000
