"""Concept distributions: the classes of a dataset as a language model knows them, worked out once and kept."""

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
from crossward.text.encoders import Encoder
from crossward.text.encoders import encoder as encoder_named
from crossward.text.wording import Wording, worded

VERSION = 1  # of what is kept: entries of another version are never found
ALIKE = 0.9  # cosine of two class means: above any of a built-in lexicon but for the cases of a letter, below synonyms
SHOWN = 5  # pairs


@dataclass(frozen=True)
class Embedded:
    classes: tuple[str, ...]
    texts: tuple[str, ...]  # each class in words
    templates: tuple[str, ...]
    lexicon: str | None  # where the words came from, unless from the configuration
    encoder: str
    concepts: Concepts  # of unit vectors; their mean is not of unit length

    def similarity(self) -> Tensor:
        """(K, K): the cosine of the means of each two classes."""
        directions = normalize(self.concepts.mean, dim=1)
        return directions @ directions.T

    def closest(self) -> list[tuple[float, str, str]]:
        """Every pair of classes, the most similar first."""
        similarity, names = self.similarity().tolist(), self.classes
        pairs = [(similarity[i][j], names[i], names[j]) for i in range(len(names)) for j in range(i)]
        return sorted(((cosine, b, a) for cosine, a, b in pairs), key=lambda pair: -pair[0])

    def cautions(self) -> list[str]:
        """What deserves a second look."""
        found = []
        if alike := [f"{a} and {b} ({cosine:.3f})" for cosine, a, b in self.closest() if cosine > ALIKE]:
            more = f" and {len(alike) - SHOWN} more pairs" if len(alike) > SHOWN else ""
            told = f"to {self.encoder} these classes mean nearly the same (cosine above {ALIKE}): "
            found.append(f"{told}{', '.join(alike[:SHOWN])}{more}; say in [text.concepts] what sets them apart")
        if len(self.templates) == 1:
            found.append("one prompt for each class: its concept has a mean, and no covariance")
        return found


def embedded(
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
) -> Embedded:
    """The concepts of the classes, with the settings of [text]; kept below `cache`, if there is one."""
    wording = worded(
        classes, lexicon=lexicon, concepts=concepts, nouns=nouns, templates=templates, fraction=fraction, seed=seed
    )
    chosen = encoder_named(encoder)
    file = cache / "concepts" / f"{_key(chosen, wording)}.safetensors" if cache else None
    vectors = _kept(file, wording) if file else None
    if vectors is None:
        vectors = _encoded(chosen, wording)
        if file:
            _keep(file, vectors)
    return Embedded(
        wording.classes, wording.words, wording.templates, wording.lexicon, chosen.name, Concepts.of(vectors)
    )


def _encoded(encoder: Encoder, wording: Wording) -> Tensor:
    """(K, M, D) unit vectors. The prompts of a class are one batch, as in FedBM: padding may count."""
    with _one_thread():
        vectors = torch.stack([encoder.encode(prompts).float() for prompts in wording.prompts])
    bad = ~torch.isfinite(vectors).all(2) | (vectors == 0).all(2)  # (K, M)
    if bad.any():
        told = [repr(wording.prompts[k][m]) for k, m in bad.nonzero().tolist()]
        raise ConfigError(
            f"the text encoder {encoder.name!r} gives no usable embedding (NaN, infinite or zero) of", details=told
        )
    return normalize(vectors, dim=2)


@contextmanager
def _one_thread() -> Iterator[None]:
    """The same bits on any number of cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _key(encoder: Encoder, wording: Wording) -> str:
    told = json.dumps([VERSION, encoder.key, wording.prompts])
    return blake2b(told.encode(), digest_size=20).hexdigest()


def _kept(file: Path, wording: Wording) -> Tensor | None:
    """What was kept, if it is there and whole."""
    if not file.is_file():
        return None
    try:
        vectors = read_tree(file).get("vectors")
    except StorageError:
        return None
    shape = (len(wording.words), len(wording.templates))
    return vectors if isinstance(vectors, Tensor) and vectors.ndim == 3 and vectors.shape[:2] == shape else None


def _keep(file: Path, vectors: Tensor) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(file, error) from error
    write_atomically(file, encode({"vectors": vectors}), durable=False, contended=True)
