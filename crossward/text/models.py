"""Language models in folders, as functions from texts to vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from crossward.errors import ConfigError
from crossward.text.folders import loading
from crossward.text.libraries import library, quiet

Model = Callable[[Sequence[str]], Tensor]  # N texts -> (N, D) float32

PROBE = ["an image of something."]


def sentences(folder: Path) -> Model:
    """A sentence-transformers model, which knows how to pool."""
    kind = library("sentence_transformers").SentenceTransformer

    def encode(model: Any, texts: Sequence[str]) -> Tensor:
        with quiet(), loading(folder):
            made = model.encode(list(texts), batch_size=len(texts), convert_to_tensor=True, show_progress_bar=False)
        return torch.as_tensor(made).float().clone()  # a clone made here can be trained on, theirs cannot

    with quiet(), loading(folder):
        model, again = (kind(str(folder), device="cpu", local_files_only=True).eval() for _ in range(2))
    # Weights that are not in the folder are made up by the library, which only logs it; never the same ones twice.
    if not torch.allclose(encode(model, PROBE), encode(again, PROBE), atol=1e-4, equal_nan=True):
        raise ConfigError(f"the text encoder in {folder} lacks weights: it means something else each time it is loaded")
    return lambda texts: encode(model, texts)


def averaged(folder: Path) -> Model:
    """A transformers model: the mean of its last hidden states over all positions of the batch, padding included, as
    FedBM takes it of BERT and RoBERTa. So an embedding depends on the longest text beside it."""
    transformers = library("transformers")
    with quiet(), loading(folder):
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        model, told = transformers.AutoModel.from_pretrained(
            str(folder), local_files_only=True, output_loading_info=True
        )
        model = model.float().eval()
    if missing := sorted(name for name in told["missing_keys"] if "pooler" not in name):  # which is not used
        raise ConfigError(f"the text encoder in {folder} lacks weights:", details=missing)

    def encode(texts: Sequence[str]) -> Tensor:
        with quiet(), loading(folder), torch.no_grad():
            tokens = tokenizer(list(texts), padding=True, truncation=True, return_tensors="pt")
            states: Tensor = model(**tokens).last_hidden_state  # (N, T, D)
        return states.mean(1)

    return encode
