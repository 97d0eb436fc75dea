"""A folder and an archive are seen alike; names never lead out of them."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest

from crossward.data.archives import FolderFiles, open_files, safe_path
from crossward.data.bad_files import BadFile, check_policy, set_aside
from crossward.errors import ConfigError, DataError

CONTENT = {"a/1.png": b"one", "a/b/2.png": b"two", "c.txt": b"", "__MACOSX/a/._1.png": b"x", ".git/x": b"x",
           "a/Thumbs.db": b"x", "a/.DS_Store": b"x"}  # fmt: skip


def unpacked(at: Path, content: dict[str, bytes]) -> Path:
    for name, data in content.items():
        (at / name).parent.mkdir(parents=True, exist_ok=True)
        (at / name).write_bytes(data)
    return at


def packed(at: Path, content: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(at, "w") as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    return at


@pytest.mark.parametrize("kind", ["folder", "archive"])
def test_both_list_and_read_alike(tmp_path, kind):
    root = unpacked(tmp_path / "x", CONTENT) if kind == "folder" else packed(tmp_path / "x.zip", CONTENT)
    with open_files(root) as files:
        assert files.listing() == ["a/1.png", "a/b/2.png", "c.txt"]
        assert files.read("a/b/2.png") == b"two"
        assert files.read("a\\b/./2.png") == b"two"
        assert files.stamp("a/1.png")[-1] == (root if kind == "archive" else root / "a/1.png").stat().st_mtime_ns
        for ask in (files.read, files.stamp):
            with pytest.raises(DataError, match="no such file"):
                ask("a/3.png")
            with pytest.raises(DataError, match="out of its root"):
                ask("a/../../x")


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "C:\\scans\\1.png", "c:1.png", "\\\\server\\x", "../1.png", "a/../b", "", ".", "a\0b"]
)
def test_names_that_lead_elsewhere_are_refused(name):
    with pytest.raises(DataError):
        safe_path(name)


def test_safe_normalises():
    assert safe_path("./a\\b//c.png") == "a/b/c.png"
    assert safe_path("a..b/c...png") == "a..b/c...png"


def test_an_archive_with_bad_names_is_refused_with_all_of_them(tmp_path):
    root = packed(tmp_path / "x.zip", {"/abs.png": b"", "a/../../up.png": b"", "good.png": b""})
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(root, "a") as archive:
        archive.writestr("good.png", b"again")
    with pytest.raises(DataError) as error, open_files(root):
        pass
    assert [line.partition(":")[0] for line in error.value.details] == ["/abs.png", "a/../../up.png", "good.png"]


def test_an_encrypted_archive_is_refused(tmp_path):
    root = packed(tmp_path / "x.zip", {"a.png": b"a"})
    data = bytearray(root.read_bytes())
    data[data.index(b"PK\x01\x02") + 8] |= 1  # the flag of encryption in the central directory
    root.write_bytes(data)
    with pytest.raises(DataError) as error, open_files(root):
        pass
    assert error.value.details == ("a.png: is encrypted",)


def test_neither_folder_nor_archive(tmp_path):
    (tmp_path / "x.zip").write_bytes(b"PK\x03\x04 cut short")
    with pytest.raises(DataError, match="neither a folder nor"), open_files(tmp_path / "x.zip"):
        pass
    with pytest.raises(DataError, match="There is no"), open_files(tmp_path / "y"):
        pass


def test_damage_inside_an_archive_is_found(tmp_path):
    root = packed(tmp_path / "x.zip", {"a.png": b"content that is stored"})
    root.write_bytes(root.read_bytes().replace(b"is stored", b"is broken", 1))
    with open_files(root) as files, pytest.raises(DataError, match="damaged in the archive"):
        files.read("a.png")


def test_a_zip_bomb_is_not_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr("crossward.data.archives.LARGEST", 10)
    with (
        open_files(packed(tmp_path / "x.zip", {"a.png": b"0" * 11})) as files,
        pytest.raises(DataError, match="more than any"),
    ):
        files.read("a.png")


def test_linked_folders_are_followed_but_never_in_circles(tmp_path):
    unpacked(tmp_path / "elsewhere", {"1.png": b""})
    root = unpacked(tmp_path / "x", {"a/2.png": b""})
    (root / "b").symlink_to(tmp_path / "elsewhere")
    (root / "a" / "up").symlink_to(root)
    assert FolderFiles(root).listing() == ["a/2.png", "b/1.png"]


@pytest.mark.parametrize("link", ["file", "folder", "dots"])
def test_a_link_that_leads_out_of_its_root_is_not_read(tmp_path, link):
    unpacked(tmp_path / "elsewhere", {"1.png": b"secret"})
    root = unpacked(tmp_path / "x", {"a/2.png": b"ours"})
    name = {"file": "a/1.png", "folder": "b/1.png", "dots": "a/1.png"}[link]
    target = {"file": tmp_path / "elsewhere/1.png", "folder": tmp_path / "elsewhere", "dots": "../../elsewhere/1.png"}
    (root / name if link != "folder" else root / "b").symlink_to(target[link])
    files = FolderFiles(root)
    assert name in files.listing()
    for look in (files.stamp, files.read, lambda path: files.head(path, 4)):
        with pytest.raises(DataError, match="is a link that leads out of its root: copy the file there"):
            look(name)
    assert files.read("a/2.png") == b"ours"


def test_links_within_the_root_and_to_the_folder_of_all_data_are_read(tmp_path, monkeypatch):
    unpacked(tmp_path / "data/pool", {"1.png": b"pooled"})
    root = unpacked(tmp_path / "data/x", {"a/2.png": b"ours"})
    (root / "3.png").symlink_to(root / "a/2.png")
    (root / "b").symlink_to(tmp_path / "data/pool")
    (tmp_path / "short").symlink_to(root)  # the root itself may be a link
    files = FolderFiles(tmp_path / "short")
    assert files.read("3.png") == b"ours"
    with pytest.raises(DataError, match="leads out"):
        files.read("b/1.png")
    monkeypatch.setenv("CROSSWARD_DATA", str(tmp_path / "data"))
    assert FolderFiles(tmp_path / "short").read("b/1.png") == b"pooled"


def test_a_folder_beside_the_root_with_a_longer_name_is_outside(tmp_path):
    unpacked(tmp_path / "images-2", {"1.png": b"secret"})
    root = unpacked(tmp_path / "images", {"2.png": b""})
    (root / "1.png").symlink_to(tmp_path / "images-2" / "1.png")
    with pytest.raises(DataError, match="leads out"):
        FolderFiles(root).read("1.png")


def test_a_folder_or_pipe_is_not_a_file(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "dir.png").mkdir()
    for name in ("pipe.png", "dir.png"):
        with pytest.raises(DataError, match="is not a file"):
            FolderFiles(tmp_path).stamp(name)


BAD = [BadFile("b.png", 12, "is empty"), BadFile("a.png", 3, "is cut"), BadFile("a.png", 3, "is cut")]


def test_settle_refuses_with_every_problem_in_order():
    with pytest.raises(DataError) as error:
        set_aside(Path("t.csv"), BAD, bad_files="refuse", before=["x"], after=["x"])
    assert error.value.details == ("row 3: a.png: is cut", "row 12: b.png: is empty")
    assert "quarantine" in error.value.hint


def test_settle_sets_aside_unless_too_little_is_left():
    left_out = set_aside(Path("t.csv"), BAD, bad_files="quarantine", before=["x", "y"], after=["x", "y"])
    assert left_out == [BAD[1], BAD[0]]
    with pytest.raises(DataError, match="no usable image is left"):
        set_aside(Path("t.csv"), BAD, bad_files="quarantine", before=["x"], after=[])
    with pytest.raises(DataError, match="no image is left of y, z"):
        set_aside(Path("t.csv"), BAD, bad_files="quarantine", before=["x", "y", "z"], after=["x"])
    with pytest.raises(DataError, match="one problem"):
        set_aside(Path("t.csv"), [], bad_files="quarantine", before=["x"], after=["x"], spellings=["spelling"])


def test_only_two_policies():
    assert check_policy("quarantine") == "quarantine"
    with pytest.raises(ConfigError, match="ignore"):
        check_policy("ignore")
