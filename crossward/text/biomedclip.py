"""BiomedCLIP's text tower, read from its authors' files: a BERT whose first token is projected.

Zhang et al., "BiomedCLIP: a multimodal biomedical foundation model pretrained from fifteen million scientific
image-text pairs", arXiv:2303.00915. The files are those of open_clip, which is not needed to read them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from torch.nn.functional import gelu, linear

from crossward.errors import ConfigError
from crossward.text.language_models import TextModel
from crossward.text.model_folders import RequiredFiles, loading_from
from crossward.text.text_libraries import import_text_library, silence_libraries

REPOSITORY = "microsoft/BiomedCLIP-PubMedBERT_256-vit_base_patch16_224"
SAFE_WEIGHTS = "open_clip_model.safetensors"
PICKLED_WEIGHTS = "open_clip_pytorch_model.bin"
REQUIRED_FILES: RequiredFiles = {
    "weights": (SAFE_WEIGHTS, PICKLED_WEIGHTS),
    "tokenizer": ("tokenizer.json", "vocab.txt"),
}
BERT = "text.transformer."  # prefixes of the names of weights
PROJECTION = "text.proj."
REQUIRED_WEIGHTS = (f"{BERT}embeddings.word_embeddings.weight", f"{PROJECTION}0.weight", f"{PROJECTION}2.weight")
UNUSED_WEIGHTS = ("embeddings.position_ids", "pooler.dense.weight", "pooler.dense.bias")
CONTEXT = 256  # tokens
HEAD_WIDTH = 64  # of an attention head, in every BERT of the usual sizes
TEXT_CONFIG = {"hf_proj_type": "mlp", "hf_pooler_type": "cls_last_hidden_state_pooler"}


def load_text_tower(folder: Path) -> TextModel:
    transformers = import_text_library("transformers")
    _check_config(folder)
    with silence_libraries(), loading_from(folder):
        weights = _read_weights(folder)
        tokenizer = transformers.BertTokenizerFast.from_pretrained(str(folder), local_files_only=True)
        bert = _build_bert(folder, {k.removeprefix(BERT): v for k, v in weights.items() if k.startswith(BERT)})
    first = weights[f"{PROJECTION}0.weight"]  # (640, 768)
    second = weights[f"{PROJECTION}2.weight"]  # (512, 640)

    def encode(texts: Sequence[str]) -> Tensor:
        with silence_libraries(), loading_from(folder), torch.no_grad():
            tokens = tokenizer(list(texts), padding=True, truncation=True, max_length=CONTEXT, return_tensors="pt")
            states = bert(input_ids=tokens["input_ids"], attention_mask=tokens["attention_mask"]).last_hidden_state
            return linear(gelu(linear(states[:, 0], first)), second)  # (N, 512)

    return encode


def _read_weights(folder: Path) -> dict[str, Tensor]:
    """The weights of the text tower, float32."""
    if (folder / SAFE_WEIGHTS).is_file():
        with safe_open(folder / SAFE_WEIGHTS, framework="pt") as file:
            weights = {name: file.get_tensor(name) for name in file.keys() if name.startswith("text.")}  # noqa: SIM118
    else:
        state = torch.load(folder / PICKLED_WEIGHTS, map_location="cpu", weights_only=True)  # tensors only, no code
        weights = {name: tensor for name, tensor in state.items() if name.startswith("text.")}
    missing = [name for name in REQUIRED_WEIGHTS if name not in weights]
    if missing:
        raise _other_weights(folder, [f"no {name}" for name in missing])
    return {name: tensor.float() for name, tensor in weights.items()}


def _build_bert(folder: Path, weights: dict[str, Tensor]) -> Any:
    transformers = import_text_library("transformers")
    bert = transformers.BertModel(_bert_config(folder, weights), add_pooling_layer=False).eval()
    used = {name: tensor for name, tensor in weights.items() if name not in UNUSED_WEIGHTS}
    missing, unexpected = bert.load_state_dict(used, strict=False)
    problems = [f"no {BERT}{name}" for name in missing] + [f"{BERT}{name} has no place" for name in unexpected]
    if problems:
        raise _other_weights(folder, problems)
    return bert


def _other_weights(folder: Path, problems: list[str]) -> ConfigError:
    return ConfigError(f"the weights in {folder} are not those of BiomedCLIP:", details=problems)


def _bert_config(folder: Path, weights: dict[str, Tensor]) -> Any:
    """From the folder's config.json if it has one, which the published files lack; else from the weights' shapes."""
    transformers = import_text_library("transformers")
    if (folder / "config.json").is_file():
        return transformers.BertConfig.from_pretrained(str(folder), local_files_only=True)
    vocabulary, width = weights["embeddings.word_embeddings.weight"].shape
    layers = {name.split(".")[2] for name in weights if name.startswith("encoder.layer.")}
    return transformers.BertConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        num_hidden_layers=len(layers),
        num_attention_heads=max(1, width // HEAD_WIDTH),
        intermediate_size=len(weights["encoder.layer.0.intermediate.dense.weight"]),
        max_position_embeddings=len(weights["embeddings.position_embeddings.weight"]),
        type_vocab_size=len(weights["embeddings.token_type_embeddings.weight"]),
    )


def _check_config(folder: Path) -> None:
    """Refuse other models of open_clip, which come in files of the same names."""
    file = folder / "open_clip_config.json"
    if not file.is_file():
        return
    with loading_from(folder):
        config = json.loads(file.read_text(encoding="utf-8"))["model_cfg"]["text_cfg"]
        differences = [
            f"{key}: {config.get(key)!r}, not {value!r}"
            for key, value in TEXT_CONFIG.items()
            if config.get(key) != value
        ]
    if differences:
        raise ConfigError(f"{file} describes another model than BiomedCLIP:", details=differences)
