"""The command `concepts`, and the section [text] of a configuration."""

from __future__ import annotations

import json
import tomllib

import pytest

from crossward.config.reading import config_from, to_toml
from crossward.config.schema import TextSettings
from crossward.data.sources.phantom.blood import CLASSES
from crossward.errors import ConfigError
from crossward.text.lexicon import LEXICONS

RANDOM = ("--set", "text.encoder=random")


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")


def test_a_known_list(cli):
    output = cli("concepts", "pbc", *RANDOM)
    assert output.code == 0
    assert output.err == ""
    lines = output.out.splitlines()
    assert lines[0] == "8 classes in the words of pbc; encoder random:384, 384 numbers; 24 prompts a class:"
    assert lines[1:3] == ["  an image of basophil.", "  a photo of basophil."]
    assert lines[5] == "  … and 20 more"
    [row] = [line for line in lines if "immature granulocyte" in line]
    assert row.split()[:4] == ["4", "ig", "immature", "granulocyte"]
    assert row.split()[7] == "·"  # after the number, the class, two words and three cosines
    assert len(row.split()) == 4 + 8
    assert max(map(len, lines)) <= 100
    assert "note:" not in output.out


@pytest.mark.parametrize("name", LEXICONS)
def test_every_list_fits_the_width(cli, name):
    output = cli("concepts", name, *RANDOM)
    assert output.code == 0
    assert max(map(len, output.out.splitlines())) <= 100
    assert "…" not in output.out.replace("… and", "")  # nothing is cut off


def test_many_classes_are_shown_by_their_nearest_pairs(cli):
    lines = cli("concepts", "cifar100", *RANDOM).out.splitlines()
    heading = next(n for n, line in enumerate(lines) if line.split() == ["class", "class", "cosine"])
    cosines = [float(line.split()[-1]) for line in lines[heading + 2 :] if line.strip()]
    assert len(cosines) == 15
    assert cosines == sorted(cosines, reverse=True)


def test_json(cli):
    document = json.loads(cli("concepts", "oct-c8", *RANDOM, "--json").out)
    assert document["classes"] == ["AMD", "CNV", "CSR", "DME", "DR", "DRUSEN", "MH", "NORMAL"]
    assert document["words"][4] == "Diabetic retinopathy"
    assert len(document["templates"]) == 28
    assert document["lexicon"] == "oct-c8"
    assert document["encoder"] == "random:384"
    assert document["dim"] == 384
    assert document["warnings"] == []
    assert [len(row) for row in document["similarity"]] == [8] * 8
    assert [row[n] for n, row in enumerate(document["similarity"])] == pytest.approx([1.0] * 8)
    swapped = json.loads(cli("concepts", "oct-c8-released", *RANDOM, "--json").out)
    assert swapped["similarity"][4][0] == pytest.approx(document["similarity"][6][0], abs=1e-6)


def test_the_classes_of_a_configuration(cli, toml_file, config):
    file = toml_file(config(text={"encoder": "random:16", "concepts": {"platelet": "thrombocyte"}, "fraction": 0.01}))
    document = json.loads(cli("concepts", file, "--json").out)
    assert document["classes"] == list(CLASSES)
    assert document["words"] == [*CLASSES[:7], "thrombocyte"]
    assert document["lexicon"] == "pbc"
    assert document["dim"] == 16
    assert len(document["templates"]) == 1
    [warning] = document["warnings"]
    assert "one prompt" in warning
    output = cli("concepts", file, "--set", "text.templates=['see {}']")
    assert "1 prompt a class:\n  see basophil\n" in output.out
    assert "note: one prompt" in output.out


def test_classes_without_words_are_refused_before_anything_else(cli, toml_file, config, gallery):
    output = cli("concepts", toml_file(config(data=gallery.table(gallery.rows()))))
    assert output.code == 2
    assert "cat, dog are known from 'cifar10', but may mean something else here" in output.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["pcb"], "Did you mean 'pbc'?"),
        (["nowhere.toml"], "there is no file 'nowhere.toml'"),
        (["pbc", "--set", "text.encoder=random:x"], "neither an encoder nor a folder"),
        (["pbc", "--set", "text.fraction=0"], "text.fraction"),
        (["pbc", "--set", "text.fraction=1.5"], "text.fraction"),
        (["pbc", "--set", "text.lexicn=pbc"], "Did you mean 'lexicon'?"),
        (["pbc", "--set", "text.lexicon=ham"], "Did you mean 'ham10000'?"),
        (["pbc", "--set", "text.templates=['a {}', 'b']"], "text.templates[1]: 'b' has 0 of them"),
        (["pbc", "--set", "text.concepts.platlet=thrombocyte"], "Did you mean 'platelet'?"),
    ],
)
def test_mistakes_end_with_2_and_say_what_to_do(cli, words, message):
    output = cli("concepts", *words)
    assert output.code == 2
    assert message in output.err
    assert "Traceback" not in output.err


def test_the_section_reads_back():
    config = config_from({"text": {"concepts": {"a b": "c"}, "nouns": ["CT scan"], "seed": 3, "encoder": "biomedclip"}})
    assert config_from(tomllib.loads(to_toml(config.canonical()))) == config
    assert config_from({}).text == TextSettings()


def test_the_encoder_is_the_same_from_another_folder(tmp_path, monkeypatch):
    (tmp_path / "bert").mkdir()
    monkeypatch.chdir(tmp_path)
    assert config_from({"text": {"encoder": "bert"}}).text.encoder == str(tmp_path / "bert")


@pytest.mark.parametrize(("key", "value"), [("fraction", 0), ("fraction", 1.1), ("seed", -1), ("nouns", "CT scan")])
def test_values_out_of_range_are_named(key, value):
    with pytest.raises(ConfigError) as error:
        config_from({"text": {key: value}})
    assert error.value.details[0].startswith(f"text.{key}")
