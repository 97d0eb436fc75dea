"""Language models loaded from folders, as functions from texts to vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from crossward.errors import ConfigError
from crossward.text.model_folders import loading_from
from crossward.text.text_libraries import import_text_library, silence_libraries

TextModel = Callable[[Sequence[str]], Tensor]  # N texts -> (N, D) float32

PROBE = ["an image of something."]


def load_sentence_transformer(folder: Path) -> TextModel:
    """A sentence-transformers model, whose files say how it pools."""
    model_class = import_text_library("sentence_transformers").SentenceTransformer

    def encode(model: Any, texts: Sequence[str]) -> Tensor:
        with silence_libraries(), loading_from(folder):
            vectors = model.encode(list(texts), batch_size=len(texts), convert_to_tensor=True, show_progress_bar=False)
        return torch.as_tensor(vectors).float().clone()  # the clone is no inference tensor: it can be trained on

    with silence_libraries(), loading_from(folder):
        model, again = (model_class(str(folder), device="cpu", local_files_only=True).eval() for _ in range(2))
    # The library draws weights that are not in the folder at random and only logs it: two loads then differ.
    if not torch.allclose(encode(model, PROBE), encode(again, PROBE), atol=1e-4, equal_nan=True):
        raise ConfigError(f"the text encoder in {folder} lacks weights: it means something else each time it is loaded")
    return lambda texts: encode(model, texts)


def load_mean_pooled_transformer(folder: Path) -> TextModel:
    """A transformers model, pooled to the mean of its last hidden states over all positions.

    Padding counts, as in FedBM's use of BERT and RoBERTa, so an embedding depends on the longest text of its batch.
    """
    transformers = import_text_library("transformers")
    with silence_libraries(), loading_from(folder):
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        model, loading_info = transformers.AutoModel.from_pretrained(
            str(folder), local_files_only=True, output_loading_info=True
        )
        model = model.float().eval()
    missing = sorted(name for name in loading_info["missing_keys"] if "pooler" not in name)  # the pooler is not used
    if missing:
        raise ConfigError(f"the text encoder in {folder} lacks weights:", details=missing)

    def encode(texts: Sequence[str]) -> Tensor:
        with silence_libraries(), loading_from(folder), torch.no_grad():
            tokens = tokenizer(list(texts), padding=True, truncation=True, return_tensors="pt")
            states: Tensor = model(**tokens).last_hidden_state  # (N, T, D)
        return states.mean(1)

    return encode
