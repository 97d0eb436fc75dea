"""Robust rules by hand, and what they promise whatever the clients send."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from crossward.core import robust
from crossward.core.disclosure import uncovered
from crossward.core.robust import (
    HOSTILE_CLIP,
    HOSTILE_SHARE,
    Robust,
    largest_counts,
    robust_replies,
    with_bounded_counts,
)
from crossward.core.weights import Weights, mean
from crossward.methods import method_class
from crossward.methods.fedavg import FedAvg
from crossward.methods.scaffold import Scaffold

MEDIAN, TRIMMED, CLIP = Robust("median"), Robust("trimmed-mean", trim=0.25), Robust("clip")
RULES = [MEDIAN, TRIMMED, CLIP]
numbers = st.floats(-100, 100, width=32)


def of(**values):
    return Weights({name: torch.tensor(value) for name, value in values.items()})


def models(*values):
    """A reply of each client, with one weight tensor and a count."""
    return {i: {"model": of(w=value), "n": 10 + i} for i, value in enumerate(values)}


def listed(replies, item="model", name="w"):
    return {i: reply[item][name].tolist() for i, reply in replies.items()}


def bits(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).tolist()


def test_median_by_hand():
    result = robust_replies(MEDIAN, {}, models([1.0, 9.0], [5.0, -2.0], [2.0, 4.0]))
    assert listed(result) == {0: [2, 4], 1: [2, 4], 2: [2, 4]}
    assert [reply["n"] for reply in result.values()] == [10, 11, 12]
    even = robust_replies(MEDIAN, {}, models([1.0], [100.0], [2.0], [4.0]))
    assert listed(even) == {i: [3] for i in range(4)}


def test_trimmed_mean_by_hand():
    # a quarter of 4 is 1: the mean of the middle two of each coordinate; of 5 as well: of the middle three
    assert listed(robust_replies(TRIMMED, {}, models([1.0], [100.0], [2.0], [4.0])))[0] == [3]
    assert listed(robust_replies(TRIMMED, {}, models([1.0], [100.0], [3.0], [4.0], [8.0])))[2] == [5]
    # 3 are too few for any to be cut
    assert listed(robust_replies(TRIMMED, {}, models([1.0], [100.0], [4.0])))[1] == [35]


@pytest.mark.parametrize(
    ("trim", "clients", "cut"),
    [(0.1, 9, 0), (0.1, 10, 1), (0.29, 100, 29), (0.2, 15, 3), (0.0, 50, 0), (0.49, 100, 49), (0.4999999999999, 4, 1)],
)
def test_how_many_are_cut(trim, clients, cut):
    assert Robust("trimmed-mean", trim=trim).cut(clients) == cut


def test_a_trim_of_nearly_half_is_the_median():
    replies = models([1.0], [5.0], [100.0], [7.0])
    assert listed(robust_replies(Robust("trimmed-mean", trim=0.4999999999999), {}, replies)) == listed(
        robust_replies(MEDIAN, {}, replies)
    )


@pytest.mark.parametrize("rule", [MEDIAN, TRIMMED])
def test_fewer_than_three_clients_are_averaged(rule):
    assert listed(robust_replies(rule, {}, models([1.0], [4.0]))) == {0: [2.5], 1: [2.5]}
    assert listed(robust_replies(rule, {}, models([0.1]))) == listed(models([0.1]))
    assert robust_replies(rule, {}, {}) == {}


def test_clip_by_hand():
    # from (1, 1) the clients move by 1, 2 and 10: the median is 2
    down = {"model": of(w=[1.0, 1.0], more=[7.0])}
    result = robust_replies(CLIP, down, models([2.0, 1.0], [1.0, 3.0], [7.0, 9.0]))
    assert listed(result)[0] == [2, 1]
    assert listed(result)[1] == [1, 3]
    assert listed(result)[2] == pytest.approx([1 + 0.6 * 2, 1 + 0.8 * 2])
    half = robust_replies(Robust("clip", clip=0.5), down, models([2.0, 1.0], [1.0, 3.0], [7.0, 9.0]))
    assert listed(half)[0] == [2, 1]
    assert listed(half)[1] == [1, 2]
    assert listed(half)[2] == pytest.approx([1.6, 1.8])


def test_clip_takes_the_norm_over_all_tensors_of_an_item():
    replies = {i: {"dy": of(a=[3.0 * k], b=[[4.0 * k]])} for i, k in enumerate((1.0, 2.0, 6.0))}  # 5, 10, 30
    result = robust_replies(
        CLIP, {"dy": of(c=[1.0])}, replies
    )  # what was sent has other names: these are updates by themselves
    assert listed(result, "dy", "a")[2] == pytest.approx([6])
    assert result[2]["dy"]["b"].tolist()[0] == pytest.approx([8])
    assert result[1]["dy"] is replies[1]["dy"]


def test_clip_with_something_else_for_each_client():
    start = {0: [0.0], 1: [10.0], 2: [20.0]}
    result = robust_replies(CLIP, lambda i: {"model": of(w=start[i])}, models([1.0], [9.0], [25.0]))
    assert listed(result) == {0: [1], 1: [9], 2: [21]}


def test_a_large_clip_leaves_everything():
    replies = models([0.1, 7.0], [1e6, 3.0], [-4.0, 1e-9])
    for down in ({}, {"model": of(w=[1.0, 1.0])}):
        result = robust_replies(Robust("clip", clip=1e9), down, replies)
        assert all(result[i]["model"] is replies[i]["model"] for i in replies)


def test_clip_where_most_do_not_move():
    down = {"model": of(w=[1.0])}
    assert listed(robust_replies(CLIP, down, models([1.0], [1.0], [5.0]))) == {0: [1], 1: [1], 2: [1]}


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 3e38])
def test_clip_takes_what_is_not_finite_for_no_update(bad):
    result = robust_replies(CLIP, {"model": of(w=[1.0, 1.0])}, models([2.0, 1.0], [1.0, 2.0], [bad, 3e38]))
    assert listed(result)[2] == pytest.approx([1, 1], abs=1)
    assert all(math.isfinite(x) for x in listed(result)[2])
    alone = robust_replies(CLIP, {}, models([2.0, 1.0], [1.0, 2.0], [bad, 5.0]))
    assert all(abs(x) < 3 for x in listed(alone)[2])


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_identical_clients_stay_to_the_bit(rule, dtype):
    tensor = (torch.randn(40, generator=torch.Generator().manual_seed(1)) * 1e-3).to(dtype)
    tensor[:2] = torch.tensor([-0.0, torch.finfo(dtype).max])
    for clients in (1, 2, 3, 6, 7):
        replies = {i: {"model": Weights({"w": tensor.clone()})} for i in range(clients)}
        for reply in robust_replies(rule, {"model": Weights({"w": torch.ones(40, dtype=dtype)})}, replies).values():
            assert reply["model"]["w"].dtype == dtype
            assert bits(reply["model"]["w"]) == bits(tensor)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(numbers, min_size=2, max_size=2), min_size=2, max_size=6), st.sampled_from([1e6, -1e6]))
def test_one_client_cannot_leave_the_honest_range(honest, factor):
    result = robust_replies(MEDIAN, {}, models(*honest, [factor * x for x in honest[0]]))
    value = listed(result)[0]
    for k in range(2):
        assert min(v[k] for v in honest) <= value[k] <= max(v[k] for v in honest)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(numbers, min_size=3, max_size=3), min_size=1, max_size=6), st.randoms())
def test_the_order_of_clients_changes_nothing(values, random):
    replies = models(*values)
    order = random.sample(list(replies), len(replies))
    for rule in RULES:
        one = robust_replies(rule, {"model": of(w=[1.0, 2.0, 3.0])}, replies)
        other = robust_replies(rule, {"model": of(w=[1.0, 2.0, 3.0])}, {i: replies[i] for i in order})
        assert listed(one) == listed(other)
        # nor does who is who, where one value is in everybody's place
        renamed = {new: replies[old] for new, old in enumerate(order)}
        if rule != CLIP:
            assert listed(robust_replies(rule, {}, renamed)) == listed(robust_replies(rule, {}, replies))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(numbers, min_size=3, max_size=3), min_size=1, max_size=6))
def test_no_trim_is_the_plain_mean(values):
    replies = models(*values)
    plain = mean(reply["model"] for reply in replies.values())["w"]
    for reply in robust_replies(Robust("trimmed-mean", trim=0.0), {}, replies).values():
        assert torch.allclose(reply["model"]["w"], plain, rtol=1e-6, atol=1e-4)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(numbers, min_size=3, max_size=3), min_size=1, max_size=6), st.floats(0.1, 3))
def test_clip_bounds_every_update(values, multiple):
    start = torch.tensor([1.0, -2.0, 3.0])
    lengths = [float((torch.tensor(v) - start).norm()) for v in values]
    bound = multiple * float(torch.tensor(lengths, dtype=torch.float64).quantile(0.5))
    replies = models(*values)
    result = robust_replies(Robust("clip", clip=multiple), {"model": Weights({"w": start})}, replies)
    for i, reply in result.items():
        assert float((reply["model"]["w"] - start).norm()) <= bound * (1 + 1e-5) + 1e-4
        if lengths[i] < bound * (1 - 1e-5):
            assert reply["model"] is replies[i]["model"]


def test_any_weighted_mean_is_the_agreed_value():
    result = robust_replies(MEDIAN, {}, models([1.0, 9.0], [5.0, -2.0], [2.0, 4.0]))
    taken = mean((reply["model"] for reply in result.values()), [1e6, 1.0, 3.0])["w"]
    assert taken.tolist() == pytest.approx([2, 4])


def test_mixed_networks_agree_by_architecture():
    small, large = [1.0, 2.0, 6.0], [[[10.0]], [[20.0]], [[90.0]]]
    replies = dict(enumerate({"model": of(w=value)} for value in itertools.chain(small, large)))
    replies[6] = {"model": of(v=5.0)}
    replies[7] = {"model": 3}
    result = robust_replies(MEDIAN, {}, replies)
    assert listed({i: result[i] for i in range(6)}) == {0: 2, 1: 2, 2: 2, 3: [[20]], 4: [[20]], 5: [[20]]}
    assert result[6]["model"]["v"] == 5
    assert result[7] == {"model": 3}


def test_the_order_of_names_is_each_clients_own():
    replies = {0: {"model": of(a=1.0, b=2.0)}, 1: {"model": of(b=4.0, a=3.0)}, 2: {"model": of(a=5.0, b=6.0)}}
    result = robust_replies(MEDIAN, {}, replies)
    assert [list(reply["model"]) for reply in result.values()] == [["a", "b"], ["b", "a"], ["a", "b"]]
    assert listed(result, name="b") == {0: 4, 1: 4, 2: 4}


@pytest.mark.parametrize("rule", RULES)
def test_what_is_no_weight_stays(rule):
    def reply(k):
        proto = torch.full((2,), float(k))
        steps = torch.tensor(k)
        return {"model": Weights({"w": proto, "steps": steps}), "proto": proto, "deep": {"model": of(w=[k])}, "n": k}

    replies = {k: reply(k) for k in (1, 2, 30)}
    result = robust_replies(rule, {}, replies)
    for k, before in replies.items():
        assert int(result[k]["model"]["steps"]) == k
        assert result[k]["proto"] is before["proto"]
        assert result[k]["deep"] is before["deep"]
        assert result[k]["n"] == k
        assert before["model"]["w"].tolist() == before["proto"].tolist() == [k, k]  # nothing was changed in place
        assert result[k] is not before


def test_none_changes_nothing():
    replies = models([1.0], [5.0], [9.0])
    result = robust_replies(Robust(), {}, replies)
    assert all(result[i]["model"] is replies[i]["model"] for i in replies)
    assert result is not replies


def test_one_client_does_not_choose_the_type():
    replies = models([1.0], [5.0], [9.0])
    replies[1]["model"] = Weights({"w": torch.tensor([5])})
    replies[2]["model"] = Weights({"w": torch.tensor([9.0], dtype=torch.float32)})
    result = robust_replies(MEDIAN, {}, replies)
    assert listed(result) == {0: [5], 1: [5], 2: [5]}
    assert {reply["model"]["w"].dtype for reply in result.values()} == {torch.float32}


def test_a_minority_of_nan_does_not_reach_the_median():
    result = robust_replies(MEDIAN, {}, models([1.0, 1.0], [math.nan, math.inf], [2.0, -math.inf]))
    assert listed(result)[0] == [2, 1]


def test_portions_do_not_show(monkeypatch):
    rng = torch.Generator().manual_seed(3)
    replies = {i: {"model": Weights({"w": torch.randn(5, 7, generator=rng), "e": torch.ones(0, 3)})} for i in range(4)}
    whole = robust_replies(MEDIAN, {}, replies)
    monkeypatch.setattr(robust, "PORTION", 9)
    parts = robust_replies(MEDIAN, {}, replies)
    assert torch.equal(whole[0]["model"]["w"], parts[0]["model"]["w"])
    assert whole[0]["model"]["w"].shape == (5, 7)
    assert parts[0]["model"]["e"].shape == (0, 3)
    stacked = torch.stack([reply["model"]["w"] for reply in replies.values()])
    assert torch.allclose(whole[0]["model"]["w"], stacked.quantile(0.5, dim=0))


@pytest.mark.parametrize(
    "bad",
    [
        {"rule": "mean"},
        {"trim": 0.5},
        {"trim": -0.1},
        {"clip": 0},
        {"largest_share": 0},
        {"largest_share": 1.1},
        {"largest_share": "half"},
    ],
)
def test_bad_options_are_refused(bad):
    with pytest.raises(ValidationError):
        TypeAdapter(Robust).validate_python(bad)


def test_good_options():
    assert TypeAdapter(Robust).validate_python({"rule": "clip", "clip": 2}) == Robust("clip", clip=2.0)


# across hospitals ----------------------------------------------------------------------------------------------------


def test_no_rule_is_chosen_by_itself_in_a_simulation():
    assert Robust() == Robust("auto")
    assert not Robust().active
    assert not Robust("none").active
    assert Robust().ceiling == 1.0
    assert Robust().against_hostile_sites() == Robust(
        "clip", clip=HOSTILE_CLIP, largest_share=HOSTILE_SHARE
    )  # fmt: skip
    for chosen in (Robust("none", largest_share=1.0), Robust("median", largest_share=0.3)):
        assert chosen.against_hostile_sites() is chosen


def test_the_rule_across_hospitals_shortens_what_is_longer_than_the_median():
    start = {"model": of(w=[0.0, 0.0])}
    replies = models([1.0, 0.0], [0.0, 2.0], [3.0, 0.0], [1e6, -1e6], [0.0, 0.5])
    result = robust_replies(Robust().against_hostile_sites(), start, replies)
    for client in (0, 1, 4):
        assert result[client]["model"] is replies[client]["model"]
    assert result[2]["model"]["w"].tolist() == [2.0, 0.0]
    assert result[3]["model"]["w"].tolist() == pytest.approx([math.sqrt(2), -math.sqrt(2)])


def test_a_site_cannot_hide_in_the_length_of_statistics():
    """Variances move by hundreds where weights move by one."""
    start = {"model": of(w=[0.0, 0.0], **{"bn.running_var": [1.0, 1.0]})}
    replies = {
        k: {"model": of(w=w, **{"bn.running_var": [400.0, 300.0]})}
        for k, w in enumerate(([1.0, 0.0], [0.0, 1.0], [300.0, 0.0]))
    }
    result = robust_replies(Robust().against_hostile_sites(), start, replies)
    assert result[2]["model"]["w"].tolist() == [1.0, 0.0]
    assert result[2]["model"]["bn.running_var"].tolist() == [400.0, 300.0]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_weights_that_are_not_finite_are_no_update(bad):
    replies = models([1.0, 0.0], [1.0, 0.5], [1.0, 1.0], [bad, 0.0])
    result = robust_replies(Robust().against_hostile_sites(), {"model": of(w=[3.0, 4.0])}, replies)
    assert result[3]["model"]["w"].tolist() == [3.0, 4.0]


ATTACKS = {
    "the opposite": lambda start, honest: start - (honest - start) * 5.0,
    "the opposite, unnoticed in length": lambda start, honest: start - (honest - start),
    "noise": lambda start, honest: honest.map(lambda w: w + 3.0 * torch.randn_like(w)),
    "one direction": lambda start, honest: honest.map(lambda w: w + 10.0),
    "nothing": lambda start, honest: start * 0.0,
}


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize(("sites", "hostile"), [(3, 1), (5, 2)])
def test_a_model_survives_a_minority_that_attacks_in_every_round(attack, sites, hostile):
    """It still learns; believed, such attacks leave it at chance or below."""
    torch.manual_seed(0)
    honest = learnt(sites, {}, Robust("none"))
    survived = learnt(sites, dict.fromkeys(range(hostile), ATTACKS[attack]), Robust().against_hostile_sites())
    assert honest > 0.9
    assert survived > honest - 0.15


def test_a_model_does_not_survive_without_the_rule():
    torch.manual_seed(0)
    assert learnt(3, {0: ATTACKS["the opposite"]}, Robust("none")) < 0.6
    assert learnt(3, {0: ATTACKS["the opposite"]}, Robust("clip", clip=5.0)) < 0.6


def learnt(sites, hostile, rule, rounds=12):
    """The accuracy of logistic regression on two clouds, with some sites that reply what `hostile` makes of what they
    were sent and would have replied."""
    rng = torch.Generator().manual_seed(5)
    direction = torch.randn(20, generator=rng)
    data = []
    for _ in range(sites):
        x = torch.randn(200, 20, generator=rng) + 0.3 * torch.randn(20, generator=rng)
        data.append((x, (x @ direction > 0).float()))
    weights = of(w=[0.0] * 20)
    for _ in range(rounds):
        replies = {}
        for site, (x, y) in enumerate(data):
            w = weights["w"].clone()
            for _ in range(5):
                w -= 0.5 * x.T @ (torch.sigmoid(x @ w) - y) / len(y)
            trained = of(w=w.tolist())
            replies[site] = {"model": hostile[site](weights, trained) if site in hostile else trained}
        seen = robust_replies(rule, {"model": weights}, replies)
        weights = of(w=(sum(reply["model"]["w"] for reply in seen.values()) / sites).tolist())
    x = torch.cat([x for x, _ in data])
    return float(((x @ weights["w"] > 0).float() == (x @ direction > 0).float()).float().mean())


# what a client's count is of all ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("images", "share", "expected"),
    [
        ((20, 30, 40), 0.5, (20, 30, 40)),
        ((20, 30, 10**9), 0.5, (20, 30, 50)),
        ((20, 30, 10**9), 0.2, (20, 30, 12)),
        ((20, 30, 10**9), 1.0, (20, 30, 10**9)),
        ((20, 10**9), 0.5, (20, 10**9)),  # of two neither is a minority
        ((20,), 0.5, (20,)),
    ],
)
def test_a_clients_share_has_a_ceiling(images, share, expected):
    assert tuple(largest_counts(dict(enumerate(images)), share).values()) == expected


def test_counts_of_one_round_are_held_against_each_other():
    """Of ten sites, three took part: the share is of these."""
    seen = with_bounded_counts(0.5, {1: {"n": 7}, 4: {"n": 10**6}, 9: {"n": 5}}, FedAvg().discloses)
    assert {client: reply["n"] for client, reply in seen.items()} == {1: 7, 4: 12, 9: 5}


def test_class_counts_shrink_and_with_them_the_sums_over_their_images():
    counts = ([4.0, 2.0], [2.0, 0.0], [3000.0, 1000.0])
    sums = ([[8.0], [2.0]], [[2.0], [0.0]], [[6000.0], [5000.0]])
    replies = {k: {"n": 6, "counts": torch.tensor(counts[k]), "prototypes": torch.tensor(sums[k])} for k in range(3)}
    seen = with_bounded_counts(0.5, replies, method_class("fedproc").discloses)
    assert seen[2]["counts"].tolist() == [6.0, 2.0]  # 8 of 16
    assert seen[2]["prototypes"].tolist() == [[12.0], [10.0]]  # the means are what they were
    assert seen[0]["counts"] is replies[0]["counts"]
    means = with_bounded_counts(0.5, replies, method_class("fedproto").discloses)
    assert means[2]["prototypes"] is replies[2]["prototypes"]


def test_what_no_rule_covers():
    assert list(uncovered(FedAvg().discloses)) == []
    assert list(uncovered(Scaffold().discloses)) == []
    assert list(uncovered(method_class("fedproto").discloses)) == ["prototypes"]
    assert list(uncovered(method_class("fedmd").discloses)) == ["logits"]
    assert list(uncovered(method_class("fedsm").discloses)) == ["personal", "gradient"]
