"""Plain data and arrays out of pickles, which run nothing."""

from __future__ import annotations

import os
import pickle
import random
import struct
import tracemalloc

import numpy as np
import pytest

from crossward.data.restricted_pickle import load_dict
from crossward.errors import DataError

GRID = np.arange(6, dtype=np.uint8).reshape(2, 3)
OLD = (  # {"data": GRID, "labels": [6, 9]} as Python 2 and the numpy of its time pickled it
    b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04K\x00\x85q\x05"
    b"U\x01bq\x06\x87Rq\x07(K\x01K\x02K\x03\x86q\x08cnumpy\ndtype\nq\tU\x02u1q\nK\x00K\x01\x87Rq\x0b(K\x03U\x01|q\x0c"
    b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tq\rb\x89U\x06\x00\x01\x02\x03\x04\x05q\x0etq\x0fbU\x06labelsq\x10]"
    b"q\x11(K\x06K\teu."
)


class Call:
    """Whoever loads this calls `function`."""

    def __init__(self, function, *arguments):
        self.function = function
        self.arguments = arguments

    def __reduce__(self):
        return self.function, self.arguments


def refusal(data: bytes) -> str:
    with pytest.raises(DataError) as error:
        load_dict(data)
    return error.value.what


# what is read --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("protocol", range(6))
def test_plain_data_of_every_protocol(protocol):
    content = {"a": [1, -2, 2**70, True, None], "b": (0.5, ("x", b"", "é"), []), "c": {}, "d": b"\x80" * 300}
    assert load_dict(pickle.dumps(content, protocol)) == content


@pytest.mark.parametrize("protocol", range(6))
def test_arrays_of_every_protocol(protocol):
    turned = np.asfortranarray(np.array([[1, -2, 3], [4, 5, 1 << 40]], dtype=">i8"))
    content = load_dict(pickle.dumps({b"data": GRID.copy(), b"turned": turned}, min(protocol, 4)))
    assert content["data"].dtype == np.uint8
    assert content["data"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert content["turned"].dtype == np.dtype(">i8")
    assert content["turned"].tolist() == [[1, -2, 3], [4, 5, 1 << 40]]


def test_a_pickle_of_python_2():
    content = load_dict(OLD)
    assert list(content) == ["data", "labels"]
    assert content["data"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert content["labels"] == [6, 9]


def test_arrays_are_not_copied():
    data = pickle.dumps({"data": np.zeros(1 << 20, dtype=np.uint8)}, 4)
    tracemalloc.start()
    load_dict(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2.5 * (1 << 20)


# what is refused -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("protocol", range(6))
def test_a_command_is_named_and_not_run(tmp_path, protocol):
    hostile = pickle.dumps({b"data": Call(os.system, f"touch {tmp_path}/run")}, protocol)
    with pytest.raises(DataError) as error:
        load_dict(hostile)
    assert error.value.what == f"the pickle wants to run {os.system.__module__}.system."
    assert "nothing of it was run" in error.value.hint
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (pickle.dumps(Call(eval, "1")), "builtins.eval"),
        (pickle.dumps(Call(getattr, "1", "x"), 2), "__builtin__.getattr"),
        (pickle.dumps(Call(np.load, "x")), "numpy.load"),
        (b"cos\nsystem\n(S'true'\ntR.", "os.system"),
        (b"(S'true'\nios\nsystem\n.", "os.system"),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93.", "os.system"),
        (b"\x80\x04\x8c\x05numpy\x8c\x0dndarray.dumps\x93.", "numpy.ndarray.dumps"),
        (b"\x80\x02cnumpy.core.multiarray\nscalar\n.", "numpy.core.multiarray.scalar"),
        (b"\x80\x02\x82\x01.", "extension 1"),
        (b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x03\x00\x00\x00rot\x86R.", "_codecs.encode with 'rot'"),
        (pickle.dumps(np.array([None]), 2), "numpy.dtype with 'O8'"),
        (pickle.dumps(np.array([1.5]), 2), "numpy.dtype with 'f8'"),
        (pickle.dumps(np.zeros(1, dtype=[("a", "u1")]), 2), "numpy.dtype with 'V1'"),
    ],
)
def test_everything_else_is_refused_by_its_name(data, name):
    assert refusal(data) == f"the pickle wants to run {name}."


def test_a_pickle_cut_short_anywhere():
    for data in (OLD, pickle.dumps({b"data": GRID, b"labels": [6, 9]}, 2)):
        for length in range(len(data)):
            words = refusal(data[:length])
            if not data[:length].endswith(b"."):  # as whole pickles do
                assert words == f"the pickle ({length} bytes) is not a whole pickle of plain data: it is cut short."


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"no pickle", "is not a whole pickle"),
        (b"\x80\x02.", "is not a whole pickle"),
        (b"\x80\x02h\x05.", "Memo value not found at index 5"),
        (b"\x80\x02q\x05.", "is not a whole pickle"),
        (b"\x80\x02K\x01t.", "is not a whole pickle"),
        (b"\x80\x02}K\x01a.", "is not a whole pickle"),
        (b"\x80\x02K\x05K\x01K\x02s.", "is not a whole pickle"),
        (b"\x80\x02}]K\x02s.", "unhashable type: 'list'"),
        (b"\x80\x02}(K\x02u.", "is not a whole pickle"),
        (b"Pname\n.", "unsupported persistent id"),
        (b"\x80\x02]K\x01b.", "is not a whole pickle"),
        (b"\x80\x02K\x01)R.", "is not a whole pickle"),
        (b"\x80\x02cnumpy\nndarray\n)R.", "is not a whole pickle"),
        (b"\x80\x02cnumpy\nndarray\n)\x81.", "is not a whole pickle"),
        (b"\x80\x02cnumpy\nndarray\n.", "holds a str, not a dict"),
        (b"\x80\x02c__builtin__\nbytes\nJ\xff\xff\xff\x7f\x85R.", "is not a whole pickle"),
        (b"\x80\x02}U\x01acnumpy.core.multiarray\n_reconstruct\n)\x81s.", "is not a whole pickle"),
        (b"\x80\x02}U\x01acnumpy.core.multiarray\n_reconstruct\nK\x01K\x02K\x03\x87Rs.", "an array of another class"),
        (pickle.dumps([GRID], 2), "holds a list, not a dict"),
        (pickle.dumps(GRID, 2), "holds a array, not a dict"),
        (
            OLD.replace(b"\x89U\x06\x00\x01\x02\x03\x04\x05", b"\x89U\x05\x00\x01\x02\x03\x04"),
            "of the shape (2, 3) has 5 bytes, not 6",
        ),
        (OLD.replace(b"K\x02K\x03\x86", b"K\x02K\x02\x86"), "of the shape (2, 2) has 6 bytes, not 4"),
        (OLD.replace(b"K\x02K\x03\x86", b"J\xff\xff\xff\xffK\x02\x86"), "has the shape (-1, 2)"),
        (OLD.replace(b"K\x02K\x03\x86", b"U\x01aK\x02\x86"), "has the shape (b'a', 2)"),
    ],
)
def test_damaged_pickles(data, words):
    assert words in refusal(data)


@pytest.mark.parametrize(
    "name", ["numpy.core.multiarray\n_reconstruct", "numpy\ndtype", "_codecs\nencode", "__builtin__\nbytes"]
)
def test_a_pickle_cannot_change_what_the_next_one_meets(name):
    """BUILD sets attributes, of functions and classes as well."""
    stand_in = b"\x80\x02c" + name.encode() + b"\n"
    attribute = b"}U\x0c__setstate__K\x01s"
    for state in (attribute, b"N" + attribute + b"\x86"):
        assert "is not a whole pickle" in refusal(stand_in + state + b"b.")
    assert load_dict(OLD)["data"].tolist() == [[0, 1, 2], [3, 4, 5]]


# what it may cost ----------------------------------------------------------------------------------------------------
HUGE = {
    "string": b"\x80\x02T\xff\xff\xff\x7fab.",
    "text": b"\x80\x02X\xff\xff\xff\x7fab.",
    "bytes": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 60) + b"ab.",
    "number": b"\x80\x02\x8b\xff\xff\xff\x7fab.",
    "digits": b"L" + b"9" * 100_000 + b"L\n.",
    "memo": b"\x80\x02Nr\xff\xff\xff\xff00.",
    "shape": OLD.replace(b"K\x02K\x03\x86", b"J\xff\xff\xff\x7fJ\xff\xff\xff\x7f\x86"),
    "sides": OLD.replace(b"K\x02K\x03\x86", b"(" + b"K\x06" * 5000 + b"t"),
    "encoded": b"\x80\x02c_codecs\nencode\nq\x00X\xa0\x0f\x00\x00" + b"a" * 4000 + b"q\x01X\x06\x00\x00\x00latin1q\x02"
    b"\x86R" + b"h\x00h\x01h\x02\x86R" * 500 + b".",
}  # fmt: skip


@pytest.mark.parametrize("data", HUGE.values(), ids=HUGE)
def test_what_a_file_claims_takes_no_memory(data):
    tracemalloc.start()
    words = refusal(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "is not a whole pickle of plain data" in words
    assert peak < 1 << 20


def test_what_is_nested_without_end_is_read_once():
    nest = b")" + b"q\x00h\x00\x86" * 200  # a pair of a pair of … 2 ** 200 leaves
    assert len(load_dict(b"\x80\x02}U\x01a" + nest + b"s.")["a"]) == 2
    assert "is not a whole pickle" in refusal(b"\x80\x02cnumpy\ndtype\n" + nest + b"R.")
    own = load_dict(b"\x80\x02}U\x01a]q\x00h\x00as.")["a"]
    assert own[0] is own


@pytest.mark.filterwarnings("ignore:invalid escape sequence")
def test_changed_bytes_give_data_or_a_refusal():
    rng = random.Random(0)
    outcomes = set()
    for _ in range(2000):
        data = bytearray(OLD)
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            load_dict(bytes(data))
            outcomes.add("read")
        except DataError:
            outcomes.add("refused")
    assert outcomes == {"read", "refused"}
