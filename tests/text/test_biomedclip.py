"""BiomedCLIP's text load_text_tower on a tiny BERT in its file format, against open_clip's arithmetic done by hand."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import gelu

from crossward.errors import ConfigError
from crossward.text.biomedclip import load_text_tower

transformers = pytest.importorskip("transformers")

TEXTS = ("an image of a big old cat.", "a dog")
SAFE = "open_clip_model.safetensors"
PICKLED = "open_clip_pytorch_model.bin"
CONFIG = {
    "model_cfg": {
        "embed_dim": 512,
        "text_cfg": {
            "hf_model_name": "microsoft/BiomedNLP-BiomedBERT-base-uncased-abstract",
            "hf_proj_type": "mlp",
            "hf_pooler_type": "cls_last_hidden_state_pooler",
            "context_length": 256,
        },
    }
}


@pytest.fixture
def clip(bert, tokens):
    """A folder as published, and what it should make of TEXTS: (2, 16)."""

    def make(heads=2):
        folder = bert(heads=heads, pooler=False)
        ids, mask = tokens(*TEXTS)
        model = transformers.BertModel.from_pretrained(folder, add_pooling_layer=False).eval()
        wide, narrow = torch.randn(24, 32), torch.randn(16, 24)  # 768 -> 640 -> 512 in the real one
        with torch.no_grad():
            first = model(input_ids=ids, attention_mask=mask).last_hidden_state[:, 0]
            expected = gelu(first @ wide.T) @ narrow.T
        weights = {f"text.transformer.{name}": tensor for name, tensor in model.state_dict().items()}
        weights |= {"text.proj.0.weight": wide, "text.proj.2.weight": narrow, "logit_scale": torch.ones(1)}
        weights |= {"text.transformer.embeddings.position_ids": torch.arange(64)[None], "visual.a": torch.ones(2)}
        (folder / "model.safetensors").unlink()
        save_file(weights, folder / SAFE)
        (folder / "open_clip_config.json").write_text(json.dumps(CONFIG))
        return folder, expected

    return make


def test_the_first_token_projected(clip):
    folder, expected = clip()
    vectors = load_text_tower(folder)(TEXTS)
    torch.testing.assert_close(vectors, expected)
    assert vectors.shape == (2, 16)
    assert not vectors.requires_grad


def test_texts_do_not_depend_on_those_beside_them(clip):
    folder, expected = clip()
    torch.testing.assert_close(load_text_tower(folder)(TEXTS[1:]), expected[1:])


def test_pickled_weights_are_read_as_tensors(clip):
    folder, expected = clip()
    torch.save(load_file(folder / SAFE), folder / PICKLED)
    (folder / SAFE).unlink()
    torch.testing.assert_close(load_text_tower(folder)(TEXTS), expected)


def test_pickled_code_is_refused(clip, tmp_path):
    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "owned"), "w"))

    folder, _ = clip()
    torch.save({"text.proj.0.weight": Evil()}, folder / PICKLED)
    (folder / SAFE).unlink()
    with pytest.raises(ConfigError, match="cannot use the text encoder"):
        load_text_tower(folder)
    assert not (tmp_path / "owned").exists()


def test_the_published_folder_has_no_configuration_of_bert(clip):
    folder, expected = clip(heads=1)  # width 32: less than one usual head of 64
    (folder / "config.json").unlink()
    torch.testing.assert_close(load_text_tower(folder)(TEXTS), expected)


def test_half_precision_weights(clip):
    folder, expected = clip()
    half = {k: v.half() if v.is_floating_point() else v for k, v in load_file(folder / SAFE).items()}
    save_file(half, folder / SAFE)
    vectors = load_text_tower(folder)(TEXTS)
    assert vectors.dtype == torch.float32
    torch.testing.assert_close(vectors, expected, atol=0.2, rtol=0.02)


@pytest.mark.parametrize(
    "gone",
    [
        "text.proj.2.weight",
        "text.transformer.embeddings.word_embeddings.weight",
        "text.transformer.encoder.layer.1.output.dense.bias",
    ],
)
def test_missing_weights_are_named(clip, gone):
    folder, _ = clip()
    weights = load_file(folder / SAFE)
    del weights[gone]
    save_file(weights, folder / SAFE)
    with pytest.raises(ConfigError, match="not those of BiomedCLIP") as error:
        load_text_tower(folder)
    assert error.value.details == (f"no {gone}",)


def test_weights_without_a_place_are_named(clip):
    folder, _ = clip()
    save_file(load_file(folder / SAFE) | {"text.transformer.extra": torch.ones(1)}, folder / SAFE)
    with pytest.raises(ConfigError) as error:
        load_text_tower(folder)
    assert error.value.details == ("text.transformer.extra has no place",)


def test_another_model_of_open_clip_is_refused(clip):
    folder, _ = clip()
    other = json.loads(json.dumps(CONFIG))
    other["model_cfg"]["text_cfg"]["hf_proj_type"] = "linear"
    (folder / "open_clip_config.json").write_text(json.dumps(other))
    with pytest.raises(ConfigError, match="another model than BiomedCLIP") as error:
        load_text_tower(folder)
    assert error.value.details == ("hf_proj_type: 'linear', not 'mlp'",)
    (folder / "open_clip_config.json").write_text("{}")
    with pytest.raises(ConfigError, match="cannot use"):
        load_text_tower(folder)
