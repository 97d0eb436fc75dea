"""What the coordinator finds in a reply: by hand, on random trees, and in replies that mean harm."""

from __future__ import annotations

import math
import sys

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from crossward.core.inspection import (
    ExpectedReplies,
    Limits,
    ScalarSpec,
    TensorSpec,
    TreeSpec,
    WeightsSpec,
    differences,
    norm,
    reply_problems,
)
from crossward.core.weights import Weights

LIMITS = Limits(growth=100.0, largest=1e6)
DTYPES = [torch.float32, torch.float64, torch.int64, torch.bool, torch.bfloat16, torch.uint8]
NAMES = st.text(max_size=6).filter(lambda name: "/" not in name)


def tensors():
    shapes = st.lists(st.integers(0, 3), max_size=3)
    return st.builds(lambda shape, dtype: torch.zeros(shape, dtype=dtype), shapes, st.sampled_from(DTYPES))


def trees():
    weights = st.dictionaries(NAMES, tensors(), max_size=3).map(Weights)
    scalars = st.one_of(st.booleans(), st.integers(-9, 9), st.floats(-9, 9), st.text(max_size=4))
    node = st.one_of(scalars, tensors(), weights)
    deep = st.recursive(node, lambda below: st.dictionaries(NAMES, below, max_size=3), max_leaves=6)
    return st.dictionaries(NAMES, deep, max_size=4)


def places(node):
    """Every mapping of the tree that holds something, as the names that lead to it."""
    if isinstance(node, dict | Weights):
        yield from [()] if node else []
        for name, value in node.items():
            yield from ((name, *rest) for rest in places(value))


def altered(node, place, change):
    """A copy in which `change` was applied to the contents of the mapping at `place`."""
    contents = dict(node)
    if place:
        contents[place[0]] = altered(contents[place[0]], place[1:], change)
    else:
        change(contents)
    return type(node)(contents)


def checked(reply, expected=None, declared=None, scale=1.0, limits=LIMITS):
    declared = list(reply) if declared is None else declared
    return reply_problems(reply, expected=expected, declared=declared, scale=scale, limits=limits)


def example():
    return {
        "model": Weights({"conv1.weight": torch.ones(4, 3), "bias": torch.ones(2, dtype=torch.float64)}),
        "prototypes": torch.ones(2, 5),
        "deep": {"rows": torch.tensor([1, 2]), "k": 1.5},
        "n": 12,
    }


def test_a_signature_by_hand():
    assert TreeSpec.of(example() | {"ready": True, "empty": Weights({})}) == TreeSpec(
        {
            "model": WeightsSpec({"bias": TensorSpec("float64", (2,)), "conv1.weight": TensorSpec("float32", (4, 3))}),
            "prototypes": TensorSpec("float32", (2, 5)),
            "deep": TreeSpec({"rows": TensorSpec("int64", (2,)), "k": ScalarSpec("float")}),
            "n": ScalarSpec("int"),
            "ready": ScalarSpec("bool"),
            "empty": WeightsSpec({}),
        }
    )


def test_differences_by_hand():
    reply = example()
    reply["model"] = Weights({"conv1.weight": torch.ones(3, 3), "extra": torch.ones(1)})
    reply["prototypes"] = torch.ones(2, 5, dtype=torch.float16)
    reply["deep"] = {"rows": {}, "k": 1, "more": 2}
    reply["alien"] = 1
    del reply["n"]
    assert differences(TreeSpec.of(example()), reply) == [
        "model: conv1.weight is (3, 3) float32, (4, 3) float32 is expected",
        "model: bias is missing",
        "model: extra is not expected",
        "prototypes is (2, 5) float16, (2, 5) float32 is expected",
        "deep/rows is a tree, (2,) int64 is expected",
        "deep/k is an int, a float is expected",
        "deep/more is not expected",
        "n is missing",
        "and 1 more",
    ]


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (torch.ones(3), "model is (3,) float32, a set of weights is expected"),
        ({"conv1.weight": torch.ones(4, 3)}, "model is a tree, a set of weights is expected"),
        (None, "model is a NoneType, a set of weights is expected"),
        ("x", "model is a str, a set of weights is expected"),
    ],
)
def test_another_kind(value, told):
    assert differences(TreeSpec.of(example()), example() | {"model": value}) == [told]
    assert differences(TreeSpec.of({"model": value}), {"model": Weights({})})[0].startswith("model is a set of weights")


@settings(max_examples=40, deadline=None)
@given(trees())
def test_a_tree_agrees_with_itself(tree):
    assert differences(TreeSpec.of(tree), tree) == []
    assert differences(TreeSpec.of(tree), dict(reversed(tree.items()))) == []
    assert checked(tree, TreeSpec.of(tree)) == []


@settings(max_examples=60, deadline=None)
@given(trees(), st.data())
def test_one_alteration_is_always_caught(tree, data):
    where = list(places(tree))
    assume(where)

    def change(contents):
        name = data.draw(st.sampled_from(list(contents)))
        value = contents[name]
        how = ["name", "gone", "new"] + ["shape", "dtype"] * isinstance(value, torch.Tensor)
        match data.draw(st.sampled_from(how)):
            case "name":
                assume(f"{name}+" not in contents)
                contents[f"{name}+"] = contents.pop(name)
            case "gone":
                del contents[name]
            case "new":
                contents["a name that is new"] = torch.ones(1)
            case "shape":
                contents[name] = value[None]
            case "dtype":
                contents[name] = value.to(torch.int16)

    assert differences(TreeSpec.of(tree), altered(tree, data.draw(st.sampled_from(where)), change))


def test_many_differences_are_counted():
    many = Weights({f"w{k}": torch.ones(1) for k in range(20)})
    problems = differences(TreeSpec.of({"model": many}), {"model": Weights({})})
    assert problems == [*(f"model: w{k} is missing" for k in range(8)), "and 12 more"]


def test_a_sound_reply():
    assert checked(example(), TreeSpec.of(example())) == checked({}) == []
    assert checked({"counts": torch.tensor([10**12]), "text": "nan", "none": torch.zeros(0, 3), "ready": True}) == []


def test_undeclared():
    assert checked(example(), declared={"model", "n", "deep"}) == ["prototypes is not disclosed by the method"]


def test_nan_and_infinity():
    reply = example() | {"loss": math.nan, "deep": {"a": torch.tensor([1, -math.inf]), "b": 1.0}}
    reply["model"] = Weights({"w": torch.tensor([0.0, math.nan]), "v": torch.ones(1), "u": torch.tensor(math.inf)})
    assert checked(reply) == ["NaN or infinity in model/w, model/u, deep/a, loss"]
    many = {"model": Weights({f"w{k}": torch.tensor(math.nan) for k in range(11)})}
    assert checked(many) == [f"NaN or infinity in {', '.join(f'model/w{k}' for k in range(8))}, and 3 more"]


def test_norms_by_hand():
    reply = {"model": Weights({"a": torch.tensor([300.0]), "b": torch.tensor([[400.0]])})}  # 500 together
    assert checked(reply, scale=5.0) == []
    assert checked(reply, scale=4.9) == ["model has a norm of 500, at most 490 is allowed"]
    assert checked(reply, scale=0.01) == ["model has a norm of 500, at most 100 is allowed"]
    assert checked(reply, scale=0.01, limits=Limits(growth=501)) == []
    assert checked({"deep": reply}) == ["deep/model has a norm of 500, at most 100 is allowed"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_squares_beyond_the_type(dtype):
    reply = {"model": Weights({"a": torch.full((4,), 1e30, dtype=dtype)})}
    assert checked(reply) == ["model has a norm of 2e+30, at most 100 is allowed"]


@pytest.mark.parametrize(
    ("tensor", "length"),
    [
        (torch.tensor([3e30, -4e30]), 5e30),
        (torch.tensor([3e-30, -4e-30]), 5e-30),
        (torch.tensor([3e200, 4e200], dtype=torch.float64), 5e200),
        (torch.full((100,), 1.7e308, dtype=torch.float64), sys.float_info.max),
        (torch.tensor([300.0] * 400_000).to(torch.float16), 300 * 400_000**0.5),
        (torch.tensor([3, 4]), 5),
        (torch.tensor([3 + 4j]), 5),
        (torch.tensor([1.0, 2.0, 2.0]).to(torch.float8_e4m3fn), 3),
        (torch.zeros(3), 0),
        (torch.zeros(0), 0),
        (torch.tensor(-2.0), 2),
    ],
)
def test_norm(tensor, length):
    assert norm(tensor) == pytest.approx(length, rel=1e-5)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64, torch.complex64])
def test_norm_of_what_is_not_finite(bad, dtype):
    tensor = torch.ones(1000, dtype=dtype)
    tensor[700] = bad
    assert math.isnan(norm(tensor))
    assert math.isnan(norm(tensor, math.inf))


def test_large_numbers_outside_weights():
    reply = {"prototypes": torch.tensor([0.0, -2e6]), "tau": 3e7, "n": 10**7, "deep": {"z": torch.tensor(1e38)}}
    assert checked(reply) == [
        "prototypes holds 2e+06, at most 1e+06 is allowed",
        "tau holds 3e+07, at most 1e+06 is allowed",
        "n holds 1e+07, at most 1e+06 is allowed",
        "deep/z holds 1e+38, at most 1e+06 is allowed",
    ]
    assert checked(reply, limits=Limits(largest=1e39)) == []


def test_a_reply_that_means_harm():
    deep: dict = {}
    for _ in range(5000):
        deep = {"d": deep}
    reply = {
        "deep": deep | {"x": torch.tensor(math.nan)},
        "red\x1b[31m\u202e\nn": 1,
        "long" * 1000: 1,
        "huge": 10**4000,
        "list": [1],
        "none": None,
        "small": torch.ones(2).to(torch.float8_e5m2),
        "wave": torch.tensor([1e30j]),
        "model": Weights({"n": torch.tensor([2**60]), "bad\n": torch.tensor(math.nan)}),
    }
    declared = {"deep", "huge", "wave", "model", "list", "none", "small"}
    problems = checked(reply, TreeSpec.of({"deep": 1}), declared)
    assert all(line.isprintable() and len(line) < 500 for line in problems)
    assert problems[:3] == [
        "red\\x1b[31m\\u202e | n is not disclosed by the method",
        f"{('long' * 1000)[:119]}… is not disclosed by the method",
        "deep is a tree, an int is expected",
    ]
    assert "list is a list, which no reply may hold" in problems
    assert "none is a NoneType, which no reply may hold" in problems
    assert "NaN or infinity in deep/x, model/bad" in problems
    assert f"huge holds {sys.float_info.max:.3g}, at most 1e+06 is allowed" in problems
    assert "wave holds 1e+30, at most 1e+06 is allowed" in problems
    assert "model has a norm of 1.15e+18, at most 100 is allowed" in problems


def test_expected():
    expected = ExpectedReplies()
    assert expected.of("cnn", "train") is None
    expected.learn("cnn", "train", {"model": Weights({"w": torch.ones(2)}), "n": 1})
    expected.learn("cnn", "observe", {"n": 1})
    expected.learn("vgg", "train", {"model": Weights({"w": torch.ones(3)}), "n": 1})
    signature = expected.of("cnn", "train")
    assert signature == TreeSpec.of({"model": Weights({"w": torch.zeros(2)}), "n": 7})
    assert differences(signature, {"model": Weights({"w": torch.ones(2)})}) == ["n is missing"]
    assert list(expected.of("cnn", "observe").items) == ["n"]
    assert expected.of("vgg", "train") != signature
    assert expected.of("vgg", "observe") is None


def test_items_that_are_not_always_there_are_optional():
    first, more, less = {"model": 1, "n": 2}, {"model": 1, "n": 2, "tau": 0.5}, {"model": 1}
    for order in ([first, more, less], [less, more, first], [more, less, more]):
        expected = ExpectedReplies()
        for reply in order:
            expected.learn("cnn", "train", reply)
        signature = expected.of("cnn", "train")
        assert signature.optional == {"n", "tau"}
        assert all(differences(signature, reply) == [] for reply in (first, more, less))
        assert differences(signature, {"n": 2}) == ["model is missing"]
        assert differences(signature, {"model": 1, "tau": 1}) == ["tau is an int, a float is expected"]
        assert differences(signature, {"model": 1, "c": 1}) == ["c is not expected"]


def test_the_first_that_was_learnt_stays():
    expected = ExpectedReplies()
    expected.learn("cnn", "train", {"model": Weights({"w": torch.ones(2)}), "n": 1})
    expected.learn("cnn", "train", {"model": Weights({"w": torch.ones(3)}), "tau": 0.5})
    assert expected.of("cnn", "train") == TreeSpec.of({"model": Weights({"w": torch.ones(2)}), "n": 1})


def test_limits_are_positive():
    assert TypeAdapter(Limits).validate_python({"growth": 10}) == Limits(10.0)
    for bad in ({"growth": 0}, {"largest": -1}, {"largest": math.nan}):
        with pytest.raises(ValidationError):
            TypeAdapter(Limits).validate_python(bad)


# lengths that differ between honest clients ---------------------------------------------------------------------------
def reply(rows, width=4, dtype=torch.float32):
    return {"gradients": torch.zeros(rows, width, dtype=dtype), "model": Weights({"w": torch.zeros(3)})}


def learnt(*replies):
    expected = ExpectedReplies()
    for each in replies:
        expected.learn("cnn", "train", each)
    return expected.of("cnn", "train")


def test_a_length_that_two_clients_disagree_on_is_free():
    signature = learnt(reply(3), reply(2))
    assert differences(signature, reply(7)) == []
    assert differences(signature, reply(7, width=5)) == ["gradients is (7, 5) float32, (any, 4) float32 is expected"]
    assert differences(signature, reply(3, dtype=torch.int64)) == [
        "gradients is (3, 4) int64, (any, 4) float32 is expected"
    ]


def test_the_lengths_of_weights_are_never_free():
    other = reply(3) | {"model": Weights({"w": torch.zeros(5)})}
    signature = learnt(reply(3), other)
    assert differences(signature, other) == ["model: w is (5,) float32, (3,) float32 is expected"]


def test_another_number_of_sides_changes_nothing():
    odd = reply(3) | {"gradients": torch.zeros(3)}
    assert differences(learnt(reply(3), odd), odd) == ["gradients is (3,) float32, (3, 4) float32 is expected"]
