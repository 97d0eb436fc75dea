"""Language models in folders: each against its hidden states, pooled by hand."""

from __future__ import annotations

import json
import logging

import pytest
import torch
from safetensors.torch import load_file, save_file

from crossward.errors import ConfigError
from crossward.text.language_models import load_mean_pooled_transformer, load_sentence_transformer

transformers = pytest.importorskip("transformers")

TEXTS = ("an image of a big old cat.", "a dog")


def states(folder, tokens, *texts):
    """(N, T, 32) last hidden states and their mask."""
    ids, mask = tokens(*texts)
    model = transformers.BertModel.from_pretrained(folder).eval()
    with torch.no_grad():
        return model(input_ids=ids, attention_mask=mask).last_hidden_state, mask


def rewrite(folder, change):
    """Change the weights in the folder."""
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def test_averaged_is_the_mean_over_all_positions_padding_included(bert, tokens):
    folder = bert()
    hidden, mask = states(folder, tokens, *TEXTS)
    assert mask.sum(1).tolist() == [10, 4]
    vectors = load_mean_pooled_transformer(folder)(TEXTS)
    torch.testing.assert_close(vectors, hidden.mean(1))
    assert vectors.dtype == torch.float32
    assert not vectors.requires_grad
    without = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    assert (vectors[1] - without[1]).abs().max() > 0.01  # the padding makes a difference


def test_averaged_pads_to_the_longest_text_beside_it(bert, tokens):
    encode = load_mean_pooled_transformer(bert())
    beside = encode(TEXTS)[1]
    alone = encode(TEXTS[1:])[0]
    assert (beside - alone).abs().max() > 0.01


def test_averaged_reads_half_precision_and_pickled_weights(bert, tokens):
    folder = bert()
    hidden, _ = states(folder, tokens, *TEXTS)
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    torch.testing.assert_close(load_mean_pooled_transformer(folder)(TEXTS), hidden.mean(1))
    (folder / "pytorch_model.bin").rename(folder / "old.bin")
    half = {k: v.half() for k, v in torch.load(folder / "old.bin", weights_only=True).items()}
    save_file(half, folder / "model.safetensors", {"format": "pt"})
    vectors = load_mean_pooled_transformer(folder)(TEXTS)
    assert vectors.dtype == torch.float32
    torch.testing.assert_close(vectors, hidden.mean(1), atol=0.02, rtol=0.02)


def test_a_model_without_a_pooler_is_whole(bert, tokens):
    folder = bert(pooler=False)
    vectors = load_mean_pooled_transformer(folder)(TEXTS)
    torch.testing.assert_close(vectors, states(folder, tokens, *TEXTS)[0].mean(1))


def test_averaged_refuses_missing_weights(bert):
    folder = bert()
    rewrite(folder, lambda weights: weights.pop("encoder.layer.1.output.dense.weight"))
    with pytest.raises(ConfigError, match="lacks weights") as error:
        load_mean_pooled_transformer(folder)
    assert error.value.details == ("encoder.layer.1.output.dense.weight",)


def test_damaged_weights_name_the_folder(bert):
    folder = bert()
    (folder / "model.safetensors").write_bytes(b"x" * 100)
    with pytest.raises(ConfigError, match="cannot use the text encoder in") as error:
        load_mean_pooled_transformer(folder)
    assert str(folder) in str(error.value)


def test_a_model_that_reads_no_text(bert):
    folder = bert()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "no-such-model"}))
    with pytest.raises(ConfigError, match="cannot use"):
        load_mean_pooled_transformer(folder)


def test_sentences_pool_as_their_folder_says(sentence_model, tokens):
    pytest.importorskip("sentence_transformers")
    folder = sentence_model()
    hidden, mask = states(folder, tokens, *TEXTS)
    expected = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    encode = load_sentence_transformer(folder)
    vectors = encode(TEXTS)
    torch.testing.assert_close(vectors, expected)
    torch.testing.assert_close(encode(TEXTS[1:])[0], expected[1])  # padding does not count
    assert vectors.dtype == torch.float32
    vectors.requires_grad_().sum().backward()  # no inference tensor


def test_sentences_refuse_missing_weights(sentence_model):
    pytest.importorskip("sentence_transformers")
    folder = sentence_model()
    rewrite(folder, lambda weights: weights.pop("encoder.layer.0.intermediate.dense.weight"))
    with pytest.raises(ConfigError, match="lacks weights"):
        load_sentence_transformer(folder)


def test_the_libraries_print_nothing_and_keep_their_settings(sentence_model, capfd):
    pytest.importorskip("sentence_transformers")
    transformers_logging = transformers.utils.logging
    verbosity = transformers_logging.get_verbosity()
    bars_enabled = transformers_logging.is_progress_bar_enabled()
    level = logging.getLogger("sentence_transformers").level
    random = torch.get_rng_state()
    folder = sentence_model()
    capfd.readouterr()
    torch.set_rng_state(random)
    for load in (load_sentence_transformer, load_mean_pooled_transformer):
        load(folder)(TEXTS)
    assert capfd.readouterr() == ("", "")
    assert torch.equal(torch.get_rng_state(), random)
    assert transformers_logging.get_verbosity() == verbosity
    assert transformers_logging.is_progress_bar_enabled() == bars_enabled
    assert logging.getLogger("sentence_transformers").level == level
