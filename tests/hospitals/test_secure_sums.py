"""Secure sums among hospitals on the loopback grid: the same result as in one process, with sites that drop out, are
restarted, or are asked twice; and nothing of a single site reaches the coordinator."""

from __future__ import annotations

import json

import numpy as np
import pytest

from crossward.core.run import Plan, run
from crossward.core.tree import decode
from crossward.engines.local import LocalEngine
from crossward.errors import RunError
from crossward.hospitals import site_sums
from crossward.hospitals.messages import SiteMessage
from crossward.hospitals.site_limits import SiteLimits
from crossward.methods.fedavg import FedAvg
from crossward.methods.scaffold import Scaffold
from crossward.privacy.secure_messages import SecureSumFailed, SecureTerms
from crossward.privacy.secure_steps import SECURE, STEP_NAMES, SecureSettings, flattened, secured
from crossward.testing.engine_wrappers import DroppingEngine
from crossward.testing.loopback_federation import loopback_federation
from crossward.testing.secure_federation import secure_federation
from crossward.testing.short_runs import Records, assert_same
from crossward.testing.toy import Toy, linear

STEPS = tuple(STEP_NAMES.values())


def toys(sites=4, method=None):
    return Toy(sizes=((6, 2, 2),) * sites).run_sites(secured(method or FedAvg(), SecureSettings(0)), net=linear)


def local_state(run_sites, rounds=1, drops=()):
    engine = LocalEngine(run_sites)
    for site, step in drops:
        engine = DroppingEngine(engine, site, 0, step)
    try:
        return run(run_sites, engine, Plan(rounds, evaluate_every=0)).state
    finally:
        engine.close()


def secure_round(federation, rounds=1, records=None, **options):
    coordinator, engine = federation.coordinator(**options)
    return run(coordinator, engine, Plan(rounds, evaluate_every=0), [records] if records else []).state


def losing(step, *nodes):
    """The replies of these sites to a step do not arrive."""

    def alter(node, request, reply):
        if node in nodes and request.header.get("step") == step:
            return SiteMessage({"failure": "its line went dead"})
        return reply

    return alter


@pytest.mark.parametrize("method", [FedAvg(), Scaffold()])
def test_the_result_is_that_of_one_process_to_the_bit(method):
    run_sites = toys(method=method)
    with secure_federation(run_sites) as federation:
        state = secure_round(federation, rounds=2)
    assert_same(state, local_state(run_sites, rounds=2))


@pytest.mark.parametrize("step", STEPS)
def test_a_site_that_drops_out_at_any_step(step):
    run_sites = toys()
    records = Records()
    with secure_federation(run_sites) as federation:
        federation.alter = losing(step, 1)
        state = secure_round(federation, records=records)
    assert records.rounds[0].failures == {"site-1": "its line went dead"}
    assert_same(state, local_state(run_sites, drops=[(1, step)]))


@pytest.mark.e2e
@pytest.mark.parametrize("step", STEPS)
def test_ten_of_thirty_sites_drop_out_at_any_step(step):
    """The sum of the others, or of all if they have sent their weights before; the same to the bit as in one process,
    and within the stated error of the plain mean."""
    run_sites = toys(30)
    lost = range(3, 13)
    with secure_federation(run_sites) as federation:
        federation.alter = losing(step, *lost)
        records = Records()
        state = secure_round(federation, records=records)
    assert records.rounds[0].failures == {f"site-{site}": "its line went dead" for site in lost}
    assert_same(state, local_state(run_sites, drops=[(site, step) for site in lost]))
    in_the_sum = step in ("secure_confirm", "secure_unmask")
    plain = Toy(sizes=((6, 2, 2),) * 30).run_sites(FedAvg(), net=linear)
    expected = local_state(plain, drops=[] if in_the_sum else [(site, "train") for site in lost])
    for name, tensor in state["model"].items():
        assert np.abs((tensor - expected["model"][name]).numpy()).max() < 1e-6, name


def test_eleven_of_thirty_are_too_many_and_the_round_fails_with_their_names():
    with secure_federation(toys(30)) as federation:
        federation.alter = losing("secure_share", *range(11))
        with pytest.raises(SecureSumFailed) as caught:
            secure_round(federation)
    assert "19 of 30 sites are left at step 'share'" in str(caught.value)
    assert caught.value.details == tuple(f"site-{site}: its line went dead" for site in range(11))


def test_below_the_threshold_the_round_fails_with_names_and_can_be_repeated():
    """What sites have sent for the sum that broke off is of no use to anybody: they have left it for good."""
    run_sites = toys()
    with secure_federation(run_sites) as federation:
        for step in ("secure_mask", "secure_confirm"):
            federation.alter = losing(step, 1, 2)
            with pytest.raises(SecureSumFailed) as caught:
                secure_round(federation)
            assert "2 of 4 sites are left" in str(caught.value)
            assert caught.value.details == ("site-1: its line went dead", "site-2: its line went dead")
        federation.alter = losing("", 0)
        state = secure_round(federation)
    assert_same(state, local_state(run_sites))


def test_a_sum_that_broke_off_is_not_repeated_without_those_who_could_complete_it():
    with secure_federation(toys()) as federation:
        federation.alter = losing("secure_confirm", 1, 2)
        with pytest.raises(SecureSumFailed):
            secure_round(federation)
        federation.alter = losing("train", 0, 1)
        with pytest.raises(SecureSumFailed, match="2 sites have trained"):
            secure_round(federation)
        federation.alter = losing("secure_advertise", 1)
        for site in (0, 2, 3):  # three of four suffice: of the first sum three were needed
            federation.restart(site)
        secure_round(federation)


def test_a_round_that_was_summed_is_repeated_with_the_same_sites_alone():
    """A coordinator that died before its checkpoint asks for the round again. With the same sites that gives the same
    sum; with one site less it would give that site's weights."""
    run_sites = toys(5)
    with secure_federation(run_sites) as federation:
        first = secure_round(federation)
        again = secure_round(federation)
        federation.alter = losing("secure_advertise", 4)
        with pytest.raises(RunError) as caught:
            secure_round(federation)
    assert_same(again, first)
    [refused] = {line.partition(": ")[2] for line in caught.value.details if not line.startswith("site-4")}
    assert "are in a secure sum of site-0, site-1, site-2, site-3, site-4: it adds them to no sum of other" in refused


def test_sites_that_restart_at_every_step_and_are_asked_twice_answer_once():
    run_sites = toys()
    with secure_federation(run_sites) as federation:

        def alter(node, request, reply):
            federation.restart(node)
            again = federation.services[node].answer(request)
            if request.header.get("step") in STEPS:
                assert not reply.failure
                assert again.payload == reply.payload
            return again

        federation.alter = alter
        state = secure_round(federation)
    assert_same(state, local_state(run_sites))


def plain_windows(vectors):
    """Pieces of each vector, as the bytes of four numbers."""
    return [vector[at : at + 4].tobytes() for vector in vectors for at in range(0, len(vector) - 4, 4)]


def quantised_windows(vectors, terms):
    """Pieces of each vector as it is before it is masked, as the bytes of two words that follow each other."""
    words = [terms.format.quantise(vector, count) for vector, count in vectors]
    return [vector[at : at + 2].tobytes() for vector in words for at in range(len(vector) - 2)]


def everything(received):
    return b"".join(json.dumps(message.header).encode() + message.payload for _, message in received)


def test_no_byte_of_any_sites_weights_reaches_the_coordinator(monkeypatch):
    """Weights are looked for as they are and in the form that is masked; the same search finds them in a plain run."""
    vectors = []
    terms = []

    def masked(part, down, vector, count, plain=site_sums.masked_message):
        vectors.append((vector, count))
        terms.append(part.terms)
        return plain(part, down, vector, count)

    monkeypatch.setattr(site_sums, "masked_message", masked)
    with secure_federation(toys()) as federation:
        federation.alter = losing("secure_confirm", 2)
        secure_round(federation)
        sent = everything(federation.received)
        headers = json.dumps([message.header for _, message in federation.received])
    plain = plain_windows([vector for vector, _ in vectors])
    quantised = quantised_windows(vectors, terms[0])
    assert len(vectors) == 4
    assert len(plain) > 100
    assert len(quantised) > 300
    assert not any(piece in sent for piece in plain)
    assert not any(piece in sent for piece in quantised)
    assert '"images"' not in headers
    assert '"counts"' not in headers

    unmasked = []
    with loopback_federation(Toy(sizes=((6, 2, 2),) * 4).run_sites(FedAvg(), net=linear)) as (coordinator, engine, _):
        engine.inspect = lambda job, reply: unmasked.append(flattened({"model": reply["model"]}).tobytes()) or ()
        run(coordinator, engine, Plan(1, evaluate_every=0))
    assert all(piece in b"".join(unmasked) for piece in plain)


def test_the_log_says_that_weights_left_under_masks():
    with secure_federation(toys()) as federation:
        secure_round(federation)
        lines = [json.loads(line) for line in federation.services[0].log.file.read_text().splitlines()]
    assert [line["step"] for line in lines] == ["open", "train", *STEPS]
    items = {line["step"]: {item["item"]: item.get("dtype") for item in line["items"]} for line in lines}
    assert set(items["train"]) == {"layout", "losses"}
    assert items["secure_mask"]["secure/masked"] == "int64"
    assert all("losses" in items[step] for step in STEPS)  # as the coordinator counts them, for the receipt


def test_the_secure_mean_is_the_plain_mean_within_the_stated_error():
    run_sites = toys()
    with secure_federation(run_sites) as federation:
        state = secure_round(federation)
    plain = local_state(Toy(sizes=((6, 2, 2),) * 4).run_sites(FedAvg(), net=linear))
    rounding = 2e-7  # of float32, in which both are
    for name, tensor in state["model"].items():
        assert np.abs((tensor - plain["model"][name]).numpy()).max() < 4e-7 + rounding, name


def test_what_a_site_keeps_of_a_sum_is_gone_when_it_is_over():
    with secure_federation(toys()) as federation:
        secure_round(federation)
        for site, service in federation.services.items():
            folder = service.hospital.folder / "memory" / "rehearsal"
            assert not (folder / "trained.safetensors").exists()
            state = decode((folder / "sum.safetensors").read_bytes())
            assert set(state) == {"question", "reply"}, site
            versions = b"".join(file.read_bytes() for file in folder.glob("0*"))
            assert b"_secure" not in versions


def test_terms_are_fresh_for_every_sum():
    seen = []
    with secure_federation(toys()) as federation:
        federation.meddle = lambda node, request: seen.append(request) or request
        secure_round(federation)
        secure_round(federation)
    payloads = [decode(r.payload)["terms"] for r in seen if r.header.get("step") == STEP_NAMES["advertise"]]
    digests = [SecureTerms.from_tree(tree).digest for tree in payloads]
    assert len(set(digests)) == 2
    assert SECURE not in payloads[0]


def test_the_noise_of_a_site_is_in_what_it_adds():
    """What protects weights that leave in plain protects those that are summed."""
    run_sites = toys()
    with secure_federation(run_sites) as federation:
        for site in range(4):
            federation.change(site, limits=SiteLimits(update_noise=2.0, rounds_a_day=1, steps_a_run=1))
        state = secure_round(federation)
    plain = local_state(run_sites)
    assert not state["model"]["head.weight"].allclose(plain["model"]["head.weight"], atol=1e-4)
