"""Fixtures of the tests of text: a BERT of two layers in a folder."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test may use the network
torch.set_num_threads(1)

IDS = {
    "[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4, "an": 5, "image": 6, "of": 7, "a": 8, "photo": 9,
    "the": 10, "shows": 11, "cat": 12, "dog": 13, "big": 14, "old": 15, ".": 16,
}  # fmt: skip
Tokens = tuple[torch.Tensor, torch.Tensor]


@pytest.fixture
def tokens() -> Callable[..., Tokens]:
    """tokens("a cat.", …): the ids that a tokenizer should give known words, and the mask of what is no padding."""

    def make(*texts: str) -> Tokens:
        rows = [[IDS["[CLS]"], *(IDS[w] for w in text.replace(".", " .").split()), IDS["[SEP]"]] for text in texts]
        longest = max(map(len, rows))
        ids = torch.tensor([row + [IDS["[PAD]"]] * (longest - len(row)) for row in rows])
        return ids, (ids != IDS["[PAD]"]).long()

    return make


@pytest.fixture
def bert(tmp_path) -> Callable[..., Path]:
    """bert() writes such a model and returns its folder; bert(heads=1, pooler=False) varies it."""
    transformers = pytest.importorskip("transformers")

    def make(name: str = "bert", heads: int = 2, pooler: bool = True) -> Path:
        folder = tmp_path / name
        torch.manual_seed(0)
        shape = {"vocab_size": len(IDS), "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 64}
        config = transformers.BertConfig(**shape, num_attention_heads=heads, max_position_embeddings=64)
        model = transformers.BertModel(config, add_pooling_layer=pooler)
        torch.nn.init.normal_(model.embeddings.word_embeddings.weight)  # so that texts differ by more than rounding
        folder.mkdir()
        torch.nn.Module.eval(model).save_pretrained(folder)
        (folder / "vocab.txt").write_text("\n".join(IDS) + "\n")
        return folder

    return make


@pytest.fixture
def sentence_model(bert) -> Callable[..., Path]:
    """The same as a sentence-transformers model that takes the mean over the words."""

    def make() -> Path:
        folder = bert("sentences")
        classes = {"": "Transformer", "1_Pooling": "Pooling"}
        modules = [
            {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{cls}"}
            for n, (path, cls) in enumerate(classes.items())
        ]
        (folder / "modules.json").write_text(json.dumps(modules))
        (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 64, "do_lower_case": false}')
        (folder / "1_Pooling").mkdir()
        pooling = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
        return folder

    return make
