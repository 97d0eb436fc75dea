"""`crossward data locate`: from the code in a quarantine list back to the file, where the files are."""

from __future__ import annotations

from crossward.data.site_key import site_key


def test_a_code_is_found_again(tmp_path, cli):
    (tmp_path / "DOE").mkdir()
    (tmp_path / "DOE" / "IM1").write_bytes(b"x")
    code = site_key().code("file", "DOE/IM1")
    answer = cli("data", "locate", tmp_path, f"{code}/3")
    assert answer.code == 0
    assert answer.out.strip() == f"{code}: DOE/IM1"
    wrong = cli("data", "locate", tmp_path, "0123456789abcdef")
    assert wrong.code == 3
    assert "1 code(s) are of no file below" in wrong.err
    assert "Name the folder that data.path named" in wrong.err
