"""A hospital's policy: how it is read, what it refuses before round 1, and what it allows in a reply."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from crossward.core import select
from crossward.core.disclosure import DisclosureKind
from crossward.core.method import Method, RoundContext, export_predictor, predictions
from crossward.core.weights import Weights
from crossward.errors import ConfigError
from crossward.hospitals.policy import (
    Policy,
    PolicyViolation,
    allowed_methods,
    check_method,
    method_refusals,
)
from crossward.hospitals.site_rules import HospitalRules
from crossward.methods import METHODS
from crossward.methods.creff import CReFF
from crossward.methods.fedcd import FedCD
from crossward.methods.fedproc import FedProc
from crossward.methods.fedproto import FedProto
from crossward.methods.fedsm import FedSM
from crossward.methods.scaffold import Scaffold
from crossward.privacy.gate import unbounded_lines, undeclared_lines
from crossward.testing.toy import Toy, classifier, linear

torch.set_num_threads(1)

ALLOW_EVERYTHING = Policy(allow=tuple(DisclosureKind), min_class_count=0)
WEIGHTS_ONLY = Policy(allow=(DisclosureKind.WEIGHTS,))
NET_BUFFERS = frozenset({"body.1.running_mean", "body.1.running_var"})
NO_BUFFERS: frozenset[str] = frozenset()


@pytest.fixture
def policy_file(tmp_path):
    """policy_file("[disclosure]…") is a file with that text."""
    file = tmp_path / "site.toml"

    def write(text):
        file.write_text(text)
        return file

    return write


def screen_reply(method, policy, buffers, reply):
    """As the gate does, but for what it asks of the network: weights are made up here."""
    declared = {item: about for item, about in method.discloses.items() if item in reply}
    problems = [*undeclared_lines(method.discloses, reply), *unbounded_lines(declared, reply)]
    return HospitalRules(policy, buffers).screen(method, reply, problems)


def weights(**tensors):
    return Weights({name: torch.tensor(value) for name, value in tensors.items()})


def weights_with_buffers():
    return Weights({"body.1.running_mean": torch.zeros(4), "head.bias": torch.zeros(3)})


def test_a_file_without_the_table_has_the_default(policy_file):
    policy = Policy.read(policy_file('[site]\nname = "a"\n'))
    assert policy == Policy()
    assert [kind.value for kind in policy.allow] == [
        *("weights", "buffers", "sample-count", "class-counts", "prototypes", "logits", "metrics", "generator")
    ]
    assert policy.min_class_count == 5
    assert policy.min_public_images == 32


def test_the_table_is_read(policy_file):
    policy = Policy.read(policy_file('[disclosure]\nallow = ["weights", "personal-weights"]\nmin_class_count = 5\n'))
    assert policy == Policy(allow=(DisclosureKind.WEIGHTS, DisclosureKind.PERSONAL_WEIGHTS), min_class_count=5)
    assert Policy.read(policy_file("[disclosure]\nallow = []")).allow == ()


def test_every_mistake_is_reported_with_its_line_and_the_nearest_name(policy_file):
    file = policy_file('[disclosure]\nallow = ["weight", "logits", 3]\nmin_class_counts = 5\nmin_class_count = -1\n')
    with pytest.raises(ConfigError) as caught:
        Policy.read(file)
    kind, number, least, key = caught.value.details
    assert kind.startswith(f"disclosure.allow: there is no kind 'weight' ({file}, line 2). Did you mean 'weights'?")
    assert number.startswith(f"disclosure.allow: there is no kind 3 ({file}, line 2).")
    assert least == f"disclosure.min_class_count: input should be greater than or equal to 0, not -1 ({file}, line 4)"
    assert key.startswith(f"disclosure.min_class_counts: no such key ({file}, line 3). Did you mean 'min_class_count'?")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[disclosure]\nallow = "weights"', "disclosure.allow: should be a list of kinds, not 'weights'"),
        ("[disclosure]\nmin_class_count = true", "disclosure.min_class_count: input should be a valid integer"),
        ("[disclosure]\nmin_class_count = 2.5", "disclosure.min_class_count: input should be a valid integer"),
        ("[disclosure]\nlog = false", r"disclosure.log: no such key \(.*line 2\).*Known: allow, min_class_count"),
        ('disclosure = "all"', "disclosure is 'all'"),
        ('[disclosures]\nallow = ["weights"]', r"no table \[disclosures\]\nDid you mean \[disclosure\]"),
        ("[Disclosure]\nallow = []", r"no table \[Disclosure\]"),
        ("[disclosure\n", "not valid TOML"),
    ],
)
def test_what_is_wrong_in_a_policy_is_refused(policy_file, text, expected):
    with pytest.raises(ConfigError, match=f"(?s){expected}"):
        Policy.read(policy_file(text))


def test_a_missing_file_is_no_default(tmp_path):
    with pytest.raises(ConfigError, match="cannot read"):
        Policy.read(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("method", "net", "policy", "expected"),
    [
        (Method(), classifier, Policy(), []),
        (FedProto(), classifier, WEIGHTS_ONLY, [
            "prototypes: class prototypes (item 'prototypes')",
            "class-counts: class counts (item 'counts')",
        ]),
        (Scaffold(), linear, WEIGHTS_ONLY, []),
        (Scaffold(), classifier, WEIGHTS_ONLY, ["buffers: BatchNorm statistics among the weights (item 'dy' or 'dc')"]),
        (Scaffold(buffers="local"), classifier, WEIGHTS_ONLY, []),
        (FedSM(), classifier, Policy(), [
            "personal-weights: weights of the site's own model, for all sites (item 'personal')",
            "gradients: gradient of a network that tells whose an image is (item 'gradient')",
        ]),
        (FedProto(), classifier, Policy(min_class_count=5), []),
        (CReFF(), linear, Policy(allow=tuple(DisclosureKind), min_class_count=5), [
            "class-counts: which classes are present (item 'classes') tells of small classes too: "
            "it needs min_class_count = 0, not 5",
        ]),
        (CReFF(), linear, ALLOW_EVERYTHING, []),
    ],
)  # fmt: skip
def test_refusals(method, net, policy, expected):
    assert method_refusals(method, net(), policy) == expected


def test_the_default_allows_all_but_four_methods():
    assert set(METHODS) - set(allowed_methods(Policy())) == {"creff", "fedsm", "lc-fed", "central"}


def test_what_is_allowed_follows_the_policy():
    assert allowed_methods(Policy(allow=())) == ["local"]
    assert allowed_methods(WEIGHTS_ONLY) == ["scaffold", "feddyn", "local"]
    assert allowed_methods(Policy(allow=(DisclosureKind.LOGITS,))) == ["fedmd", "ds-pfl", "kt-pfl", "local"]
    assert set(METHODS) - set(allowed_methods(ALLOW_EVERYTHING)) == {"central"}
    small = Policy(allow=tuple(DisclosureKind), min_class_count=2)
    assert set(METHODS) - set(allowed_methods(small)) == {"central", "creff"}


def test_a_method_is_refused_before_round_1_and_the_error_names_those_that_are_allowed():
    check_method(FedProto(), "fedproto", classifier(), Policy())
    with pytest.raises(ConfigError, match="does not allow what fedproto sends:\n  prototypes: class") as caught:
        check_method(
            FedProto(), "fedproto", classifier(), Policy(allow=(DisclosureKind.WEIGHTS, DisclosureKind.BUFFERS))
        )
    assert caught.value.hint == "It allows scaffold, feddyn, local."


def test_a_method_refused_for_its_statistics_alone_is_allowed_without_them():
    with pytest.raises(ConfigError) as caught:
        check_method(Scaffold(), "scaffold+npr", classifier(), WEIGHTS_ONLY)
    assert caught.value.hint.startswith('It allows scaffold, feddyn, local with method.buffers = "local"')


@pytest.mark.parametrize("n", [12, 12.0, torch.tensor(12)])
def test_what_is_declared_and_allowed_is_sent_as_it_is(n):
    reply = {"model": weights_with_buffers(), "n": n}
    sent = screen_reply(Method(), Policy(), NET_BUFFERS, reply)
    assert sent == reply
    assert sent is not reply


@pytest.mark.parametrize(
    ("policy", "reply", "expected", "hint"),
    [
        (Policy(), {"model": weights(w=1.0), "age": 3}, "item 'age', which the method does not declare", "correct the"),
        (WEIGHTS_ONLY, {"n": 3}, r"sample-count: sample count \(item 'n'\)", 'add "sample-count" to allow in'),
        (
            WEIGHTS_ONLY,
            {"model": weights_with_buffers()},
            r"buffers: body.1.running_mean \(item 'model'\)",
            'add "buffers"',
        ),
        (
            WEIGHTS_ONLY,
            {"model": {"deep": {"in": weights_with_buffers()}}},
            "buffers: body.1.running_mean",
            'add "buffers"',
        ),
        (WEIGHTS_ONLY, {"model": {"body.1.running_var": torch.ones(4)}}, "buffers: body.1.running_var", '"buffers"'),
        (Policy(), {"n": torch.tensor([3, 4])}, r"'n'\) should be one number and is a tensor \(2,\)", "correct"),
        (Policy(), {"n": torch.tensor([3])}, r"should be one number and is a tensor \(1,\)", "correct"),
        (Policy(), {"n": "three"}, "should be one number and is a str", "correct"),
        (Policy(), {"n": {"a": 3}}, "should be one number and is a dict", "correct"),
    ],
)
def test_a_violation_names_the_item_its_kind_and_the_way_out(policy, reply, expected, hint):
    with pytest.raises(PolicyViolation, match=expected) as caught:
        screen_reply(Method(), policy, NET_BUFFERS, reply)
    assert hint in caught.value.hint
    assert caught.value.exit_code == 6


def test_every_violation_of_a_reply_is_reported_at_once():
    with pytest.raises(PolicyViolation) as caught:
        screen_reply(Method(), Policy(allow=()), NET_BUFFERS, {"model": weights_with_buffers(), "n": 1, "age": 2})
    assert [line.split(":")[0] for line in caught.value.details[:3]] == ["weights", "sample-count", "buffers"]
    assert caught.value.details[3] == "item 'age', which the method does not declare"
    assert '"weights", "sample-count", "buffers"' in caught.value.hint


def test_many_statistics_are_not_all_listed():
    names = [f"bn{k}" for k in range(5)]
    with pytest.raises(PolicyViolation, match="bn0, bn1, bn2 and 2 more"):
        screen_reply(Method(), WEIGHTS_ONLY, frozenset(names), {"model": Weights(dict.fromkeys(names, torch.ones(1)))})


def test_small_class_counts_are_sent_as_0_and_their_prototypes_too():
    counts = torch.tensor([0.0, 1.0, 4.0, 5.0, 9.0])
    reply = {"counts": counts, "prototypes": torch.arange(1.0, 11.0).view(5, 2)}
    sent = screen_reply(FedProto(), Policy(min_class_count=5), NO_BUFFERS, reply)
    assert sent["counts"].tolist() == [0, 0, 0, 5, 9]
    assert sent["prototypes"].tolist() == [[1, 2], [0, 0], [0, 0], [7, 8], [9, 10]]
    assert counts.tolist() == [0, 1, 4, 5, 9]
    assert reply["prototypes"].tolist()[1:3] == [[3, 4], [5, 6]]


def test_counts_of_sub_classes_are_suppressed_one_by_one():
    reply = {"counts": torch.tensor([[2, 9], [7, 0]]), "prototypes": torch.ones(2, 2, 3), "n": 18}
    sent = screen_reply(FedCD(), Policy(min_class_count=3), NO_BUFFERS, reply)
    assert sent["counts"].tolist() == [[0, 9], [7, 0]]
    assert sent["prototypes"].sum(2).tolist() == [[0, 3], [3, 3]]
    assert sent["n"] == 18


def test_counts_are_suppressed_however_they_are_packed():
    reply = {"counts": {"a": 3, "b": 2.0, "c": weights(x=[3, 8]), "d": "few", "e": 8}}
    sent = screen_reply(FedProto(), Policy(min_class_count=4), NO_BUFFERS, reply)["counts"]
    assert sent["a"] == 0
    assert sent["b"] == 0
    assert sent["d"] == "few"
    assert sent["e"] == 8
    assert sent["c"]["x"].tolist() == [0, 8]
    assert reply["counts"]["a"] == 3


def test_numbers_of_classes_are_not_taken_for_counts():
    reply = {"classes": torch.tensor([1, 2])}
    assert screen_reply(CReFF(), ALLOW_EVERYTHING, NO_BUFFERS, reply)["classes"].tolist() == [1, 2]
    with pytest.raises(PolicyViolation, match="tells of small classes too: it needs min_class_count = 0, not 5"):
        screen_reply(CReFF(), Policy(allow=tuple(DisclosureKind), min_class_count=5), NO_BUFFERS, reply)


@given(st.lists(st.integers(0, 30), max_size=8), st.integers(0, 30))
def test_suppression(counts, least):
    reply = {"counts": torch.tensor(counts, dtype=torch.int64), "prototypes": torch.ones(len(counts), 2)}
    sent = screen_reply(FedProto(), Policy(min_class_count=least), NO_BUFFERS, reply)
    assert sent["counts"].tolist() == [n if n >= least else 0 for n in counts]
    assert sent["counts"].dtype == torch.int64
    assert sent["prototypes"].tolist() == [[0, 0] if 1 <= n < least else [1, 1] for n in counts]
    assert reply["counts"].tolist() == counts


def test_to_the_coordinator_the_site_has_no_such_class():
    """Class 1: sums 2 and 30 of 1 and 5 images. With the first suppressed the mean is 30 / 5, not 32 / 5."""
    method, policy = FedProc(), Policy(min_class_count=3)
    replies = {
        k: {"model": weights(w=[0.0]), "n": 9, "prototypes": torch.tensor([[8.0], [s]]), "counts": torch.tensor([4, n])}
        for k, (s, n) in enumerate([(2.0, 1), (30.0, 5)])
    }
    run_sites = Toy().run_sites(method)
    ctx = RoundContext(0, 1, 2, run_sites.task, run_sites.server(0))
    state = {"model": weights(w=[0.0]), "prototypes": torch.zeros(2, 1), "known": torch.zeros(2, dtype=torch.bool)}
    sent = {k: screen_reply(method, policy, NO_BUFFERS, reply) for k, reply in replies.items()}
    assert method.aggregate(state, sent, ctx)["prototypes"].tolist() == [[2], [6]]
    assert method.aggregate(state, replies, ctx)["prototypes"][1].item() == pytest.approx(32 / 6)


def test_predictions_and_what_a_site_keeps_do_not_leave_it():
    method = Method()
    run_sites = Toy().run_sites(method)
    site = run_sites.open(0, 0, {})
    down = {"model": Weights.of(site.model)}
    buffers = frozenset(select.buffers.names(site.model))
    assert buffers == NET_BUFFERS
    reply = {"model": Weights.of(site.model, method.returns), "n": site.size}
    assert screen_reply(method, Policy(), buffers, reply) == reply
    with pytest.raises(PolicyViolation, match="running_mean"):
        screen_reply(method, Policy(allow=(DisclosureKind.WEIGHTS, DisclosureKind.SAMPLE_COUNT)), buffers, reply)
    with pytest.raises(PolicyViolation, match="'val'"):
        screen_reply(method, ALLOW_EVERYTHING, buffers, predictions(method, site, down))
    with pytest.raises(PolicyViolation, match="'memory'"):
        screen_reply(method, ALLOW_EVERYTHING, buffers, export_predictor(method, site, down))


@pytest.mark.parametrize(
    ("policy", "reply", "expected"),
    [
        (Policy(), {"metrics": "{}", "val": torch.ones(2)}, "item 'val', where 'metrics' alone is due"),
        (Policy(), {}, "item 'metrics' should be text and is NoneType"),
        (Policy(), {"metrics": torch.ones(3)}, "item 'metrics' should be text and is Tensor"),
    ],
)
def test_metrics_alone_are_sent_when_a_site_reports_metrics(policy, reply, expected):
    rules = HospitalRules(policy, NO_BUFFERS)
    assert rules.screen_metrics({"metrics": '{"val": {}}'}) == {"metrics": '{"val": {}}'}
    with pytest.raises(PolicyViolation, match=expected):
        rules.screen_metrics(reply)


def test_metrics_stay_where_the_policy_keeps_them():
    rules = HospitalRules(WEIGHTS_ONLY, NO_BUFFERS)
    assert not rules.allows_metrics
    assert rules.screen_metrics({"metrics": '{"val": {"f1": 0.5}}'}) == {"metrics": "{}"}
