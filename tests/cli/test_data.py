"""The commands data list, data inspect and data split."""

from __future__ import annotations

import json

from crossward.config.reading import config_from
from crossward.runs.build import prepare


def test_list(cli, monkeypatch, tmp_path, cache):
    (tmp_path / "pictures.zip").touch()
    (cache / "partitions").mkdir(exist_ok=True)
    (cache / "partitions" / "listed.json").touch()
    monkeypatch.setenv("CROSSWARD_DATA", str(tmp_path))
    document = json.loads(cli("data", "list", "--json").out)
    expected = {"phantom", "folder", "table", "npz", "medmnist", "pbc", "ham10000", "femnist"}
    assert expected <= set(document["sources"])
    assert "pictures.zip" in document["in_root"]
    assert "listed" in document["partitions"]
    assert "pictures.zip" in cli("data", "list").out
    (cache / "partitions" / "listed.json").unlink()


def test_inspect(cli, toml_file, config):
    federation = prepare(config_from(config())).federation
    document = json.loads(cli("data", "inspect", toml_file(config()), "--json").out)
    names = ("hospital-1", "hospital-2", "hospital-3")
    assert document["classes"] == list(federation.classes)
    assert document["train"] == dict(zip(names, federation.counts().tolist(), strict=True))
    assert document["sites"]["server"] == {"train": 0, "val": 0, "test": 16}
    output = cli("data", "inspect", toml_file(config()))
    assert output.code == 0
    assert all(name in output.out for name in ("hospital-1", "hospital-3", "server"))


def test_inspect_names_what_deserves_a_second_look(cli, toml_file, config, gallery):
    rows = gallery.rows()
    (gallery.root / rows[-1]["path"]).write_bytes(b"")
    data = gallery.table(rows[:1] + rows[6:]) | {"bad_files": "quarantine"}
    output = cli("data", "inspect", toml_file(config(data=data, run={"rounds": 1})))
    assert "note: site a trains on one sample" in output.out
    assert "left out: row " in output.out.replace("\n", " ")


def test_inspect_prints_names_as_they_are(cli, toml_file, config, gallery):
    rows = gallery.rows()
    (gallery.root / "0" / "left[b].png").write_bytes(b"")
    rows.append(rows[0] | {"path": "0/left[b].png"})
    output = cli("data", "inspect", toml_file(config(data=gallery.table(rows) | {"bad_files": "quarantine"})))
    assert "0/left[b].png" in output.out


def test_split_writes_a_manifest_that_a_run_takes(cli, toml_file, config, tmp_path):
    manifest = tmp_path / "deep" / "p.json"
    output = cli("data", "split", toml_file(config()), "-o", manifest)
    assert output.code == 0
    assert output.out.splitlines()[0] == str(manifest)
    settings = config(partition={"file": str(manifest)}, run={"rounds": 1})
    assert cli("run", toml_file(settings), "-q").code == 0


def test_split_into_a_file_that_is_no_folder(cli, toml_file, config, tmp_path):
    (tmp_path / "file").touch()
    assert cli("data", "split", toml_file(config()), "-o", tmp_path / "file" / "p.json").code == 5
