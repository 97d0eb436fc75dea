"""Concept distributions: the classes of a dataset as a language model embeds them; computed once and cached."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import normalize

from crossward.core.concepts import Concepts
from crossward.core.store import read_tree
from crossward.core.tree import encode
from crossward.disk import cannot_write, write_atomically
from crossward.errors import ConfigError, StorageError
from crossward.text.class_wording import ClassWording, word_classes
from crossward.text.encoders import Encoder, encoder_by_name

CACHE_VERSION = 1  # part of the key of a cached file
# Cosine of two class means: higher than that of any two classes of a built-in lexicon, except the two cases of a
# letter, and lower than that of synonyms.
SIMILAR_ABOVE = 0.9
MAX_PAIRS = 5  # pairs of classes that a caution names


@dataclass(frozen=True)
class EmbeddedClasses:
    classes: tuple[str, ...]
    words: tuple[str, ...]  # of each class
    templates: tuple[str, ...]
    lexicon: str | None  # where the words came from, unless from the configuration
    encoder: str
    concepts: Concepts  # of unit vectors, whose mean is not of unit length

    def similarity(self) -> Tensor:
        """(K, K): the cosine of the means of each two classes."""
        directions = normalize(self.concepts.mean, dim=1)
        return directions @ directions.T

    def most_similar_pairs(self) -> list[tuple[float, str, str]]:
        """Every pair of classes with its cosine, the most similar first."""
        similarity = self.similarity().tolist()
        pairs = [
            (similarity[i][j], self.classes[j], self.classes[i]) for i in range(len(self.classes)) for j in range(i)
        ]
        return sorted(pairs, key=lambda pair: -pair[0])

    def cautions(self) -> list[str]:
        """Lines about embeddings that deserve a second look."""
        lines = []
        similar = [
            f"{a} and {b} ({cosine:.3f})" for cosine, a, b in self.most_similar_pairs() if cosine > SIMILAR_ABOVE
        ]
        if similar:
            more = f" and {len(similar) - MAX_PAIRS} more pairs" if len(similar) > MAX_PAIRS else ""
            lines.append(
                f"to {self.encoder} these classes mean nearly the same (cosine above {SIMILAR_ABOVE}): "
                f"{', '.join(similar[:MAX_PAIRS])}{more}; say in [text.concepts] what sets them apart"
            )
        if len(self.templates) == 1:
            lines.append("one prompt for each class: its concept has a mean, and no covariance")
        return lines


def embed_classes(
    classes: Sequence[str],
    *,
    encoder: str = "minilm",
    lexicon: str | None = None,
    concepts: Mapping[str, str] | None = None,
    nouns: Sequence[str] = (),
    templates: Sequence[str] = (),
    fraction: float = 1.0,
    seed: int = 0,
    cache: Path | None = None,
) -> EmbeddedClasses:
    """The concepts of the classes, with the settings of [text]; cached below the folder `cache`, if there is one."""
    wording = word_classes(
        classes, lexicon=lexicon, concepts=concepts, nouns=nouns, templates=templates, fraction=fraction, seed=seed
    )
    chosen = encoder_by_name(encoder)
    return EmbeddedClasses(
        classes=wording.classes,
        words=wording.words,
        templates=wording.templates,
        lexicon=wording.lexicon,
        encoder=chosen.name,
        concepts=Concepts.of(_cached_vectors(chosen, wording, cache)),
    )


def _cached_vectors(encoder: Encoder, wording: ClassWording, cache: Path | None) -> Tensor:
    if cache is None:
        return _encode_prompts(encoder, wording)
    file = cache / "concepts" / f"{_cache_key(encoder, wording)}.safetensors"
    vectors = _read_vectors(file, wording)
    if vectors is None:
        vectors = _encode_prompts(encoder, wording)
        _write_vectors(file, vectors)
    return vectors


def _encode_prompts(encoder: Encoder, wording: ClassWording) -> Tensor:
    """(K, M, D) unit vectors. The prompts of a class are one batch, as in FedBM, because padding may count."""
    with _one_thread():
        vectors = torch.stack([encoder.encode(prompts).float() for prompts in wording.prompts])
    unusable = ~torch.isfinite(vectors).all(2) | (vectors == 0).all(2)  # (K, M)
    if unusable.any():
        raise ConfigError(
            f"the text encoder {encoder.name!r} gives no usable embedding (NaN, infinite or zero) of",
            details=[repr(wording.prompts[k][m]) for k, m in unusable.nonzero().tolist()],
        )
    return normalize(vectors, dim=2)


@contextmanager
def _one_thread() -> Iterator[None]:
    """One thread gives the same bits on any number of cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _cache_key(encoder: Encoder, wording: ClassWording) -> str:
    content = json.dumps([CACHE_VERSION, encoder.key, wording.prompts])
    return blake2b(content.encode(), digest_size=20).hexdigest()


def _read_vectors(file: Path, wording: ClassWording) -> Tensor | None:
    """The cached vectors, or None if they are missing or damaged."""
    if not file.is_file():
        return None
    try:
        vectors = read_tree(file).get("vectors")
    except StorageError:
        return None
    shape = (len(wording.words), len(wording.templates))
    if isinstance(vectors, Tensor) and vectors.ndim == 3 and vectors.shape[:2] == shape:
        return vectors
    return None


def _write_vectors(file: Path, vectors: Tensor) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(file, error) from error
    write_atomically(file, encode({"vectors": vectors}), durable=False, contended=True)
