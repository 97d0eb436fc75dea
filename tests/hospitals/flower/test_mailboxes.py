"""Questions that wait at the SuperLink: a site's for messages, a run's for replies."""

from __future__ import annotations

import asyncio
import threading
import time
from types import SimpleNamespace as Box

import pytest
from flwr.proto.fleet_pb2 import PullMessagesRequest
from flwr.proto.node_pb2 import Node

from crossward.hospitals.flower.fleet_guard import FleetGuard
from crossward.hospitals.flower.mailboxes import MAX_WAITING_RUNS, REPLIES_AT_ONCE, Mailboxes
from crossward.hospitals.flower.public_door import QUESTION_ROUTE, PublicDoor
from crossward.hospitals.flower.supernode_pace import FLOWERS_IDLE_SLEEP, MIN_IDLE_SLEEP, SuperNodePace

NODE = 7
LONG = 60.0  # seconds that no test waits


@pytest.fixture
def mailboxes():
    """Mailboxes of which the node has read everything."""
    boxes = Mailboxes()
    boxes.read(NODE, 0, 0)
    return boxes


async def waits(mailboxes, node=NODE, seconds=0.05):
    """Whether a question of the node would wait."""
    return not await finished(mailboxes.wait_for_message(node, LONG), seconds)


async def finished(coroutine, seconds=0.05):
    """Whether it ends within these seconds."""
    try:
        await asyncio.wait_for(coroutine, seconds)
    except TimeoutError:
        return False
    return True


def test_a_node_of_which_nothing_is_known_does_not_wait():
    assert not asyncio.run(waits(Mailboxes()))


def test_a_question_waits_until_all_contents_have_come(mailboxes):
    async def scenario():
        question = asyncio.create_task(mailboxes.wait_for_message(NODE, LONG))
        await asyncio.sleep(0)
        mailboxes.announce("m", NODE, {"a", "b"})
        mailboxes.add_contents("a")
        mailboxes.add_contents("of another")
        await asyncio.sleep(0.05)
        assert not question.done()
        await asyncio.to_thread(mailboxes.add_contents, "b")  # as Flower's handlers do, from another thread
        await asyncio.wait_for(question, LONG)

    asyncio.run(scenario())


def test_a_message_that_came_between_two_questions_is_not_missed(mailboxes):
    mailboxes.announce("m", NODE, ())
    assert not asyncio.run(waits(mailboxes))
    mailboxes.read(NODE, mailboxes.came(NODE), 0)
    assert asyncio.run(waits(mailboxes))


def test_a_message_that_nobody_announced_here_hides_none_that_was(mailboxes):
    """A SuperLink that was started anew hands out messages from before: counted, they would stand for newer ones, and
    every message would lie there until the next one comes."""
    mailboxes.announce("m", NODE, ())
    mailboxes.read(NODE, mailboxes.came(NODE), 1)  # it was given an older one
    assert not asyncio.run(waits(mailboxes))


def test_a_message_that_came_while_a_question_was_answered_is_not_missed(mailboxes):
    came = mailboxes.came(NODE)
    mailboxes.announce("m", NODE, ())
    mailboxes.read(NODE, came, 0)  # the answer was made before the message
    assert not asyncio.run(waits(mailboxes))


def test_a_message_that_is_gone_makes_no_site_ask_without_end(mailboxes):
    """Its run was stopped: an answer without messages says that there is none left."""
    mailboxes.announce("m", NODE, ())
    mailboxes.read(NODE, mailboxes.came(NODE), 0)
    assert asyncio.run(waits(mailboxes))


def test_a_message_to_one_wakes_no_other(mailboxes):
    mailboxes.read(8, 0, 0)
    mailboxes.announce("m", 8, ())
    assert asyncio.run(waits(mailboxes))
    assert not asyncio.run(waits(mailboxes, 8))


def test_nobody_waits_longer_than_the_time(mailboxes):
    assert asyncio.run(finished(mailboxes.wait_for_message(NODE, 0.01), LONG))
    assert mailboxes._sleepers == {NODE: set()}


def test_a_superlink_that_ends_answers_everybody(mailboxes):
    async def scenario():
        question = asyncio.create_task(mailboxes.wait_for_message(NODE, LONG))
        await asyncio.sleep(0)
        mailboxes.close()
        await asyncio.wait_for(question, LONG)
        assert not await waits(mailboxes)

    asyncio.run(scenario())
    mailboxes.wait_for_replies(["m"], LONG)  # returns at once


# runs -----------------------------------------------------------------------------------------------------------------
def test_a_run_waits_for_a_reply_to_one_of_its_questions(mailboxes):
    threading.Timer(0.05, mailboxes.add_reply, ["of another run"]).start()
    threading.Timer(0.1, mailboxes.add_reply, ["m"]).start()
    assert mailboxes.wait_for_replies(["m", "n"], LONG) == ["m"]
    assert [*mailboxes._replies] == ["of another run"]


def test_a_run_is_given_a_few_replies_at_a_time(mailboxes):
    questions = [str(number) for number in range(2 * REPLIES_AT_ONCE + 1)]
    for question in questions:
        mailboxes.add_reply(question)
    given = [mailboxes.wait_for_replies(questions, 0.01) for _ in range(4)]
    assert [len(each) for each in given] == [REPLIES_AT_ONCE, REPLIES_AT_ONCE, 1, 0]
    assert [question for each in given for question in each] == questions


def test_a_run_whose_reply_is_there_does_not_wait(mailboxes):
    mailboxes.add_reply("m")
    assert mailboxes.wait_for_replies(["m"], LONG) == ["m"]
    began = time.monotonic()
    mailboxes.wait_for_replies(["m"], 0.01)  # it was handed over
    assert time.monotonic() - began >= 0.01


def test_runs_without_number_do_not_take_all_threads(mailboxes):
    threads = [
        threading.Thread(target=mailboxes.wait_for_replies, args=(["m"], LONG), daemon=True)
        for _ in range(MAX_WAITING_RUNS)
    ]
    for thread in threads:
        thread.start()
    while mailboxes._turns._value:
        time.sleep(0.01)
    mailboxes.wait_for_replies(["n"], LONG)  # returns at once
    mailboxes.close()
    for thread in threads:
        thread.join(LONG)


def test_the_guard_tells_of_messages_and_of_replies():
    guard = FleetGuard()
    guard.mailboxes.read(NODE, 0, 0)
    tree = Box(object_id="m", children=[Box(object_id="a", children=[])])
    sent = Box(messages_list=[Box(metadata=Box(dst_node_id=NODE))], message_object_trees=[tree])
    response = Box(message_ids=["m"], objects_to_push=["m", "a", "of another"])
    assert guard.announced(lambda request, state: response)(sent, None) is response
    store = guard.stored(lambda request, state: Box(stored=True))
    store(Box(object_id="m"), None)
    assert guard.mailboxes.came(NODE) == 0
    store(Box(object_id="a"), None)
    assert guard.mailboxes.came(NODE) == 1


# the public door ------------------------------------------------------------------------------------------------------
QUESTION = PullMessagesRequest(node=Node(node_id=NODE)).SerializeToString()


class Asked:
    """A door, and an application behind it that answers every question with a status."""

    def __init__(self, status=200):
        self.status = status
        self.answers = 0
        self.door = PublicDoor(self.answer, None)
        self.door.mailboxes.read(NODE, 0, 0)
        self.dropped = []
        self.gone = asyncio.Event()

    async def answer(self, scope, receive, send):
        self.answers += 1
        await send({"type": "http.response.start", "status": self.status, "headers": []})

    async def ask(self, site, body=QUESTION):
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive():
            if messages:
                return messages.pop()
            await self.gone.wait()
            return {"type": "http.disconnect"}

        async def send(message):
            pass

        scope = {"type": "http", "method": "POST", "path": QUESTION_ROUTE, "headers": []}
        await self.door.handle(site, lambda: self.dropped.append(site), scope, receive, send)


def test_a_question_waits_at_the_door_once_flower_has_answered_the_site_before():
    async def scenario():
        asked = Asked()
        await asked.ask("north")
        question = asyncio.create_task(asked.ask("north"))
        await asyncio.sleep(0.05)
        assert asked.answers == 1
        asked.door.mailboxes.announce("m", NODE, ())
        await asyncio.wait_for(question, LONG)
        assert asked.answers == 2

    asyncio.run(scenario())


def test_nobody_learns_when_another_gets_a_message():
    """A site that names the node of another is refused by Flower, at once and every time."""

    async def scenario():
        asked = Asked(status=401)
        for _ in range(2):
            await asyncio.wait_for(asked.ask("south"), LONG)
        assert asked.answers == 2
        assert not asked.door.nodes

    asyncio.run(scenario())


def test_a_question_that_cannot_be_read_is_flowers_to_refuse():
    async def scenario():
        asked = Asked(status=400)
        await asyncio.wait_for(asked.ask("north", b"\xff" * 9), LONG)
        assert asked.answers == 1

    asyncio.run(scenario())


def test_a_site_that_goes_away_while_it_waits_is_given_no_message():
    async def scenario():
        asked = Asked()
        await asked.ask("north")
        question = asyncio.create_task(asked.ask("north"))
        await asyncio.sleep(0.05)
        asked.gone.set()
        await asyncio.wait_for(question, LONG)
        assert asked.answers == 1
        assert asked.dropped == ["north"]
        assert not asked.door.requests["north"]

    asyncio.run(scenario())


# the pace of a SuperNode ----------------------------------------------------------------------------------------------
def test_a_supernode_asks_again_at_once_after_it_has_waited_and_more_rarely_after_quick_answers():
    now = [100.0]
    slept = []

    def sleep(seconds):
        slept.append(seconds)
        now[0] += seconds

    pace = SuperNodePace(lambda: now[0], sleep)
    pace.sleep(0.5)
    assert slept == [0.5]
    slept.clear()
    now[0] += 20.0  # the coordinator let the question wait
    pace.sleep(FLOWERS_IDLE_SLEEP)
    assert slept == []
    for _ in range(7):
        now[0] += 0.01
        pace.sleep(FLOWERS_IDLE_SLEEP)
    assert slept[:3] == [MIN_IDLE_SLEEP, 2 * MIN_IDLE_SLEEP, 4 * MIN_IDLE_SLEEP]
    assert slept[-1] == FLOWERS_IDLE_SLEEP
    now[0] += 20.0
    pace.sleep(FLOWERS_IDLE_SLEEP)
    now[0] += 0.01
    pace.sleep(FLOWERS_IDLE_SLEEP)
    assert slept[-1] == MIN_IDLE_SLEEP


def test_a_supernode_asks_at_once_whether_there_is_another_message():
    now = [100.0]
    slept = []
    pace = SuperNodePace(lambda: now[0], slept.append)
    for _ in range(3):  # messages that follow each other quickly
        now[0] += 0.1
        pace.worked()
        pace.sleep(FLOWERS_IDLE_SLEEP)  # there is no other
    assert MIN_IDLE_SLEEP not in slept
    pace.sleep(FLOWERS_IDLE_SLEEP)
    assert slept[-1] == MIN_IDLE_SLEEP
