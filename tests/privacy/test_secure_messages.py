"""Hostile messages in a secure sum: each is refused in the name of its sender, and a sum is right or fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crossward.core.tree import Tree
from crossward.privacy.secure_format import SumFormat
from crossward.privacy.secure_identity import known_sites, simulated_identities, simulated_identity
from crossward.privacy.secure_keys import PublicKeys, SecretKeys
from crossward.privacy.secure_messages import (
    ADVERTISE,
    CONFIRM,
    MASK,
    SHARE,
    STEPS,
    UNMASK,
    MessageRefused,
    SecureSumFailed,
    SecureTerms,
    as_tensor,
    message,
)
from crossward.privacy.secure_server import SecureServer
from crossward.privacy.secure_site import SecureSite
from crossward.privacy.secure_sum import SiteInput, answer_step

NAMES = ("a", "b", "c", "d", "e")
LENGTH = 6
FORMAT = SumFormat(LENGTH, len(NAMES), 4.0, 100)
TERMS = SecureTerms("run 1, round 1", NAMES, 4, FORMAT)
IDENTITIES = simulated_identities(NAMES, 0)
KNOWN = known_sites(IDENTITIES.values())
INPUTS = {name: SiteInput(np.full(LENGTH, float(i)) / 2, i + 1) for i, name in enumerate(NAMES)}


@dataclass
class Exchange:
    """A sum that can be stopped at any step."""

    terms: SecureTerms = TERMS
    server: SecureServer = field(default_factory=lambda: SecureServer(TERMS, KNOWN))
    sites: dict[str, SecureSite] = field(default_factory=dict)
    payloads: dict[str, Tree] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.payloads = self.server.start()

    def reply(self, name: str) -> Tree:
        """A site's honest reply to the current step."""
        if self.server.step == ADVERTISE:
            self.sites[name] = SecureSite.begin(IDENTITIES[name], KNOWN, self.payloads[name])
            return self.sites[name].advertise()
        return answer_step(self.sites[name], self.server.step, self.payloads[name], INPUTS[name])

    def play(self, *silent: str) -> None:
        """One step, in which all but the silent sites answer."""
        for name in self.payloads:
            if name not in silent:
                self.server.receive(name, self.reply(name))
        self.payloads = self.server.close_step()

    def until(self, step: str, *silent: str) -> Exchange:
        while self.server.step != step:
            self.play(*(silent if self.server.step == MASK else ()))
        return self

    def finish(self, *silent: str) -> None:
        while self.payloads:
            self.play(*silent)
        check(self.server)


def check(server: SecureServer) -> None:
    result = server.result()
    chosen = [INPUTS[name] for name in result.sites]
    plain = np.average([i.vector for i in chosen], axis=0, weights=[i.weight for i in chosen])
    assert np.abs(result.mean - plain).max() <= result.error


def refused(exchange: Exchange, sender: str, tree: object, words: str) -> None:
    """The server refuses the message, and the sum goes on as if it had never come."""
    with pytest.raises(MessageRefused, match=words) as caught:
        exchange.server.receive(sender, tree)
    assert caught.value.sender == sender
    assert exchange.server.refused[sender] == caught.value.why


@pytest.mark.parametrize("step", STEPS)
def test_a_repeated_message_is_refused(step: str):
    exchange = Exchange().until(step)
    reply = exchange.reply("a")
    exchange.server.receive("a", reply)

    refused(exchange, "a", reply, "has sent its message of step")
    for name in NAMES[1:]:
        exchange.server.receive(name, exchange.reply(name))
    exchange.payloads = exchange.server.close_step()
    exchange.finish()


@pytest.mark.parametrize("step", STEPS)
def test_a_message_of_a_stranger_is_refused(step: str):
    exchange = Exchange().until(step)

    refused(exchange, "mallory", exchange.reply("a"), "not among the sites")


@pytest.mark.parametrize("step", STEPS[1:])
def test_a_late_message_is_refused(step: str):
    exchange = Exchange()
    first = {}
    for name in NAMES:
        first[name] = exchange.reply(name)
        exchange.server.receive(name, first[name])
    exchange.payloads = exchange.server.close_step()
    exchange.until(step)

    refused(exchange, "a", first["a"], "comes too late")
    exchange.finish()


def test_who_left_a_step_cannot_come_back():
    exchange = Exchange().until(CONFIRM, "a")

    refused(exchange, "a", message(TERMS, CONFIRM, signature=as_tensor(b"x")), "has left before step 'confirm'")
    exchange.finish()


def test_a_message_after_the_end_is_refused():
    exchange = Exchange()
    exchange.finish()

    refused(exchange, "a", {}, "the sum is over")


def test_a_message_of_another_sum_is_refused():
    exchange = Exchange()
    other = SecureTerms("run 1, round 2", NAMES, 4, FORMAT)
    site = SecureSite.begin(IDENTITIES["a"], KNOWN, other.tree())

    refused(exchange, "a", site.advertise(), "belongs to another sum")


def test_keys_that_another_site_has_signed_are_refused():
    exchange = Exchange()
    impostor = SecureSite(simulated_identity("a", 99), KNOWN, None, TERMS, SecretKeys.generate())

    refused(exchange, "a", impostor.advertise(), "not signed by it")


def test_a_signed_key_of_low_order_is_refused():
    public = PublicKeys(bytes(32), b"\x09" + bytes(31), bytes(32))
    signature = IDENTITIES["a"].sign(public.statement(TERMS, 1))
    items = {"cipher_key": public.cipher_key, "mask_key": public.mask_key, "commitment": public.commitment}
    tree = message(
        TERMS, ADVERTISE, **{k: as_tensor(v) for k, v in items.items()}, signature=as_tensor(signature), abandons={}
    )

    refused(Exchange(), "a", tree, "no public keys of X25519")


def changed(reply: Tree, item: str, number: str, change: Callable[[torch.Tensor], object]) -> Tree:
    return reply | {item: reply[item] | {number: change(reply[item][number])}}


def flipped(data: torch.Tensor) -> torch.Tensor:
    wrong = data.clone()
    wrong[3] ^= 1
    return wrong


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (flipped, "its share of the seed of b is not the one it was dealt"),
        (lambda data: data[:-1], "its share of the seed of b has 31 bytes"),
        (lambda data: data.to(torch.int64), "its share of the seed of b is no row of bytes"),
        (lambda data: 7, "its share of the seed of b is no row of bytes"),
    ],
)
def test_a_malformed_share_is_refused_and_the_others_suffice(change: Callable[[torch.Tensor], object], words: str):
    exchange = Exchange().until(UNMASK)

    refused(exchange, "a", changed(exchange.reply("a"), "seeds", "2", change), words)
    for name in NAMES[1:]:
        exchange.server.receive(name, exchange.reply(name))
    exchange.server.close_step()
    check(exchange.server)


def test_a_share_of_a_key_of_a_survivor_is_refused():
    exchange = Exchange().until(UNMASK, "e")
    reply = exchange.reply("a")

    refused(exchange, "a", reply | {"keys": reply["keys"] | {"2": reply["seeds"]["2"]}}, "about b, which has no place")


def test_a_site_gives_one_kind_of_share_of_each_site():
    exchange = Exchange().until(UNMASK, "e")
    reply = exchange.reply("a")

    assert set(reply["seeds"]) == {"1", "2", "3", "4"}
    assert set(reply["keys"]) == {"5"}
    with pytest.raises(MessageRefused, match="the sum is over"):
        exchange.sites["a"].unmask(exchange.payloads["a"])


def test_a_site_confirms_one_set_of_survivors():
    exchange = Exchange().until(CONFIRM)
    exchange.reply("a")

    with pytest.raises(MessageRefused, match="'unmask' is next"):
        exchange.sites["a"].confirm(message(TERMS, CONFIRM, survivors={str(n): True for n in (1, 2, 3, 4)}))


def test_a_site_gives_nothing_to_a_server_that_shows_others_other_survivors():
    exchange = Exchange().until(CONFIRM)
    honest = exchange.payloads["a"]
    without_e = message(TERMS, CONFIRM, survivors={str(n): True for n in (1, 2, 3, 4)})
    signatures = {str(TERMS.number("a")): exchange.sites["a"].confirm(honest)["signature"]}
    for name in "bcd":
        signatures[str(TERMS.number(name))] = exchange.sites[name].confirm(without_e)["signature"]

    with pytest.raises(MessageRefused, match="b has not confirmed the survivors that this site was shown"):
        exchange.sites["a"].unmask(message(TERMS, UNMASK, confirmations=signatures))
    del signatures["1"]
    with pytest.raises(MessageRefused, match="3 sites have confirmed the survivors, 4 are needed"):
        exchange.sites["b"].unmask(message(TERMS, UNMASK, confirmations=signatures))


def test_a_site_refuses_a_server_that_replaces_its_keys_or_those_of_others():
    exchange = Exchange().until(SHARE)
    keys = exchange.payloads["a"]["keys"]
    fake = SecureSite(simulated_identity("b", 99), KNOWN, None, TERMS, SecretKeys.generate()).advertise()
    again = SecureSite.begin(IDENTITIES["a"], KNOWN, TERMS.tree()).advertise()

    for number, tree, words in (("2", fake, "b: its keys are not signed by it"), ("1", again, "are others")):
        with pytest.raises(MessageRefused, match=words):
            exchange.sites["a"].share(message(TERMS, SHARE, keys=keys | {number: tree}))
    exchange.finish()


def test_shares_that_cannot_be_decrypted_cost_nothing_while_enough_can():
    exchange = Exchange().until(SHARE)
    for name in NAMES:
        reply = exchange.reply(name)
        exchange.server.receive(name, changed(reply, "shares", "2", flipped) if name == "a" else reply)
    exchange.payloads = exchange.server.close_step()
    exchange.finish()


def test_a_dealer_whose_shares_do_not_fit_together_fails_the_sum_by_name():
    exchange = Exchange().until(SHARE)
    for name in NAMES:
        exchange.server.receive(name, crooked(exchange) if name == "a" else exchange.reply(name))
    exchange.payloads = exchange.server.close_step()

    with pytest.raises(SecureSumFailed, match=r"(?s)masks of a cannot.*shares of its seed do not fit together"):
        exchange.finish()


def crooked(exchange: Exchange) -> Tree:
    """The shares of another seed than the one that was committed to."""
    site = exchange.sites["a"]
    honest = site.secret
    advertised = exchange.payloads["a"]
    site._check_peers = lambda peers: None
    site.secret = replace(honest, seed=bytes(32))
    reply = site.share(advertised)
    site.secret = honest
    return reply


def test_what_the_server_sees_of_a_vector_is_noise():
    exchange = Exchange().until(MASK)
    masked = exchange.reply("a")["masked"].numpy().view(np.uint64)
    again = Exchange().until(MASK).reply("a")["masked"].numpy().view(np.uint64)

    assert not np.any(masked == again)
    assert not np.any(masked == FORMAT.quantise(INPUTS["a"].vector, INPUTS["a"].weight))


@pytest.mark.parametrize("step", STEPS)
def test_a_site_goes_on_from_what_it_kept(step: str):
    exchange = Exchange().until(step)
    for name, site in exchange.sites.items():
        exchange.sites[name] = SecureSite.from_tree(site.tree(), IDENTITIES[name], KNOWN)
    exchange.finish()


scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.sampled_from(STEPS), st.binary()
)
tensors = st.builds(
    lambda size, dtype: torch.ones(size, dtype=dtype),
    st.sampled_from([0, 1, 31, 32, 64, 92, LENGTH + 1]),
    st.sampled_from([torch.uint8, torch.int64, torch.float32]),
)
keys = st.one_of(st.sampled_from(["1", "2", "5", "6", "01", "-1", "٣", "9" * 30, ""]), st.text(max_size=3))
junk = st.recursive(
    st.one_of(scalars, tensors), lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(keys, inner))
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(step=st.sampled_from(STEPS), data=st.data())
def test_altered_messages_are_refused_in_the_name_of_their_sender(step: str, data: st.DataObject):
    exchange = Exchange().until(step, "e")
    reply = dict(exchange.reply("a"))
    item = data.draw(st.sampled_from([*reply, "more"]))
    if isinstance(reply.get(item), dict) and data.draw(st.booleans()):
        reply[item] = reply[item] | {data.draw(keys): data.draw(junk)}
    else:
        reply[item] = data.draw(junk)
    tree = data.draw(st.sampled_from([reply, reply[item]]))
    try:
        exchange.server.receive("a", tree)
    except MessageRefused as error:
        assert error.sender == "a"  # noqa: PT017
        assert str(error).isprintable()  # noqa: PT017


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(step=st.sampled_from(STEPS[1:]), data=st.data())
def test_a_site_refuses_altered_payloads_and_answers_the_honest_one_afterwards(step: str, data: st.DataObject):
    exchange = Exchange().until(step)
    payload = dict(exchange.payloads["a"])
    item = data.draw(st.sampled_from([*payload, "more"]))
    payload[item] = data.draw(junk)
    site = exchange.sites["a"]
    before = site.next_step
    try:
        answer_step(site, step, payload, INPUTS["a"])
    except MessageRefused:
        assert site.next_step == before
        exchange.finish()


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_terms_of_any_form_are_accepted_or_refused_in_words(data: st.DataObject):
    tree = TERMS.tree()
    part = data.draw(st.sampled_from([tree, tree["format"], tree["members"]]))
    part[data.draw(st.sampled_from(list(part)))] = data.draw(junk)
    try:
        SecureSite.begin(IDENTITIES["a"], KNOWN, tree)
    except MessageRefused as error:
        assert str(error).isprintable()  # noqa: PT017
