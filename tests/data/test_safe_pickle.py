"""Plain data out of pickles, which are never run."""

from __future__ import annotations

import os
import pickle
import random
import struct
import tracemalloc

import numpy as np
import pytest

from crossward.data import safe_pickle
from crossward.data.safe_pickle import loads
from crossward.errors import DataError

GRID = np.arange(6, dtype=np.uint8).reshape(2, 3)
OLD = (  # {"data": GRID, "labels": [6, 9]} as Python 2 and the numpy of its time pickled it
    b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04K\x00\x85q\x05"
    b"U\x01bq\x06\x87Rq\x07(K\x01K\x02K\x03\x86q\x08cnumpy\ndtype\nq\tU\x02u1q\nK\x00K\x01\x87Rq\x0b(K\x03U\x01|q\x0c"
    b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tq\rb\x89U\x06\x00\x01\x02\x03\x04\x05q\x0etq\x0fbU\x06labelsq\x10]"
    b"q\x11(K\x06K\teu."
)


class Called:
    """Whoever loads this calls `what`."""

    def __init__(self, what, *arguments):
        self.what, self.arguments = what, arguments

    def __reduce__(self):
        return self.what, self.arguments


def refused(data: bytes) -> str:
    with pytest.raises(DataError) as error:
        loads(data, "batch")
    return error.value.what


# what is read --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("protocol", range(5))
def test_plain_data_of_every_protocol(protocol):
    content = {b"a": [1, -2, 2**70, True, None], "b": (0.5, ("x", b"", "é"), []), 7: {}, b"\xff\x00": b"\x80" * 300}
    assert loads(pickle.dumps(content, protocol), "batch") == content


@pytest.mark.parametrize("protocol", range(5))
def test_arrays_of_every_protocol(protocol):
    turned = np.asfortranarray(np.array([[1, -2, 3], [4, 5, 1 << 40]], dtype=">i8"))
    read = loads(pickle.dumps({b"data": GRID, b"turned": turned, b"again": [GRID]}, protocol), "batch")
    assert (read[b"data"].dtype, read[b"data"].tolist()) == (np.uint8, [[0, 1, 2], [3, 4, 5]])
    assert (read[b"turned"].dtype, read[b"turned"].tolist()) == (np.dtype(">i8"), [[1, -2, 3], [4, 5, 1 << 40]])
    assert read[b"again"][0] is read[b"data"]


def test_a_pickle_of_python_2():
    read = loads(OLD, "batch")
    assert list(read) == [b"data", b"labels"]
    assert (read[b"data"].tolist(), read[b"labels"]) == ([[0, 1, 2], [3, 4, 5]], [6, 9])


def test_arrays_are_not_copied():
    data = pickle.dumps(np.zeros(1 << 20, dtype=np.uint8), 4)
    tracemalloc.start()
    loads(data, "batch")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2.5 * (1 << 20)  # the bytes as the reader of the operations passes them on


# what is refused -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("protocol", range(6))
def test_a_command_is_named_and_not_run(tmp_path, protocol):
    hostile = pickle.dumps({b"data": Called(os.system, f"touch {tmp_path}/run")}, protocol)
    assert refused(hostile) == f"batch wants to run {os.system.__module__}.system."
    assert not (tmp_path / "run").exists()
    with pytest.raises(DataError) as error:
        loads(hostile, "batch")
    assert "nothing of it was run" in error.value.hint


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (pickle.dumps(Called(eval, "1")), "builtins.eval"),
        (pickle.dumps(Called(np.load, "x")), "numpy.load"),
        (b"cos\nsystem\n(S'true'\ntR.", "os.system"),
        (b"(S'true'\nios\nsystem\n.", "INST os system"),
        (b"\x80\x02cnumpy.core.multiarray\nscalar\n.", "numpy.core.multiarray.scalar"),
        (b"\x80\x02U\x01a\x82\x01.", "EXT1 1"),
        (b"Pname\n.", "PERSID name"),
        (b"\x80\x02cnumpy\nndarray\n)\x81.", "NEWOBJ"),
        (b"\x80\x02cnumpy\nndarray\n)R.", "numpy.ndarray with ()"),
        (b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x03\x00\x00\x00rot\x86R.", "_codecs.encode with ('a', 'rot')"),
        (pickle.dumps(np.array([None]), 2), "numpy.dtype with ('O8', False, True)"),
        (pickle.dumps(np.array([1.5]), 2), "numpy.dtype with ('f8', False, True)"),
        (pickle.dumps(np.zeros(1, dtype=[("a", "u1")]), 2), "numpy.dtype with ('V1', False, True)"),
        (b"\x80\x02]K\x01b.", "a list with the state 1"),
        (b"\x80\x02K\x01)R.", "int with ()"),
    ],
)
def test_everything_else_is_refused_by_its_name(data, name):
    assert refused(data) == f"batch wants to run {name}."


def test_a_pickle_cut_short_anywhere():
    for data in (OLD, pickle.dumps({b"data": GRID, b"labels": [6, 9]}, 2)):
        for length in range(len(data)):
            assert f"batch ({length} bytes) is not a whole pickle of plain data" in refused(data[:length])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"no pickle", "opcode b'n' unknown"),
        (b"\x80\x02.", "takes more from the stack than is there"),
        (b"\x80\x02h\x05.", "recalls 5"),
        (b"\x80\x02q\x05.", "remembers what is not there"),
        (b"\x80\x02K\x01t.", "mark that is not there"),
        (b"\x80\x02}K\x01a.", "adds to a list that is not there"),
        (b"\x80\x02]K\x01K\x02s.", "adds to a dict that is not there"),
        (b"\x80\x02}]K\x02s.", "a key is a list"),
        (b"\x80\x02}(K\x02u.", "a key has no value"),
        (b"\x80\x02cnumpy\nndarray\n.", "ends with an array that has no values, or with a name"),
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
    assert words in refused(data)


# what it may cost ----------------------------------------------------------------------------------------------------
HUGE = {
    "string": b"\x80\x02T\xff\xff\xff\x7fab.",
    "text": b"\x80\x02X\xff\xff\xff\x7fab.",
    "bytes": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 60) + b"ab.",
    "number": b"\x80\x02\x8b\xff\xff\xff\x7fab.",
    "digits": b"L" + b"9" * 100_000 + b"L\n.",
    "shape": OLD.replace(b"K\x02K\x03\x86", b"J\xff\xff\xff\x7fJ\xff\xff\xff\x7f\x86"),
    "sides": OLD.replace(b"K\x02K\x03\x86", b"(" + b"K\x06" * 5000 + b"t"),
    "encoded": b"\x80\x02c_codecs\nencode\nq\x00X\xa0\x0f\x00\x00" + b"a" * 4000 + b"q\x01X\x06\x00\x00\x00latin1q\x02"
    b"\x86R" + b"h\x00h\x01h\x02\x86R" * 500 + b".",
}  # fmt: skip


@pytest.mark.parametrize("data", HUGE.values(), ids=HUGE)
def test_what_a_file_claims_takes_no_memory(data):
    tracemalloc.start()
    words = refused(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "is not a whole pickle of plain data" in words
    assert peak < 1 << 20


def test_too_many_operations(monkeypatch):
    monkeypatch.setattr(safe_pickle, "STEPS", 20)
    assert loads(b"\x80\x02](" + b"}" * 15 + b"e.", "batch")[14] == {}  # 20 operations
    assert "more than 20 operations" in refused(b"\x80\x02](" + b"}" * 16 + b"e.")


def test_what_is_nested_without_end_is_walked_once():
    nest = b")" + b"q\x00h\x00\x86" * 200  # a pair of a pair of … 2 ** 200 leaves
    assert len(loads(b"\x80\x02" + nest + b".", "batch")) == 2
    assert refused(b"\x80\x02cnumpy\ndtype\n" + nest + b"R.").startswith("batch wants to run numpy.dtype with ")
    own = loads(b"\x80\x02]q\x00h\x00a.", "batch")
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
            loads(bytes(data), "batch")
            outcomes.add("read")
        except DataError:
            outcomes.add("refused")
    assert outcomes == {"read", "refused"}
