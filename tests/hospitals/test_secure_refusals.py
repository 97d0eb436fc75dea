"""What sites and the coordinator of a secure sum refuse, over the transport: each with words, and the others go on."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from crossward.core.run import Plan, run
from crossward.core.tree import decode, encode
from crossward.errors import ConfigError, RunError
from crossward.hospitals.kept_payload import PAYLOAD_KEY, payload_digest
from crossward.hospitals.messages import SiteMessage
from crossward.hospitals.payload_guard import LEFT, LEFT_FILE
from crossward.hospitals.peers import PEERS_FILE, fingerprint
from crossward.hospitals.secure_demand import SecureDemand
from crossward.hospitals.sum_journal import site_journal
from crossward.methods.fedavg import FedAvg
from crossward.methods.fedcb import FedCB
from crossward.privacy.secure_steps import SECURE, STEP_NAMES, SecureSettings, plain_method, secured
from crossward.testing.secure_federation import new_authority, secure_federation
from crossward.testing.short_runs import Records
from crossward.testing.toy import Toy, linear


def named(header, payload):
    """A question with another payload, under its own name: what a hostile coordinator sends."""
    return SiteMessage(header | {PAYLOAD_KEY: payload_digest(payload)}, payload)


@pytest.fixture
def federation():
    run_sites = Toy(sizes=((6, 2, 2),) * 4).run_sites(secured(FedAvg(), SecureSettings(0)), net=linear)
    with secure_federation(run_sites) as sites:
        yield sites


def failures(federation):
    """Who is left out of a round that goes through, and why."""
    records = Records()
    coordinator, engine = federation.coordinator()
    run(coordinator, engine, Plan(1, evaluate_every=0), [records])
    return records.rounds[0].failures


def broken(federation):
    """What a round fails with."""
    coordinator, engine = federation.coordinator()
    with pytest.raises(RunError) as caught:
        run(coordinator, engine, Plan(1, evaluate_every=0))
    return caught.value


def changing_terms(change, node=None, step="advertise"):
    """A coordinator that sends other payloads: to all sites, or to one."""

    def meddle(at, request):
        if request.header.get("step") != STEP_NAMES[step] or node not in (None, at):
            return request
        payload = decode(request.payload)
        change(payload)
        return named(request.header, encode(payload))

    return meddle


def test_a_site_that_has_left_a_run_takes_part_in_no_sum_of_it(federation):
    """It left because of weights that training does not make; what it had trained before is not summed either."""

    def meddle(node, request):
        if node == 1 and request.header.get("step") == STEP_NAMES["advertise"]:
            guard = federation.services[1]._open_runs["rehearsal"].guard
            (guard.run_folder / LEFT_FILE).write_text("{}")
        return request

    federation.meddle = meddle
    assert failures(federation) == {"site-1": LEFT}


# a hostile site -------------------------------------------------------------------------------------------------------
def altering(step, node, change):
    def alter(at, request, reply):
        if request.header.get("step") != STEP_NAMES[step] or at != node:
            return reply
        tree = decode(reply.payload)
        tree[SECURE] = change(tree[SECURE])
        return SiteMessage(reply.header, encode(tree))

    return alter


def test_a_site_that_sends_its_shares_again_in_the_place_of_its_vector(federation):
    sent = []

    def alter(node, request, reply):
        if node == 2 and request.header.get("step") == STEP_NAMES["share"]:
            sent.append(reply.payload)
        if node == 2 and request.header.get("step") == STEP_NAMES["mask"]:
            return SiteMessage(reply.header, sent[0])
        return reply

    federation.alter = alter
    assert failures(federation) == {
        "site-2": "rejected: its message of step 'share' comes too late: 'mask' is expected"
    }


@pytest.mark.parametrize(
    ("step", "change", "words"),
    [
        ("share", lambda tree: tree | {"shares": {}}, "it has not dealt a share to each site"),
        (
            "share",
            lambda tree: tree | {"shares": tree["shares"] | {"1": torch.zeros(3, dtype=torch.uint8)}},
            "a share has 3 bytes, where 92 are expected",
        ),
        (
            "unmask",
            lambda tree: tree | {"seeds": tree["seeds"] | {"1": tree["seeds"]["1"] ^ 1}},
            "its share of the seed of site-0 is not the one it was dealt",
        ),
        ("mask", lambda tree: tree | {"masked": torch.zeros(4, dtype=torch.int64)}, "its masked vector is not one of"),
        ("advertise", lambda tree: tree | {"abandons": {"x": torch.zeros(3)}}, "have no digests"),
        ("confirm", lambda tree: "nothing", "is no tree"),
    ],
)
def test_a_site_that_sends_what_the_protocol_does_not_have(federation, step, change, words):
    federation.alter = altering(step, 2, change)
    [(site, why)] = failures(federation).items()
    assert site == "site-2"
    assert why.startswith("rejected: ")
    assert words in why


def test_a_site_whose_weights_are_laid_out_otherwise(federation):
    def alter(node, request, reply):
        if node == 1 and request.header.get("step") == "train":
            return SiteMessage(reply.header, encode({"layout": '{"model": {"head.weight": ["float32", 5]}}'}))
        return reply

    federation.alter = alter
    assert failures(federation) == {"site-1": "rejected: layout is not that of the network"}


def test_a_site_that_sends_plain_weights(federation):
    def alter(node, request, reply):
        if node == 1 and request.header.get("step") == "train":
            return SiteMessage(reply.header, encode({"layout": "{}", "model": torch.zeros(3)}))
        return reply

    federation.alter = alter
    assert failures(federation) == {"site-1": "rejected: its reply to 'train' is not 'layout' alone"}


# certificates ---------------------------------------------------------------------------------------------------------
def test_a_site_with_the_certificate_of_another_federation(federation, tmp_path):
    stranger = new_authority(tmp_path / "others", "others").identity("site-3")
    federation.change(3, identity=stranger)
    assert failures(federation) == {
        "site-3": "rejected: the certificate of site-3 was not signed by the authority of this federation"
    }


def test_too_few_sites_whose_certificates_hold(federation, tmp_path):
    others = new_authority(tmp_path / "others", "others")
    for site in (2, 3):
        federation.change(site, identity=others.identity(f"site-{site}"))
    with pytest.raises(RunError, match="2 sites can be in a secure sum, 3 are needed"):
        federation.coordinator()


def test_a_coordinator_that_passes_on_a_certificate_of_another_federation(federation, tmp_path):
    """It would be that site for the others: they do not believe it."""
    certificate = new_authority(tmp_path / "mine", "mine").identity("site-3").certificate
    federation.meddle = changing_terms(lambda payload: payload["certificates"].update({"site-3": certificate}))
    error = broken(federation)
    assert "site-0: the certificate of site-3 was not signed by the authority" in str(error)


def test_a_coordinator_that_passes_one_sites_certificate_off_as_anothers(federation):
    def swap(payload):
        payload["certificates"]["site-3"] = payload["certificates"]["site-2"]

    federation.meddle = changing_terms(swap)
    assert "the certificate of site-3 is for site-2" in str(broken(federation))


def test_a_site_accepts_only_the_keys_in_its_list(federation):
    """Whoever has the authority's key can make a certificate for any name: not for a key that people have compared."""
    pinned = {f"site-{n}": fingerprint(federation.hospitals[n].identity.key.public_key()) for n in range(4)}
    federation.change(0, identity=replace(federation.hospitals[0].identity, pinned=pinned))
    assert failures(federation) == {}
    other = pinned | {"site-2": pinned["site-3"]}
    federation.change(1, identity=replace(federation.hospitals[1].identity, pinned=other))
    del pinned["site-3"]
    refused = failures_in_next_round(federation)
    assert f"site-3 is not among those in this site's {PEERS_FILE}" in refused["site-0"]
    assert f"site-2 has another key than in this site's {PEERS_FILE}" in refused["site-1"]


def failures_in_next_round(federation):
    for site in range(4):
        (federation.hospitals[site].folder / "sums.jsonl").unlink()
        (federation.hospitals[site].folder / "sums.head").unlink()
        (federation.hospitals[site].folder / "sums.key").unlink()
    error = broken(federation)
    return dict(line.split(": ", 1) for line in error.details)


# a hostile coordinator ------------------------------------------------------------------------------------------------
def rename(payload, number, name):
    payload["terms"]["members"][number] = name


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda payload: rename(payload, "4", "site-2"), "a site is listed twice"),
        (lambda payload: rename(payload, "4", "moon"), "unknown sites in the sum: moon"),
        (lambda payload: payload["certificates"].pop("site-3"), "site-3 is unknown: there is no certificate of it"),
        (lambda payload: payload["terms"].update(threshold=2), "a threshold of 2 for 4 sites, 3 are needed"),
        (lambda payload: payload["terms"].update(label="round 1"), "of another run or round"),
        (lambda payload: payload.update(terms=3), "is no tree"),
        (
            lambda payload: payload["terms"].update(members={"1": "site-0", "2": "site-1"}, threshold=2),
            "2 sites in the sum, 3 are needed",
        ),
    ],
)
def test_terms_that_no_site_accepts(federation, change, words):
    federation.meddle = changing_terms(change)
    error = broken(federation)
    assert words in error.details[0]
    assert len(error.details) == 4
    assert not any(site_journal(hospital.folder).sums() for hospital in federation.hospitals.values())


def test_a_coordinator_that_shows_different_members_to_different_sites(federation):
    def smaller(payload):
        del payload["terms"]["members"]["4"]

    federation.meddle = changing_terms(smaller, node=0)
    assert failures(federation) == {"site-0": "rejected: its message belongs to another sum"}


def test_a_coordinator_that_shows_different_survivors_to_different_sites(federation):
    federation.meddle = changing_terms(lambda payload: payload["survivors"].pop("4"), node=0, step="confirm")
    refused = failures(federation)
    assert refused == {"site-0": "rejected: its confirmation is not signed by it, or is of other survivors"}


@pytest.mark.parametrize("step", ["share", "mask", "confirm", "unmask"])
def test_a_step_that_is_asked_again_with_another_question(federation, step):
    """The site has answered it: what it was asked first is what it has answered."""
    refused = []

    def alter(node, request, reply):
        if node == 0 and request.header.get("step") == STEP_NAMES[step]:
            federation.restart(0)
            asked = decode(request.payload)
            item = {"share": "keys", "mask": "shares", "confirm": "survivors", "unmask": "confirmations"}[step]
            asked[item].popitem()
            again = federation.services[0].answer(named(request.header, encode(asked)))
            refused.append(again)
        return reply

    federation.alter = alter
    assert failures(federation) == {}
    assert not refused[0].payload
    assert "is next" in refused[0].failure or "is over" in refused[0].failure


def test_the_journal_of_sums_cannot_be_cut(federation):
    assert failures(federation) == {}
    journal = federation.hospitals[0].folder / "sums.jsonl"
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:2]))
    refused = dict(line.split(": ", 1) for line in broken(federation).details)
    assert "not in order" in refused["site-0"]
    assert "to no sum of other sites" in refused["site-1"]


# what a site wants ----------------------------------------------------------------------------------------------------
def test_a_site_that_wants_secure_sums_refuses_a_plain_run(federation):
    federation.change(0, secure=SecureDemand(secure_aggregation="required"))
    federation.run_sites = replace(federation.run_sites, method=plain_method(federation.run_sites.method))
    for site in range(4):
        federation.restart(site)
    _, engine = federation.coordinator()
    assert "this site sends its weights in secure sums only" in engine.roster.refused["site-0"]
    assert set(engine.roster.nodes) == {1, 2, 3}


def test_a_run_that_sums_securely_does_not_go_on_without(federation):
    assert failures(federation) == {}
    federation.run_sites = replace(federation.run_sites, method=plain_method(federation.run_sites.method))
    for site in range(4):
        federation.restart(site)
    _, engine = federation.coordinator()
    assert engine.roster.nodes == {}
    assert "it does not go on without" in engine.roster.refused["site-0"]


def test_a_site_that_wants_more_sites_in_a_sum(federation):
    federation.change(0, secure=SecureDemand(secure_min_sites=5))
    _, engine = federation.coordinator()
    assert "the run has 4 sites, and this one wants 5 in a secure sum" in engine.roster.refused["site-0"]


def test_a_site_without_a_key(federation):
    federation.change(0, identity=None)
    _, engine = federation.coordinator()
    assert "this site has no key of a federation" in engine.roster.refused["site-0"]


def test_no_other_step_of_a_method_is_answered(federation):
    """FedCB has steps whose replies hold plain numbers of a site: with a secure sum, it has not."""
    method = secured(FedCB(tau=1.0), SecureSettings(0))
    assert method.steps == ("train", *STEP_NAMES.values())
    federation.coordinator()
    job = {"do": "job", "run": "rehearsal", "site": "site-0", "round": 0, "seed": 0, "keep": True, "since": ""}
    for step in ("score", "trial", "predict", "observe"):
        reply = federation.services[0].answer(SiteMessage({**job, "step": step, "ask": 0, "hold": ""}))
        assert reply.failure
        assert not reply.payload


def test_hospitals_never_have_simulated_keys():
    with pytest.raises(ConfigError, match="keys of their own"):
        _ = SecureSettings(None).sites


def test_fewer_sites_than_a_sum_needs_are_connected(federation):
    federation.grid.down |= {2, 3}
    with pytest.raises(RunError, match="2 sites can be in a secure sum, 3 are needed"):
        federation.coordinator(patience=0.0)
