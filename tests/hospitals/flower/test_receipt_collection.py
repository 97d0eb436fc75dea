"""Runs across hospitals end with receipts: each site signs what left it, the coordinator keeps those that are right."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from flwr.app import Message

from crossward.core.disclosure import DisclosureKind
from crossward.core.run import Observer
from crossward.errors import RunError
from crossward.hospitals.disclosure_log import LOG_FILE, DisclosureLog
from crossward.hospitals.flower.coordinator import coordinate_run
from crossward.hospitals.flower.records import from_records, to_records
from crossward.hospitals.messages import SiteMessage
from crossward.hospitals.policy import Policy
from crossward.hospitals.receipt_checks import Verdict, checks_in_run, site_checks
from crossward.privacy import accounting
from crossward.privacy.ledger import Budget
from crossward.privacy.receipt import digest_of, read_receipt
from crossward.runs.receipt_files import receipt_file, stored_receipts
from crossward.runs.received import received_by_site
from crossward.runs.run_directory import RunDir
from crossward.testing.signed_federation import SITES, SignedFederation, receipt_events


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    return SignedFederation(tmp_path_factory.mktemp("federation") / "blood")


@pytest.fixture(scope="module")
def finished(federation, tiny):
    return federation.run(tiny(method={"name": "fedavg"}), "finished")


@pytest.fixture
def coarse_epsilon(monkeypatch):
    """Epsilon from wider bins, which is a little larger and takes a tenth of the time."""
    pytest.importorskip("dp_accounting")
    monkeypatch.setattr(accounting, "FINE", accounting.COARSE)


def verdicts(checks):
    return {check.subject: check.verdict for check in checks}


def test_every_site_signs_what_left_it(federation, finished):
    assert receipt_events(finished).keys() == {*SITES}
    for site in SITES:
        receipt = read_receipt(receipt_file(finished, site))
        found = verdicts(checks_in_run(receipt, RunDir(finished)))
        assert found == dict.fromkeys(("signature", "certificate", "run", "configuration", "bytes"), Verdict.RIGHT)
        folder = federation.kit.site(site)
        assert verdicts(site_checks(receipt.statement, folder)) == {"log": Verdict.RIGHT, "ledger": Verdict.RIGHT}
        assert read_receipt(folder / "receipts" / f"{receipt.statement.run}.json") == receipt


def test_a_receipt_says_what_the_log_and_the_coordinator_say(federation, finished):
    statement = read_receipt(receipt_file(finished, SITES[0])).statement
    log = DisclosureLog(federation.kit.site(SITES[0]) / LOG_FILE)
    lines = [line for line in log.entries() if line["run"] == statement.run and line["step"] != "receipt"]
    assert statement.replies == len(lines)
    assert statement.bytes == sum(item["bytes"] for line in lines for item in line["items"])
    kinds = {(item.step, item.item): item.kind for item in statement.items}
    assert kinds["train", "model"] == "weights"
    assert kinds["train", "n"] == "sample-count"
    assert kinds["judge", "metrics"] == "metrics"
    assert kinds["open", "facts"] == "description"
    received = received_by_site(RunDir(finished))[SITES[0]]
    sent = {(item.step, item.item): (item.replies, item.bytes) for item in statement.items if item.step != "open"}
    assert sent == {key: (count.replies, count.bytes) for key, count in received.items.items()}
    traffic = [line for line in RunDir(finished).lines("traffic.jsonl") if line["direction"] == "up"]
    models = [read_receipt(receipt_file(finished, site)).statement for site in SITES]
    total = sum(item.bytes for one in models for item in one.items if (item.step, item.item) == ("train", "model"))
    assert total == sum(line["bytes"] for line in traffic if line["item"] == "model")
    assert statement.config == digest_of(RunDir(finished).about["config"])
    assert statement.privacy is None
    assert not statement.secure_aggregation
    assert statement.rules[0].policy["allow"][0] == "weights"


def test_a_run_that_fails_has_receipts_of_what_left_until_then(federation, tiny):
    class Breaks(Observer):
        def on_round(self, record):
            raise RunError("the disk is on fire")

    config = tiny(method={"name": "fedavg"})
    folder = federation.create(config, "failed")
    with pytest.raises(RunError, match="on fire"):
        coordinate_run(folder, federation.grid(config), [Breaks()], kit=federation.kit.coordinator)
    for site in SITES:
        receipt = read_receipt(receipt_file(folder, site))
        assert {item.replies for item in receipt.statement.items if item.step == "train"} == {1}
        assert Verdict.WRONG not in verdicts(checks_in_run(receipt, RunDir(folder))).values()


def test_a_site_that_left_early_is_asked_in_the_next_run(federation, tiny):
    config = tiny(method={"name": "fedavg"})
    grid = federation.grid(config)

    class Leaves(Observer):
        def on_round(self, record):
            grid.down.add(2)

    folder = federation.create(config, "left-early", least=2)
    coordinate_run(folder, grid, [Leaves()], kit=federation.kit.coordinator)
    events = receipt_events(folder)
    assert events[SITES[2]][0] == "no receipt"
    assert [*stored_receipts(folder)] == [*SITES[:2]]
    federation.run(config, "next")
    late = read_receipt(receipt_file(folder, SITES[2]))
    assert {item.replies for item in late.statement.items if item.step == "train"} == {1}
    assert receipt_events(folder)[SITES[2]][0] == "receipt"


@pytest.mark.usefixtures("coarse_epsilon")
def test_noise_is_stated_with_epsilon_of_the_run_and_of_all_runs(federation, tiny):
    federation.budgets = dict.fromkeys(SITES, Budget(unit="image", epsilon=200.0, delta=1e-3))
    config = tiny(privacy={"unit": "image", "noise": 2.0, "delta": 1e-3}, run={"rounds": 1})
    try:
        folders = [federation.run(config, name) for name in ("private-1", "private-2")]
    finally:
        federation.budgets = {}
    first, second = (read_receipt(receipt_file(folder, SITES[0])).statement for folder in folders)
    for statement in (first, second):
        assert (statement.privacy.unit, statement.privacy.noise, statement.privacy.clip) == ("image", 2.0, 1.0)
        assert statement.rules[-1].budget["epsilon"] == 200.0
        assert verdicts(site_checks(statement, federation.kit.site(SITES[0])))["ledger"] == Verdict.RIGHT
    assert first.privacy.epsilon == pytest.approx(second.privacy.epsilon)
    assert first.privacy.cumulative_epsilon == pytest.approx(first.privacy.epsilon)
    assert second.privacy.cumulative_epsilon > second.privacy.epsilon
    raised = replace(second, privacy=replace(second.privacy, epsilon=2 * second.privacy.epsilon))
    assert verdicts(site_checks(raised, federation.kit.site(SITES[0])))["ledger"] == Verdict.WRONG


@pytest.mark.usefixtures("coarse_epsilon")
def test_a_receipt_holds_no_count_that_the_policy_hides(federation, tiny):
    hiding = Policy(allow=(DisclosureKind.WEIGHTS, DisclosureKind.BUFFERS), min_class_count=0)
    federation.policies = dict.fromkeys(SITES, hiding)
    config = tiny(
        method={"name": "feddyn"}, privacy={"unit": "image", "epsilon": 8.0, "delta": 1e-3}, run={"rounds": 1}
    )
    try:
        folder = federation.run(config, "hidden")
    finally:
        federation.policies = {}
    privacy = read_receipt(receipt_file(folder, SITES[1])).statement.privacy
    assert (privacy.noise, privacy.epsilon, privacy.cumulative_epsilon) == (None, None, None)
    assert privacy.bound == 8.0
    assert "hides how many" in privacy.withheld


def test_rules_that_change_within_a_run_are_all_stated(federation, tiny):
    config = tiny(method={"name": "fedavg"})
    folder = federation.create(config, "changed")
    services = [federation.service(config, name) for name in SITES]
    grid = federation.grid(config)
    federation.policies[SITES[0]] = Policy(min_class_count=3)
    restarted = federation.service(config, SITES[0])
    federation.policies = {}

    class Restarts(Observer):
        def on_round(self, record):
            services[0] = restarted

    from crossward.hospitals.flower.client_app import create_client_app

    grid.app = create_client_app(lambda request, context: services[context.node_id].answer(request))
    coordinate_run(folder, grid, [Restarts()], kit=federation.kit.coordinator)
    rules = read_receipt(receipt_file(folder, SITES[0])).statement.rules
    assert [one.policy["min_class_count"] for one in rules] == [0, 3]
    assert len(read_receipt(receipt_file(folder, SITES[1])).statement.rules) == 1


def test_secure_sums_are_stated_with_what_left_under_masks(federation, tiny):
    sections = {"privacy": {"secure_aggregation": True}, "robust": {"rule": "none"}, "run": {"rounds": 1}}
    folder = federation.run(tiny(**sections), "masked")
    receipt = read_receipt(receipt_file(folder, SITES[0]))
    assert receipt.statement.secure_aggregation
    masked = {item.step for item in receipt.statement.items if item.masked}
    assert len(masked) == 5
    assert not any(item.item == "model" for item in receipt.statement.items)
    assert verdicts(checks_in_run(receipt, RunDir(folder)))["bytes"] == Verdict.RIGHT


def answering(grid, change):
    """The grid, with the first site's answers to questions for a receipt changed."""

    def tamper(message, reply):
        request = from_records(message.content)
        if request.header.get("do") != "receipt" or message.metadata.dst_node_id != 0:
            return reply
        answer = from_records(reply.content)
        document = change(json.loads(json.dumps(answer.header["receipt"])), request)
        return Message(to_records(SiteMessage(answer.header | {"receipt": document})), reply_to=message)

    grid.tamper = tamper
    return grid


def test_forged_and_malformed_receipts_are_refused_by_name(federation, finished, tiny):
    earlier = json.loads(receipt_file(finished, SITES[0]).read_text())
    other = json.loads(receipt_file(finished, SITES[1]).read_text())

    def fewer_bytes(document, request):
        item = document["statement"]["items"][0]
        document["statement"]["bytes"] -= item["bytes"]
        item["bytes"] = 0
        return document

    forgeries = {
        "changed": (fewer_bytes, "signature"),
        "another-run": (lambda document, request: earlier, "another question"),
        "another-site": (lambda document, request: other, SITES[1]),
        "unsigned": (lambda document, request: document | {"signature": "", "certificate": ""}, "nobody has signed"),
        "nonsense": (lambda document, request: ["x"], "no JSON object"),
        "empty": (lambda document, request: document | {"statement": {"receipt": 1}}, "lacks"),
    }
    config = tiny(method={"name": "fedavg"}, run={"rounds": 1}, evaluate={"every": 0})
    grid = federation.grid(config)
    for name, (change, why) in forgeries.items():
        folder = federation.create(config, f"forged-{name}")
        coordinate_run(folder, answering(grid, change), kit=federation.kit.coordinator)
        assert RunDir(folder).about["status"] == "finished"
        event, reason = receipt_events(folder)[SITES[0]]
        assert event == "receipt refused", name
        assert why in reason, name
        assert [*stored_receipts(folder)] == [*SITES[1:]], name


def test_a_site_without_a_key_signs_nothing(federation, tiny):
    federation.without_key = {SITES[1]}
    try:
        folder = federation.run(tiny(run={"rounds": 1}), "keyless")
    finally:
        federation.without_key = set()
    assert receipt_events(folder)[SITES[1]][0] == "receipt refused"
    assert "nobody has signed" in receipt_events(folder)[SITES[1]][1]
    assert [*stored_receipts(folder)] == [SITES[0], SITES[2]]
