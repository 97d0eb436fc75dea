"""Codes of patients and files: stable for a key, different between keys, and no way back without it."""

from __future__ import annotations

import hashlib
import hmac
import stat
import threading

import pytest

from crossward.data.site_key import SiteKey, shown_name, site_key
from crossward.errors import StorageError


def test_a_code_is_an_hmac_of_the_noun_and_the_value():
    by_hand = hmac.new(b"k" * 32, b"patient\x00P-17", hashlib.sha256).hexdigest()[:16]
    assert SiteKey(b"k" * 32).code("patient", "P-17") == by_hand
    assert SiteKey(b"k" * 32).code("file", "P-17") != by_hand
    assert SiteKey(b"l" * 32).code("patient", "P-17") != by_hand


def test_the_key_is_made_once_and_is_of_its_user_alone(tmp_path):
    key = site_key(tmp_path / "new")
    assert site_key(tmp_path / "new") == key
    assert site_key(tmp_path / "other") != key
    assert stat.S_IMODE((tmp_path / "new" / "site.key").stat().st_mode) == 0o600
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["site.key"]
    assert key.secret.hex() not in repr(key)
    assert str(key.secret) not in repr(key)


def test_processes_that_start_together_have_one_key(tmp_path):
    keys = []
    threads = [threading.Thread(target=lambda: keys.append(site_key(tmp_path))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(keys) == 8
    assert len({key.secret for key in keys}) == 1


def test_a_key_that_others_can_read_or_that_is_damaged_is_refused(tmp_path):
    site_key(tmp_path)
    file = tmp_path / "site.key"
    file.chmod(0o640)
    with pytest.raises(StorageError, match="other users") as error:
        site_key(tmp_path)
    assert "chmod 600" in error.value.hint
    file.chmod(0o600)
    file.write_bytes(b"short")
    with pytest.raises(StorageError, match="no key of 32 bytes"):
        site_key(tmp_path)


def test_names_of_pictures_are_shown_and_those_of_hospitals_are_not():
    assert shown_name("benign/1.png") == "benign/1.png"
    assert shown_name("DOE_JANE/IM1.dcm") == site_key().code("file", "DOE_JANE/IM1.dcm")
    assert shown_name("DOE_JANE/IM1", private=True) == site_key().code("file", "DOE_JANE/IM1")
