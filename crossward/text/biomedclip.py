"""BiomedCLIP's text tower, from the files that its authors publish: a BERT whose first token is projected.

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
from crossward.text.folders import Parts, loading
from crossward.text.libraries import library, quiet
from crossward.text.models import Model

REPOSITORY = "microsoft/BiomedCLIP-PubMedBERT_256-vit_base_patch16_224"
SAFE, PICKLED = "open_clip_model.safetensors", "open_clip_pytorch_model.bin"
PARTS: Parts = {"weights": (SAFE, PICKLED), "tokenizer": ("tokenizer.json", "vocab.txt")}
BERT, PROJECTION = "text.transformer.", "text.proj."
CONTEXT = 256  # tokens
HEAD = 64  # numbers of an attention head, in every BERT of the usual sizes
SHAPE = {"hf_proj_type": "mlp", "hf_pooler_type": "cls_last_hidden_state_pooler"}
IGNORED = ("embeddings.position_ids", "pooler.dense.weight", "pooler.dense.bias")  # constant, or unused


def tower(folder: Path) -> Model:
    transformers = library("transformers")
    _check_shape(folder)
    with quiet(), loading(folder):
        weights = _weights(folder)
        tokenizer = transformers.BertTokenizerFast.from_pretrained(str(folder), local_files_only=True)
        bert = _bert(folder, {k.removeprefix(BERT): v for k, v in weights.items() if k.startswith(BERT)})
    wide, narrow = weights[f"{PROJECTION}0.weight"], weights[f"{PROJECTION}2.weight"]  # (640, 768), (512, 640)

    def encode(texts: Sequence[str]) -> Tensor:
        with quiet(), loading(folder), torch.no_grad():
            tokens = tokenizer(list(texts), padding=True, truncation=True, max_length=CONTEXT, return_tensors="pt")
            states = bert(input_ids=tokens["input_ids"], attention_mask=tokens["attention_mask"]).last_hidden_state
            return linear(gelu(linear(states[:, 0], wide)), narrow)  # (N, 512)

    return encode


def _weights(folder: Path) -> dict[str, Tensor]:
    """Those of the text tower, float32."""
    if (folder / SAFE).is_file():
        with safe_open(folder / SAFE, framework="pt") as file:
            found = {name: file.get_tensor(name) for name in file.keys() if name.startswith("text.")}  # noqa: SIM118
    else:
        every = torch.load(folder / PICKLED, map_location="cpu", weights_only=True)  # tensors only, no code
        found = {name: tensor for name, tensor in every.items() if name.startswith("text.")}
    wanted = (f"{BERT}embeddings.word_embeddings.weight", f"{PROJECTION}0.weight", f"{PROJECTION}2.weight")
    if missing := [name for name in wanted if name not in found]:
        raise ConfigError(f"the weights in {folder} are not those of BiomedCLIP:", details=[f"no {n}" for n in missing])
    return {name: tensor.float() for name, tensor in found.items()}


def _bert(folder: Path, weights: dict[str, Tensor]) -> Any:
    transformers = library("transformers")
    bert = transformers.BertModel(_config(folder, weights), add_pooling_layer=False).eval()
    missing, unexpected = bert.load_state_dict({k: v for k, v in weights.items() if k not in IGNORED}, strict=False)
    if wrong := [f"no {BERT}{name}" for name in missing] + [f"{BERT}{name} has no place" for name in unexpected]:
        raise ConfigError(f"the weights in {folder} are not those of BiomedCLIP:", details=wrong)
    return bert


def _config(folder: Path, weights: dict[str, Tensor]) -> Any:
    """A config.json of BERT's if the folder has one, which the published files have not; else the weights tell."""
    transformers = library("transformers")
    if (folder / "config.json").is_file():
        return transformers.BertConfig.from_pretrained(str(folder), local_files_only=True)
    vocabulary, width = weights["embeddings.word_embeddings.weight"].shape
    layers = {name.split(".")[2] for name in weights if name.startswith("encoder.layer.")}
    return transformers.BertConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        num_hidden_layers=len(layers),
        num_attention_heads=max(1, width // HEAD),
        intermediate_size=len(weights["encoder.layer.0.intermediate.dense.weight"]),
        max_position_embeddings=len(weights["embeddings.position_embeddings.weight"]),
        type_vocab_size=len(weights["embeddings.token_type_embeddings.weight"]),
    )


def _check_shape(folder: Path) -> None:
    """Other models of open_clip come in the same files."""
    file = folder / "open_clip_config.json"
    if not file.is_file():
        return
    with loading(folder):
        told = json.loads(file.read_text(encoding="utf-8"))["model_cfg"]["text_cfg"]
    if wrong := [f"{key}: {told.get(key)!r}, not {value!r}" for key, value in SHAPE.items() if told.get(key) != value]:
        raise ConfigError(f"{file} tells of another model than BiomedCLIP:", details=wrong)
