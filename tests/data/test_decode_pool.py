"""Worker processes decode what this process would, survive what kills them, and leave what they decoded behind."""

from __future__ import annotations

import io
import multiprocessing
import os
import signal
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from crossward.data import decode_pool, segments
from crossward.data.archives import open_files
from crossward.data.cache import DecodedImages, ImagePaths, decode_files
from crossward.data.decode import Frame
from crossward.data.reading_progress import ReadingLines, shown_by

FRAME = Frame(8, 3)
COUNT = 40
NAMES = [f"{number:02d}.png" for number in range(COUNT)]
ROWS = [ImagePaths(name) for name in NAMES]


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    rng = np.random.default_rng(0)
    old = time.time() - 3600
    for name in NAMES:
        Image.fromarray(rng.integers(0, 256, (12, 10, 3), dtype=np.uint8)).save(folder / name)
        os.utime(folder / name, (old, old))
    return folder


@pytest.fixture
def store(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def at_once(monkeypatch):
    """Processes are started without a look at how long it takes here; segments are of few rows."""
    monkeypatch.setattr(decode_pool, "PROBED", -1.0)
    monkeypatch.setattr(decode_pool, "PAYS", -1.0)
    monkeypatch.setattr(decode_pool, "worker_count", lambda: 2)
    monkeypatch.setattr(segments, "ROWS", 4)


def run(root: Path, store: Path, rows: list[ImagePaths] = ROWS, frame: Frame = FRAME) -> DecodedImages:
    with open_files(root) as files:
        return decode_files(files, rows, frame, store)


@pytest.fixture
def expected(root, tmp_path) -> bytes:
    return content(run(root, tmp_path / "another cache"))


def content(result: DecodedImages) -> bytes:
    return result.images.numpy().tobytes()


def rows_decoded_here(monkeypatch) -> list[int]:
    """How many rows each call decodes in this process."""
    seen: list[int] = []
    plain = decode_pool.decode_segment

    def counting(files, frame, rows):
        seen.append(len(rows))
        return plain(files, frame, rows)

    monkeypatch.setattr(decode_pool, "decode_segment", counting)
    return seen


def zipped(root: Path) -> Path:
    file = root.with_suffix(".zip")
    with zipfile.ZipFile(file, "w") as archive:
        for name in NAMES:
            archive.write(root / name, name)
    old = time.time() - 3600
    os.utime(file, (old, old))
    return file


def test_a_small_set_starts_no_process(root, store, monkeypatch):
    monkeypatch.setattr(decode_pool, "DecodeProcess", lambda *_: pytest.fail("a process for nothing"))
    assert len(run(root, store).rows) == COUNT


@pytest.mark.parametrize("pack", [lambda root: root, zipped], ids=["folder", "zip"])
def test_processes_decode_the_same(root, store, expected, at_once, monkeypatch, pack):
    here = rows_decoded_here(monkeypatch)
    result = run(pack(root), store)
    assert content(result) == expected
    assert result.rows == tuple(range(COUNT))
    assert sum(here) <= 1  # by which the time is judged
    assert sorted(file.suffix for file in store.iterdir()) == [".images", ".json", ".json", ".rows"]


def test_masks_and_bad_files_come_from_processes_too(root, store, tmp_path, at_once):
    for name in NAMES:
        Image.fromarray(np.tile(np.array([0, 255], dtype=np.uint8), (12, 5))).save(root / f"m{name}")
    (root / NAMES[7]).write_bytes(b"")
    (root / f"m{NAMES[9]}").unlink()
    rows = [ImagePaths(name, f"m{name}") for name in NAMES]
    result = run(root, store, rows, Frame(8, 3, classes=2))
    assert result.problems == ((7, "is empty (0 bytes)"), (9, f"mask m{NAMES[9]}: no such file in {root}"))
    assert result.rows == tuple(place for place in range(COUNT) if place not in (7, 9))
    assert result.masks is not None
    assert result.masks.shape == (COUNT - 2, 8, 8)
    assert result.masks.float().mean() == 0.5
    assert result.masks_file is not None
    assert result.masks_file.read_bytes() == result.masks.numpy().tobytes()


def killed_after(stored: int, workers: int, root: Path, store: Path) -> None:
    """Read, and be killed once so many segments are stored."""
    decode_pool.worker_count = lambda: workers  # type: ignore[assignment]  # in a process of its own
    plain = decode_pool.stored_segment
    found = []

    def reading(cache: Path, key: str):
        segment = plain(cache, key)
        found.extend([key] if segment is not None else [])
        if len(found) == stored:
            os.kill(os.getpid(), signal.SIGKILL)
        return segment

    def storing(cache: Path, key: str, segment) -> None:
        segments.store_segment(cache, key, segment)
        reading(cache, key)

    decode_pool.stored_segment = reading  # type: ignore[assignment]
    decode_pool.store_segment = storing  # type: ignore[assignment]
    run(root, store)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_reading_that_was_killed_goes_on_where_it_was(root, store, expected, at_once, monkeypatch, workers):
    child = multiprocessing.get_context("fork").Process(target=killed_after, args=(6, workers, root, store))
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    assert not list(store.glob("*.images"))
    deadline = time.monotonic() + 10
    while workers > 1 and not_yet_quiet(store) and time.monotonic() < deadline:
        time.sleep(0.05)  # the processes end with their parent, after the segment they are at
    left = len(list(store.glob("segment-*")))
    assert left >= 6
    monkeypatch.setattr(decode_pool, "worker_count", lambda: 1)
    here = rows_decoded_here(monkeypatch)
    assert content(run(root, store)) == expected
    assert sum(here) <= COUNT - 4 * (6 - 2)  # the first segments are smaller
    assert not list(store.glob("segment-*"))


def not_yet_quiet(store: Path) -> bool:
    return bool(list(store.glob("part-*")) and len(list(store.glob("segment-*"))) < 6)


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: b"", lambda data: data[:-1] + b"\x00\x01"])
def test_a_damaged_segment_is_decoded_again(root, store, expected, at_once, monkeypatch, damage):
    monkeypatch.setattr(decode_pool, "worker_count", lambda: 1)
    removed = []
    with monkeypatch.context() as patch:
        patch.setattr("crossward.data.cache._remove_segments", lambda *given: removed.append(given))
        run(root, store)
    kept = sorted(store.glob("segment-*"))
    assert len(kept) > 5
    kept[3].write_bytes(damage(kept[3].read_bytes()))
    for file in store.glob("*.images"):
        file.unlink()
    here = rows_decoded_here(monkeypatch)
    assert content(run(root, store)) == expected
    assert 0 < sum(here) <= 2 * segments.ROWS


def patched_processes(folder: Path, monkeypatch, lines: str) -> None:
    """Processes that are started from now on run these lines first."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(lines)
    monkeypatch.setenv("PYTHONPATH", str(folder))


ENDS = """
import os, sys
if "crossward.data.decode_worker" in sys.orig_argv:
    from crossward.data import decode
    plain = decode.decode_parts
    def decode_parts(data, path, *more):
        if path == "21.png":
            print("a library says something")
            os.kill(os.getpid(), {number})
        return plain(data, path, *more)
    decode.decode_parts = decode_parts
"""


@pytest.mark.parametrize("ended_by", [signal.SIGSEGV, signal.SIGKILL])
def test_a_file_that_kills_its_process_is_a_bad_file(root, store, expected, tmp_path, at_once, monkeypatch, ended_by):
    patched_processes(tmp_path / "patch", monkeypatch, ENDS.format(number=int(ended_by)))
    result = run(root, store)
    assert result.problems == ((21, decode_pool.KILLS),)
    assert len(result.rows) == COUNT - 1
    monkeypatch.delenv("PYTHONPATH")
    again = run(root, store)
    if ended_by == signal.SIGSEGV:  # it would crash again
        assert again.problems == result.problems
    else:  # the system had too little memory, then
        assert content(again) == expected


def test_a_killed_process_is_replaced(root, store, expected, at_once, monkeypatch):
    started = []

    class Killed(decode_pool.DecodeProcess):
        def __init__(self, *given) -> None:
            super().__init__(*given)
            started.append(self)
            if len(started) == 1:
                os.kill(self.process.pid, signal.SIGKILL)

    monkeypatch.setattr(decode_pool, "DecodeProcess", Killed)
    assert content(run(root, store)) == expected
    assert len(started) == 4  # two, one in place of the first, and one for the files of its segment


def test_without_processes_everything_is_decoded_here(root, store, expected, at_once, monkeypatch, tmp_path):
    patched_processes(tmp_path / "patch", monkeypatch, "raise SystemExit(1)")
    here = rows_decoded_here(monkeypatch)
    assert content(run(root, store)) == expected
    assert sum(here) == COUNT


def test_two_readings_at_once_do_not_spoil_each_other(root, store, expected, at_once):
    with multiprocessing.get_context("fork").Pool(2) as both:
        results = [both.apply_async(read_content, (root, store)) for _ in range(2)]
        assert [one.get(60) for one in results] == [expected, expected]
    assert sorted(file.suffix for file in store.iterdir()) == [".images", ".json", ".json", ".rows"]
    assert content(run(root, store)) == expected


def read_content(root: Path, store: Path) -> bytes:
    return content(run(root, store))


def test_a_file_that_changed_meanwhile_gets_the_key_of_what_was_read(root, store, expected, at_once, monkeypatch):
    run(root, store)
    old = (root / NAMES[30]).stat()
    Image.new("RGB", (10, 12), (9, 9, 9)).save(root / NAMES[30])
    os.utime(root / NAMES[30], ns=(old.st_atime_ns, old.st_mtime_ns))
    smaller = run(root, store, frame=Frame(4, 3))
    assert (smaller.images[30] == 9).all()


def test_processes_are_as_many_as_processors_and_memory_allow(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    for memory, count in ((64 << 30, 16), (5 * decode_pool.MEMORY, 5), (0, 1), (None, 16)):
        monkeypatch.setattr(decode_pool, "available_bytes", lambda memory=memory: memory)
        assert decode_pool.worker_count() == count


def test_names_of_patients_stay_out_of_segments(root, store, at_once, monkeypatch):
    for name in NAMES:
        (root / name).rename(root / f"Wintergreen-{name}.dcm")
    monkeypatch.setattr("crossward.data.cache._remove_segments", lambda *_: None)
    rows = [ImagePaths(f"Wintergreen-{name}.dcm") for name in NAMES]
    run(root, store, rows)
    stored = list(store.glob("segment-*"))
    assert stored
    assert not any(b"Wintergreen" in file.read_bytes() for file in store.iterdir())


def test_segments_keep_the_rows_of_a_file_together():
    rows = [ImagePaths(f"{volume}.nii", part=f"axial:{slice}") for volume in range(3) for slice in range(100)]
    lengths = [len(some) for some in segments.split_rows(rows, FRAME)]
    assert lengths == [100, 100, 100]
    large = Frame(1024, 3)  # 4 MiB a row with its mask
    assert max(len(some) for some in segments.split_rows(rows, large)) == 8
    assert [len(some) for some in segments.split_rows(ROWS, FRAME)] == [1, 2, 4, 8, 16, 9]


def test_progress_is_a_line_now_and_then():
    now = [0.0]
    out = io.StringIO()
    lines = ReadingLines(out, lambda: now[0])
    lines.start("decoding images", 1000)
    for second in range(100):
        now[0] = float(second)
        lines.advance(10)
    assert out.getvalue().splitlines() == [
        "decoding images: 110 of 1,000",
        "decoding images: 410 of 1,000",
        "decoding images: 710 of 1,000",
    ]


def test_all_rows_are_counted(root, store, at_once):
    seen: dict[str, int] = {}

    class Counting:
        def start(self, what: str, total: int) -> None:
            self.what = what
            assert total == COUNT

        def advance(self, done: int) -> None:
            seen[self.what] = seen.get(self.what, 0) + done

        def end(self) -> None:
            seen[f"{self.what} ended"] = 1

    with shown_by(Counting()):
        run(root, store)
    assert seen == {
        "looking at files": COUNT,
        "looking at files ended": 1,
        "decoding images": COUNT,
        "decoding images ended": 1,
    }


def test_processes_need_no_torch():
    import subprocess

    code = "import crossward.data.decode_worker, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
