"""The codec: what goes in comes out, to the bit; what was damaged is refused, and refused as what it is."""

from __future__ import annotations

import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save
from torch import nn

from crossward.core.tree import decode, encode, finite, flatten, items, sizes, unflatten
from crossward.core.weights import Weights
from crossward.errors import StorageError

DTYPES = [
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.bool, torch.float8_e4m3fn, torch.complex64),
    *(torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64),
]
FIRST_VERSION = bytes.fromhex(
    "f8000000000000007b225f5f6d657461646174615f5f223a7b2263726f737377617264223a227b5c2276657273696f6e5c22"
    "3a20312c205c22636865636b73756d5c223a205c223731363232386663343864373536376434396166306464636165626438"
    "3332335c222c205c226f75746c696e655c223a205c227b5c5c5c22615c5c5c223a207b5c5c5c2274656e736f725c5c5c223a"
    "205c5c5c22615c5c5c227d2c205c5c5c226e5c5c5c223a207b5c5c5c2276616c75655c5c5c223a20337d7d5c227d227d2c22"
    "61223a7b226474797065223a22463332222c227368617065223a5b325d2c22646174615f6f666673657473223a5b302c385d"
    "7d7d202020200000803f00000040"
)  # {"a": tensor([1.0, 2.0]), "n": 3}
SCALARS = st.one_of(st.booleans(), st.integers(), st.floats(), st.text(max_size=8))
NAMES = st.text(max_size=6).filter(lambda name: "/" not in name)


@st.composite
def tensors(draw):
    """Random bits (NaN among them) of any type and shape, sometimes laid out unusually."""
    dtype, shape = draw(st.sampled_from(DTYPES)), draw(st.lists(st.integers(0, 3), max_size=3))
    rng = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    count = int(torch.Size(shape).numel())
    high = 2 if dtype == torch.bool else 256
    bits = torch.randint(0, high, (count * dtype.itemsize + 8 * dtype.itemsize,), generator=rng, dtype=torch.uint8)
    start = draw(st.sampled_from([0, 8 * dtype.itemsize]))  # a slice of a larger storage
    tensor = bits[start : start + count * dtype.itemsize].view(dtype).view(shape)
    return draw(st.sampled_from([tensor, tensor.transpose(0, -1) if shape else tensor, tensor.expand(2, *shape)]))


def trees():
    weights = st.dictionaries(st.text(max_size=6), tensors(), max_size=3).map(Weights)
    leaves = st.one_of(SCALARS, tensors(), weights)
    trees = st.recursive(leaves, lambda node: st.dictionaries(NAMES, node, max_size=4), max_leaves=10)
    return st.dictionaries(NAMES, trees, max_size=4)


def same(a, b):
    if isinstance(a, torch.Tensor):
        flat_a, flat_b = (t.contiguous().reshape(-1).view(torch.uint8) for t in (a, b))
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(flat_a, flat_b)
    if isinstance(a, dict | Weights):
        return type(a) is type(b) and list(a) == list(b) and all(same(a[name], b[name]) for name in a)
    return type(a) is type(b) and (a == b or (a != a and b != b))


def example():
    shared = torch.arange(12.0).view(3, 4)
    return {
        "model": Weights({"conv.weight": shared, "conv.bias": torch.ones(2, dtype=torch.bfloat16)}),
        "c": {"rows": shared[1:], "turned": shared.T, "again": shared, "flag": torch.tensor([True, False])},
        "n": 12,
        "note": "Größe 測定 /\\\"'",
        "loss": math.nan,
        "none": torch.zeros(0, 3),
        "step": torch.tensor(7),
        "empty": {},
        "no_weights": Weights({}),
        "ready": True,
    }


@settings(max_examples=100, deadline=None)
@given(trees())
def test_identity(tree):
    data = encode(tree)
    assert same(tree, decode(data))
    assert encode(decode(data)) == data
    assert same(tree, unflatten(*flatten(tree)))


def test_identity_by_example():
    back = decode(encode(example()))
    assert same(example(), back)
    assert back["c"]["turned"].shape == (4, 3)
    assert back["c"]["turned"].is_contiguous()
    back["c"]["again"].zero_()
    assert back["model"]["conv.weight"].sum() == 66  # what shared memory no longer does


def test_a_decoded_tree_can_be_trained_on():
    held = nn.Parameter(torch.ones(2))
    back = decode(encode({"w": held}))["w"]
    assert type(back) is torch.Tensor
    assert not back.requires_grad
    back.add_(1.0)
    assert back.tolist() == [2, 2]
    assert held.tolist() == [1, 1]


def test_the_bytes_are_a_safetensors_file():
    result = load(encode(example()))
    assert {"model/conv.weight", "model/conv.bias", "c/rows", "c/turned", "none", "step"} < set(result)
    assert result["c/rows"].tolist() == [[4, 5, 6, 7], [8, 9, 10, 11]]


def test_the_bytes_are_deterministic():
    assert encode(example()) == encode(example())
    assert encode({"a": 1}) != encode({"a": 2})
    assert encode({"a": 1}) != encode({"a": 1.0})
    assert encode({"a": {}}) != encode({"a": Weights({})})


def test_cut_short_anywhere():
    data = encode(example())
    for length in range(0, len(data), 10):
        with pytest.raises(StorageError):
            decode(data[:length])
    with pytest.raises(StorageError):
        decode(data + b"\0")


@pytest.mark.parametrize("mask", [0x01, 0x04, 0x80, 0xFF])
def test_one_altered_byte_anywhere(mask):
    data = encode(example())
    for at in range(len(data)):
        altered = bytearray(data)
        altered[at] ^= mask
        with pytest.raises(StorageError):
            decode(bytes(altered))


def test_another_version():
    later = encode({"a": 1}).replace(b'\\"version\\": 2', b'\\"version\\": 3')
    with pytest.raises(StorageError, match="format 3, where this crossward reads formats up to 2") as caught:
        decode(later)
    assert "version of crossward that wrote it" in caught.value.hint


def test_a_tree_of_the_first_version():
    """Its checksum is of another kind, and is checked as well."""
    tree = decode(FIRST_VERSION)
    assert tree["n"] == 3
    assert tree["a"].tolist() == [1.0, 2.0]
    with pytest.raises(StorageError, match="checksum"):
        decode(FIRST_VERSION[:-1] + b"\x41")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"short",
        b"hello, this is no such file at all",
        save({"a": torch.ones(2)}),
        save({"a": torch.ones(2)}, {"format": "pt"}),
        save({"a": torch.ones(2)}, {"crossward": "[1, 2]"}),
        save({"a": torch.ones(2)}, {"crossward": "5"}),
        save({"a": torch.ones(2)}, {"crossward": '{"version": 2}'}),
        b"\x03" + bytes(7) + b"[1]",
        b"\x04" + bytes(7) + b"null",
    ],
)
def test_another_kind_of_file(data):
    with pytest.raises(StorageError):
        decode(data)


@pytest.mark.parametrize(
    "data",
    [
        (100_000).to_bytes(8, "little") + b"[" * 100_000,
        save({"a": torch.ones(2)}, {"crossward": '{"version": 2, "checksum": "", "outline": 5}'}),
    ],
    ids=["deep", "outline"],
)
def test_a_hostile_header(data):
    with pytest.raises(StorageError):
        decode(data)


def test_a_moved_tensor_is_noticed():
    data = encode({"a": torch.tensor([1.0]), "b": torch.tensor([2.0])})
    values = b"".join(torch.tensor(v).numpy().tobytes() for v in (1.0, 2.0))
    swapped = data.replace(values, values[4:] + values[:4])
    assert swapped != data
    with pytest.raises(StorageError, match="checksum"):
        decode(swapped)


@pytest.mark.parametrize("tree", [{"a/b": 1}, {"a": {"b/c": torch.ones(1)}}, {1: 2}, {"a": {None: 1}}])
def test_names_without_a_slash(tree):
    with pytest.raises(TypeError, match="a name in a tree is a string without '/'"):
        encode(tree)


def test_a_tensor_named_as_the_metadata_is():
    tree = {"__metadata__": torch.ones(2)}
    try:
        data = encode(tree)
    except TypeError:
        return  # refused before anything is lost: as good
    assert same(decode(data), tree)


@pytest.mark.parametrize(
    ("value", "type_name"),
    [(None, "NoneType"), ([1], "list"), ((1,), "tuple"), (b"x", "bytes"), (1j, "complex"), (nn.Linear(1, 1), "Linear")],
)
def test_unknown_types(value, type_name):
    with pytest.raises(TypeError, match=f"a/b: a {type_name} cannot travel in a tree"):
        encode({"a": {"b": value}})


def test_flatten_by_hand():
    tensors, outline = flatten({"m": Weights({"w": torch.ones(1)}), "k": {"t": torch.ones(2), "n": 3}})
    assert list(tensors) == ["m/w", "k/t"]
    assert json.loads(outline) == {"m": {"weights": ["w"]}, "k": {"tree": {"t": {"tensor": "k/t"}, "n": {"value": 3}}}}
    assert [path for path, _ in items({"k": {"t": torch.ones(2), "n": 3}})] == ["k/t"]


def test_a_tree_may_use_the_words_of_the_outline():
    tree = {"weights": {"tensor": 1, "value": torch.ones(1)}, "tree": {"tree": {"weights": "x"}}, "value": 2}
    assert same(decode(encode(tree)), tree)


def test_sizes_by_hand():
    tree = {
        "model": Weights({"w": torch.ones(3, 4), "b": torch.ones(2, dtype=torch.bfloat16)}),  # 48 + 4
        "flag": torch.tensor([True, False, True]),
        "n": 120,
        "text": "ab",  # with its quotes
        "loss": 0.25,
        "ready": True,
        "deep": {"t": torch.ones(2, dtype=torch.float64), "n": 7},  # 16 + 1
    }
    expected = {"model": 52, "flag": 3, "n": 3, "text": 4, "loss": 4, "ready": 4, "deep": 17}
    assert sizes(tree) == expected


def test_finite():
    assert finite({"a": torch.ones(2), "n": torch.tensor(3), "w": Weights({"x": torch.zeros(0)}), "s": "nan"})
    assert not finite({"a": torch.tensor([1.0, math.nan])})
    assert not finite({"deep": {"w": Weights({"x": torch.tensor(math.inf)})}})


def test_finite_scalars():
    assert not finite({"loss": math.nan})
