"""The cache finds what it has, rebuilds what is damaged, and survives being killed."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import signal
import threading
import time
import zipfile
from hashlib import blake2b
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from crossward.data import decode, sealed_files
from crossward.data.archives import FolderFiles, open_files
from crossward.data.cache import DecodedImages, ImagePaths, decode_files
from crossward.data.decode import Frame
from crossward.data.sealed_files import ABANDONED, write_sealed
from crossward.errors import StorageError

FRAME = Frame(4, 1)
ROWS = [ImagePaths("a.png"), ImagePaths("b.png"), ImagePaths("c.png")]


def paint(file: Path, value: int, size: tuple[int, int] = (4, 4), age: float = 3600) -> None:
    Image.new("L", size, value).save(file)
    aged(file, age)


def aged(file: Path, age: float = 3600) -> None:
    then = time.time() - age
    os.utime(file, (then, then))


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    for value, name in enumerate(("a.png", "b.png", "c.png"), start=1):
        paint(folder / name, value)
    return folder


@pytest.fixture
def store(tmp_path):
    return tmp_path / "deep" / "cache"


@pytest.fixture
def decodings(monkeypatch):
    """The paths that were really decoded, in whatever order the threads took them."""
    seen: list[str] = []
    plain = decode.decode_parts
    monkeypatch.setattr(decode, "decode_parts", lambda data, path, *more: seen.append(path) or plain(data, path, *more))
    return seen


def run(root: Path, store: Path, rows: list[ImagePaths] = ROWS, frame: Frame = FRAME) -> DecodedImages:
    with open_files(root) as files:
        return decode_files(files, rows, frame, store)


def values(result: DecodedImages) -> list[int]:
    return [int(image[0, 0, 0]) for image in result.images]


def test_decodes_once(root, store, decodings):
    first = run(root, store)
    second = run(root, store)
    assert sorted(decodings) == ["a.png", "b.png", "c.png"]
    assert values(first) == values(second) == [1, 2, 3]
    assert first.hashes == second.hashes
    assert first.hashes[0] == blake2b(bytes([1] * 16), digest_size=16).hexdigest()
    assert second.rows == (0, 1, 2)
    assert second.problems == ()
    assert second.masks is None
    assert second.file is not None
    assert second.file.read_bytes() == bytes([1] * 16 + [2] * 16 + [3] * 16)


def test_known_stamps_are_not_read_again(root, store, monkeypatch):
    run(root, store)
    with open_files(root) as files:
        monkeypatch.setattr(type(files), "read", lambda *_: pytest.fail("read again"))
        assert values(decode_files(files, ROWS, FRAME, store)) == [1, 2, 3]


@pytest.fixture
def reads(monkeypatch):
    """The paths whose content was read."""
    seen: list[str] = []
    plain = FolderFiles.read
    monkeypatch.setattr(FolderFiles, "read", lambda self, path: seen.append(path) or plain(self, path))
    return seen


def test_the_first_reading_reads_each_file_once(root, store, reads):
    run(root, store)
    assert sorted(reads) == ["a.png", "b.png", "c.png"]
    assert values(run(root, store)) == [1, 2, 3]
    assert len(reads) == 3


def test_a_mask_that_many_images_share_is_read_with_each_of_them_only(root, store, reads):
    paint(root / "m.png", 255)
    run(root, store, [ImagePaths("a.png", "m.png"), ImagePaths("b.png", "m.png")], Frame(4, 1, classes=2))
    assert sorted(reads) == ["a.png", "b.png", "m.png", "m.png"]


def test_a_file_that_vanishes_before_it_is_read_is_left_out_of_the_entry(root, store, monkeypatch):
    plain = FolderFiles.read

    def read(self: FolderFiles, path: str) -> bytes:
        (root / "a.png").unlink(missing_ok=True)
        return plain(self, path)

    monkeypatch.setattr(FolderFiles, "read", read)
    first = run(root, store)
    assert values(first) == [2, 3]
    assert first.rows == (1, 2)
    assert [place for place, _ in first.problems] == [0]
    second = run(root, store)
    assert second.file == first.file
    assert second.problems == first.problems


def test_touched_and_moved_files_are_found_again(root, store, tmp_path, decodings):
    run(root, store)
    aged(root / "a.png", 100)
    root.rename(tmp_path / "moved")
    assert values(run(tmp_path / "moved", store)) == [1, 2, 3]
    assert len(decodings) == 3


def test_changed_content_is_decoded_again(root, store):
    run(root, store)
    paint(root / "b.png", 9, age=100)
    assert values(run(root, store)) == [1, 9, 3]


def test_a_change_within_the_tick_of_a_clock_is_seen(root, store):
    moment = time.time_ns()
    for value in (5, 6):  # same length, same modification time
        Image.new("L", (4, 4), value).save(root / "a.png")
        os.utime(root / "a.png", ns=(moment, moment))
        assert values(run(root, store)) == [value, 2, 3]


def test_a_file_that_changes_after_its_stamp_gets_the_key_of_what_was_read(root, store):
    old = (root / "a.png").stat()
    run(root, store)
    paint(root / "a.png", 8)
    os.utime(root / "a.png", ns=(old.st_atime_ns, old.st_mtime_ns))  # a change that no stamp can show
    assert values(run(root, store, frame=Frame(2, 1))) == [8, 2, 3]
    os.utime(root / "a.png", ns=(old.st_atime_ns, old.st_mtime_ns - 10**9))
    assert values(run(root, store)) == [8, 2, 3]


@pytest.mark.parametrize("frame", [Frame(3, 1), Frame(4, 3), Frame(4, 1, "crop")])
def test_another_frame_is_another_entry(root, store, decodings, frame):
    run(root, store)
    result = run(root, store, frame=frame)
    assert len(decodings) == 6
    assert result.images.shape == (3, frame.size, frame.size, frame.channels)


def test_order_is_part_of_the_entry(root, store):
    run(root, store)
    assert values(run(root, store, rows=ROWS[::-1])) == [3, 2, 1]


def test_an_archive_is_stamped_by_its_entries(root, store, tmp_path, decodings):
    packed = tmp_path / "images.zip"
    with zipfile.ZipFile(packed, "w") as archive:
        for row in ROWS:
            archive.write(root / row.image, row.image)
    aged(packed)
    assert values(run(packed, store)) == values(run(packed, store)) == values(run(root, store)) == [1, 2, 3]
    assert len(decodings) == 3  # the same content under the same names is the same entry


def damage_json(store: Path) -> None:
    file = next(store.glob("[0-9a-f]*.json"))
    file.write_text(file.read_text()[:-10])


def damage_seal(store: Path) -> None:
    file = next(store.glob("[0-9a-f]*.json"))
    content = json.loads(file.read_text())
    content["body"]["ids"][0] = "z.png"
    file.write_text(json.dumps(content))


def shorten(store: Path) -> None:
    file = next(store.glob("*.images"))
    file.write_bytes(file.read_bytes()[:-1])


def remove(store: Path) -> None:
    next(store.glob("*.images")).unlink()


def damage_index(store: Path) -> None:
    next(store.glob("index-*.json")).write_bytes(b"\x00\x01")


@pytest.mark.parametrize("damage", [damage_json, damage_seal, shorten, remove, damage_index])
def test_damage_is_repaired_silently(root, store, decodings, damage):
    run(root, store)
    damage(store)
    assert values(run(root, store)) == [1, 2, 3]
    assert len(decodings) == (3 if damage is damage_index else 6)
    assert values(run(root, store)) == [1, 2, 3]
    assert len(decodings) == (3 if damage is damage_index else 6)


def killed_at(replacement: int, root: Path, store: Path) -> None:
    plain = Path.replace
    calls = []

    def replace(self: Path, target: Path) -> Path:
        calls.append(target)
        if len(calls) == replacement:
            os.kill(os.getpid(), signal.SIGKILL)
        return plain(self, target)

    Path.replace = replace  # type: ignore[method-assign]
    run(root, store)


@pytest.mark.parametrize("replacement", [1, 2, 3])  # the index, the images, the JSON beside them
def test_a_kill_at_any_moment_leaves_nothing_or_all(root, store, replacement):
    child = multiprocessing.get_context("fork").Process(target=killed_at, args=(replacement, root, store))
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    assert not list(store.glob("[0-9a-f]*.json"))
    left = list(store.glob("part-*"))
    assert left
    for file in left:
        aged(file, ABANDONED + 60)
    assert values(run(root, store)) == [1, 2, 3]
    assert not list(store.glob("part-*"))  # swept


def test_two_may_build_at_once(root, store):
    results: list[DecodedImages] = []
    barrier = threading.Barrier(2)

    def build() -> None:
        barrier.wait()
        results.append(run(root, store))

    threads = [threading.Thread(target=build) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [values(result) for result in results] == [[1, 2, 3], [1, 2, 3]]
    assert sorted(file.suffix for file in store.iterdir()) == [".images", ".json", ".json", ".rows"]


@pytest.mark.parametrize(("number", "words"), [(errno.ENOSPC, "is full"), (errno.EROFS, "cannot be written")])
def test_a_full_or_locked_disk_is_a_storage_error(root, store, monkeypatch, number, words):
    def fsync(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(StorageError, match=words) as error:
        run(root, store)
    assert "cache folder" in error.value.hint
    assert [file.suffix for file in store.iterdir()] == [".rows"]  # that it has begun


def test_a_cache_that_cannot_be_a_folder(root, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be written"):
        run(root, tmp_path / "file" / "cache")


def test_bad_rows_are_remembered_and_left_out(root, store, decodings):
    (root / "b.png").write_bytes(b"")
    aged(root / "b.png")
    rows = [*ROWS, ImagePaths("d.png")]
    for _ in range(2):
        result = run(root, store, rows)
        assert values(result) == [1, 3]
        assert result.rows == (0, 2)
        assert len(result.hashes) == 2
        assert result.problems == ((1, "is empty (0 bytes)"), (3, f"no such file in {root}"))
    assert len(decodings) == 3


def test_nothing_left_stores_nothing(root, store):
    result = run(root, store, [ImagePaths("x.png"), ImagePaths("y.png")])
    assert len(result.images) == 0
    assert result.rows == ()
    assert len(result.problems) == 2
    (root / "b.png").write_bytes(b"no image")
    result = run(root, store, [ImagePaths("b.png")])
    assert result.problems == ((0, "has the extension .png of PNG, but its content is not an image"),)
    assert not list(store.glob("*.images"))


def test_masks_are_stored_beside_images(root, store):
    Image.fromarray(np.array([[0, 0, 255, 255]] * 4, dtype=np.uint8)).save(root / "m.png")
    paint(root / "n.png", 255, (4, 5))
    rows = [
        ImagePaths("a.png", "m.png"),
        ImagePaths("b.png", "n.png"),
        ImagePaths("c.png", "m.png"),
        ImagePaths("a.png", "gone.png"),
    ]
    for _ in range(2):
        result = run(root, store, rows, Frame(4, 1, classes=2))
        assert result.rows == (0, 2)
        assert result.masks is not None
        assert result.masks.tolist() == [[[0, 0, 1, 1]] * 4] * 2
        assert result.problems == (
            (1, "its mask n.png is 4 x 5 pixels, but the image is 4 x 4 pixels"),
            (3, f"mask gone.png: no such file in {root}"),
        )
    next(store.glob("*.masks")).write_bytes(b"")
    assert run(root, store, rows, Frame(4, 1, classes=2)).masks.tolist() == [[[0, 0, 1, 1]] * 4] * 2


def test_habits_of_masks_are_remembered(root, store):
    mask = np.repeat([[0, 255]], [12, 4], 1).repeat(16, 0)  # an edge within a block of 8 pixels, where loss blurs it
    Image.fromarray(mask.astype(np.uint8)).save(root / "m.jpg", quality=60)
    Image.new("RGB", (16, 16)).save(root / "wide.png")
    paint(root / "n.jpg", 9)
    rows = [ImagePaths("b.png", "n.jpg"), ImagePaths("gone.png", "m.jpg"), *[ImagePaths("wide.png", "m.jpg")] * 4]
    for _ in range(2):
        faint, grey = run(root, store, rows, Frame(4, 1, classes=2)).notes
        assert faint == "1 mask(s) are stored with loss and bright nowhere: taken as empty; first: n.jpg"
        assert grey.endswith("thresholded at half of the maximum; first: m.jpg, m.jpg, m.jpg")


def test_entries_of_before_there_were_habits_are_found(root, store, decodings):
    run(root, store)
    file = next(store.glob("[0-9a-f]*.json"))
    body = json.loads(file.read_text())["body"]
    del body["habits"]
    write_sealed(file, body)
    assert values(run(root, store)) == [1, 2, 3]
    assert run(root, store).notes == ()
    assert len(decodings) == 3


def test_what_is_known_of_files_is_written_while_it_grows(root, store, monkeypatch):
    monkeypatch.setattr(sealed_files, "WRITTEN_EVERY", -1.0)
    plain = FolderFiles.read

    def read(self: FolderFiles, path: str) -> bytes:
        if path == "c.png":
            raise KeyboardInterrupt
        return plain(self, path)

    monkeypatch.setattr(FolderFiles, "read", read)
    with pytest.raises(KeyboardInterrupt):
        run(root, store)
    [index] = store.glob("index-*.json")
    assert {*sealed_files.read_sealed(index)["files"]} == {"a.png"}  # the first segment; the others are the second
