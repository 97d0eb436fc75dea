"""TreeStore: memory first, disk beyond the budget, and never a half-written file."""

from __future__ import annotations

import errno
import os

import pytest
import torch

from crossward.core.store import TreeStore
from crossward.core.tree import decode
from crossward.disk import write_atomically
from crossward.errors import StorageError


def tree(value, floats=25):
    """100 bytes of tensor."""
    return {"w": torch.full((floats,), float(value))}


def value(found):
    return float(found["w"][0])


def files(folder):
    return sorted(file.name for file in folder.iterdir()) if folder.exists() else []


def no_space(*arguments, **known):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_within_the_budget_nothing_is_written(tmp_path):
    folder = tmp_path / "memory"
    store = TreeStore(folder, budget=300)
    for key in (2, 0, 1):
        store[key] = tree(key)
    assert list(store) == [0, 1, 2]  # by id, whatever the order of arrival
    assert [value(v) for v in store.values()] == [0, 1, 2]
    assert len(store) == 3
    assert not folder.exists()


def test_beyond_the_budget_the_least_recently_used_goes_to_disk(tmp_path):
    store = TreeStore(tmp_path, budget=250)
    store[0], store[1] = tree(0), tree(1)
    assert value(store[0]) == 0  # now 1 is the colder
    store[2] = tree(2)
    assert files(tmp_path) == ["00001.1.safetensors"]
    assert list(store) == [0, 1, 2]
    assert 1 in store
    assert value(store[1]) == 1  # comes back, and 0 makes room
    assert files(tmp_path) == ["00000.2.safetensors", "00001.1.safetensors"]
    store[3] = tree(3)  # 2 goes; 1 is on disk already
    assert value(store[0]) == 0
    assert len(files(tmp_path)) == 3
    assert [value(store[key]) for key in store] == [0, 1, 2, 3]


def test_a_tree_larger_than_the_budget_is_kept(tmp_path):
    store = TreeStore(tmp_path, budget=10)
    store[0] = tree(0)
    assert value(store[0]) == 0
    assert files(tmp_path) == []


def test_without_a_folder_it_makes_its_own_and_removes_it():
    store = TreeStore(budget=150)
    store[0], store[1] = tree(0), tree(1)
    assert value(store[0]) == 0
    place = store._folder
    assert len(files(place)) == 2
    store.close()
    assert not place.exists()


def test_a_changed_tree_gets_a_new_file(tmp_path):
    store = TreeStore(tmp_path)
    store[0], store[1] = tree(0), tree(1)
    first = store.commit()
    assert first == {"0": "00000.1.safetensors", "1": "00001.2.safetensors"}
    assert store.commit() == first  # nothing changed, nothing written
    before = (tmp_path / first["0"]).read_bytes()
    store[0] = tree(5)
    second = store.commit()
    assert second == {"0": "00000.3.safetensors", "1": "00001.2.safetensors"}
    assert (tmp_path / first["0"]).read_bytes() == before
    assert value(decode((tmp_path / second["0"]).read_bytes())) == 5


def test_restore_and_discard(tmp_path):
    store = TreeStore(tmp_path)
    store[0], store[1] = tree(0), tree(1)
    checkpoint = store.commit()
    store[0], store[4] = tree(9), tree(4)
    later = store.commit()
    again = TreeStore(tmp_path)
    again[7] = tree(7)
    again.restore(checkpoint)
    assert list(again) == [0, 1]
    assert [value(v) for v in again.values()] == [0, 1]
    again[1] = tree(11)
    now = again.commit()
    assert now["0"] == checkpoint["0"]
    assert now["1"] not in checkpoint.values()
    again.discard_unnamed(also_named=[later["4"]])
    assert files(tmp_path) == sorted([now["0"], now["1"], later["4"]])
    again.discard_unnamed()
    assert files(tmp_path) == sorted(now.values())
    assert [value(v) for v in again.values()] == [0, 11]


def test_discard_without_a_folder_is_nothing(tmp_path):
    TreeStore().discard_unnamed()
    TreeStore(tmp_path / "absent").discard_unnamed()
    assert files(tmp_path) == []


def test_restore_names_what_is_missing(tmp_path):
    store = TreeStore(tmp_path)
    store[0], store[1] = tree(0), tree(1)
    checkpoint = store.commit()
    (tmp_path / checkpoint["1"]).unlink()
    with pytest.raises(StorageError, match="missing") as caught:
        TreeStore(tmp_path).restore(checkpoint)
    assert caught.value.details == (checkpoint["1"],)


def test_delete_and_unknown_keys(tmp_path):
    store = TreeStore(tmp_path, budget=150)
    store[0], store[1] = tree(0), tree(1)
    del store[0]  # on disk
    del store[1]  # in memory
    assert list(store) == []
    assert store.commit() == {}
    for act in (store.__getitem__, store.__delitem__):
        with pytest.raises(KeyError):
            act(0)
    assert store.get(0) is None


def test_replacing_a_tree_counts_it_once(tmp_path):
    store = TreeStore(tmp_path, budget=250)
    for round in range(5):
        store[0], store[1] = tree(round), tree(round)
    assert files(tmp_path) == []


def damaged(tmp_path):
    store = TreeStore(tmp_path)
    store[0] = tree(0)
    file = tmp_path / store.commit()["0"]
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(bytes(data))
    again = TreeStore(tmp_path)
    again.restore({"0": file.name})
    return again, file


def test_a_damaged_file(tmp_path):
    store, _ = damaged(tmp_path)
    with pytest.raises(StorageError, match="damaged"):
        store[0]


def test_a_damaged_file_is_named(tmp_path):
    store, file = damaged(tmp_path)
    with pytest.raises(StorageError) as caught:
        store[0]
    assert file.name in str(caught.value)


def test_a_file_that_went_away(tmp_path):
    store = TreeStore(tmp_path, budget=150)
    store[0], store[1] = tree(0), tree(1)
    (tmp_path / "00000.1.safetensors").unlink()
    with pytest.raises(StorageError, match=r"00000\.1"):
        store[0]


def test_a_full_disk(tmp_path, monkeypatch):
    store = TreeStore(tmp_path)
    store[0] = tree(0)
    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(StorageError, match=r"cannot write .*00000\.1\.safetensors: No space left") as caught:
        store.commit()
    assert "MiB are free" in caught.value.hint
    assert "crossward resume" in caught.value.hint
    assert files(tmp_path) == []  # no half file
    monkeypatch.undo()
    assert value(decode((tmp_path / store.commit()["0"]).read_bytes())) == 0  # room was made: it goes on


def test_a_full_disk_loses_nothing(tmp_path, monkeypatch):
    store = TreeStore(tmp_path, budget=150)
    store[0] = tree(0)
    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(StorageError):
        store[1] = tree(1)
    monkeypatch.undo()
    assert value(store[0]) == 0


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    store = TreeStore(tmp_path / "file" / "memory")
    store[0] = tree(0)
    with pytest.raises(StorageError, match="cannot write"):
        store.commit()


@pytest.mark.parametrize("where", ["fsync", "open", "replace"])
def test_write_whole_leaves_the_old_file_whole(tmp_path, monkeypatch, where):
    file = tmp_path / "state"
    write_atomically(file, b"old")
    if where == "fsync":
        monkeypatch.setattr(os, "fsync", no_space)
    else:
        monkeypatch.setattr(type(file), where, no_space)
    with pytest.raises(StorageError, match="No space left"):
        write_atomically(file, b"new and longer")
    monkeypatch.undo()
    assert file.read_bytes() == b"old"
    assert files(tmp_path) == ["state"]
    write_atomically(file, b"new")
    assert file.read_bytes() == b"new"


def test_write_whole_into_no_folder(tmp_path):
    with pytest.raises(StorageError, match="No such file or directory"):
        write_atomically(tmp_path / "absent" / "deeper" / "state", b"x")


def test_a_snapshot_stays_as_it_was(tmp_path):
    store = TreeStore(tmp_path, budget=250)
    store[0], store[1] = tree(0), tree(1)
    before = store.snapshot()
    store[0], store[2], store[3] = tree(10), tree(12), tree(13)  # replaced, added, and some go to disk
    names = store.commit(before)
    assert {key: value(decode((tmp_path / name).read_bytes())) for key, name in names.items()} == {"0": 0, "1": 1}
    store.discard_unnamed(snapshots=[before])
    assert {*names.values()} <= {*files(tmp_path)}
    store.commit()
    store.discard_unnamed()
    assert names["0"] not in files(tmp_path)
    assert [value(each) for each in store.values()] == [10, 1, 12, 13]
