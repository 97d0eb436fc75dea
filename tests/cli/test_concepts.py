"""The command `concepts`, and the section [text] of a configuration."""

from __future__ import annotations

import json
import tomllib

import pytest

from crossward.config import toml
from crossward.config.reading import checked
from crossward.config.schema import Text
from crossward.data.sources.phantom.blood import CLASSES
from crossward.errors import ConfigError
from crossward.text.lexicon import LEXICONS

RANDOM = ("--set", "text.encoder=random")


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")


def test_a_known_list(cli):
    said = cli("concepts", "pbc", *RANDOM)
    assert (said.code, said.err) == (0, "")
    told = said.out.splitlines()
    assert told[0] == "8 classes in the words of pbc; encoder random:384, 384 numbers; 24 prompts a class:"
    assert told[1:3] == ["  an image of basophil.", "  a photo of basophil."]
    assert told[5] == "  … and 20 more"
    [row] = [line for line in told if "immature granulocyte" in line]
    assert row.split()[:4] == ["4", "ig", "immature", "granulocyte"]
    assert row.split()[7] == "·"  # after the number, the class, two words and three cosines
    assert len(row.split()) == 4 + 8
    assert max(map(len, told)) <= 100
    assert "note:" not in said.out


@pytest.mark.parametrize("name", LEXICONS)
def test_every_list_fits_the_width(cli, name):
    said = cli("concepts", name, *RANDOM)
    assert said.code == 0
    assert max(map(len, said.out.splitlines())) <= 100
    assert "…" not in said.out.replace("… and", "")  # nothing is cut off


def test_many_classes_are_shown_by_their_nearest_pairs(cli):
    told = cli("concepts", "cifar100", *RANDOM).out.splitlines()
    heading = next(n for n, line in enumerate(told) if line.split() == ["class", "class", "cosine"])
    cosines = [float(line.split()[-1]) for line in told[heading + 2 :] if line.strip()]
    assert len(cosines) == 15
    assert cosines == sorted(cosines, reverse=True)


def test_json(cli):
    told = json.loads(cli("concepts", "oct-c8", *RANDOM, "--json").out)
    assert told["classes"] == ["AMD", "CNV", "CSR", "DME", "DR", "DRUSEN", "MH", "NORMAL"]
    assert told["words"][4] == "Diabetic retinopathy"
    assert len(told["templates"]) == 28
    assert (told["lexicon"], told["encoder"], told["dim"], told["warnings"]) == ("oct-c8", "random:384", 384, [])
    assert [len(row) for row in told["similarity"]] == [8] * 8
    assert [row[n] for n, row in enumerate(told["similarity"])] == pytest.approx([1.0] * 8)
    swapped = json.loads(cli("concepts", "oct-c8-released", *RANDOM, "--json").out)
    assert swapped["similarity"][4][0] == pytest.approx(told["similarity"][6][0], abs=1e-6)


def test_the_classes_of_a_configuration(cli, toml_file, config):
    file = toml_file(config(text={"encoder": "random:16", "concepts": {"platelet": "thrombocyte"}, "fraction": 0.01}))
    told = json.loads(cli("concepts", file, "--json").out)
    assert told["classes"] == list(CLASSES)
    assert told["words"] == [*CLASSES[:7], "thrombocyte"]
    assert (told["lexicon"], told["dim"], len(told["templates"])) == ("pbc", 16, 1)
    [warning] = told["warnings"]
    assert "one prompt" in warning
    said = cli("concepts", file, "--set", "text.templates=['see {}']")
    assert "1 prompt a class:\n  see basophil\n" in said.out
    assert "note: one prompt" in said.out


def test_classes_without_words_are_told_before_anything_else(cli, toml_file, config, gallery):
    said = cli("concepts", toml_file(config(data=gallery.table(gallery.rows()))))
    assert said.code == 2
    assert "cat, dog are known from 'cifar10', but may mean something else here" in said.err


@pytest.mark.parametrize(
    ("words", "told"),
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
def test_mistakes_end_with_2_and_say_what_to_do(cli, words, told):
    said = cli("concepts", *words)
    assert said.code == 2
    assert told in said.err
    assert "Traceback" not in said.err


def test_the_section_reads_back():
    config = checked({"text": {"concepts": {"a b": "c"}, "nouns": ["CT scan"], "seed": 3, "encoder": "biomedclip"}})
    assert checked(tomllib.loads(toml.dumps(config.canonical()))) == config
    assert checked({}).text == Text()


def test_the_encoder_is_the_same_from_another_folder(tmp_path, monkeypatch):
    (tmp_path / "bert").mkdir()
    monkeypatch.chdir(tmp_path)
    assert checked({"text": {"encoder": "bert"}}).text.encoder == str(tmp_path / "bert")


@pytest.mark.parametrize(("key", "value"), [("fraction", 0), ("fraction", 1.1), ("seed", -1), ("nouns", "CT scan")])
def test_values_out_of_range_are_named(key, value):
    with pytest.raises(ConfigError) as error:
        checked({"text": {key: value}})
    assert error.value.details[0].startswith(f"text.{key}")
