"""Tree: the one container for whatever crosses a boundary (network, disk, process), and its codec.

A Tree maps names to tensors, Weights, plain scalars or further Trees. Payloads, server state, client memory and
checkpoints are all Trees. Encoded, a Tree is an ordinary safetensors file: tensors under readable paths
("model/conv1.weight"), and in its metadata a version, the outline of the tree with its scalars, and a checksum.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from crossward.core.weights import Weights
from crossward.errors import StorageError
from crossward.foreign import printable

Tree = dict[str, Any]  # of Tensor | Weights | bool | int | float | str | Tree

VERSION = 2
CHECKSUM_DIGITS = 32
CHECKSUMS: dict[int, Callable[[], Any]] = {  # of each version that is read
    1: partial(hashlib.blake2b, digest_size=CHECKSUM_DIGITS // 2),
    VERSION: hashlib.sha256,  # processors have instructions for it
}
CPU = torch.device("cpu")


def flatten(tree: Tree) -> tuple[dict[str, Tensor], str]:
    """Tensors by path, and the outline: JSON that says where each belongs and holds the scalars."""
    tensors: dict[str, Tensor] = {}

    def outline(node: Mapping[str, Any], at: str) -> dict[str, Any]:
        entries: dict[str, Any] = {}
        for name, value in node.items():
            path = f"{at}{name}"
            if not isinstance(name, str) or "/" in name or path == "__metadata__":
                raise TypeError(f"{path}: a name in a tree is a string without '/'")
            match value:
                case Weights():
                    tensors.update({f"{path}/{n}": t for n, t in value.items()})
                    entries[name] = {"weights": list(value)}
                case Tensor():
                    tensors[path] = value
                    entries[name] = {"tensor": path}
                case dict():
                    entries[name] = {"tree": outline(value, f"{path}/")}
                case bool() | int() | float() | str():
                    entries[name] = {"value": value}
                case _:
                    raise TypeError(f"{path}: a {type(value).__name__} cannot travel in a tree")
        return entries

    root = outline(tree, "")
    return tensors, json.dumps(root)


def unflatten(tensors: Mapping[str, Tensor], outline: str) -> Tree:
    def grow(node: dict[str, Any], at: str) -> Tree:
        tree: Tree = {}
        for name, item in node.items():
            match item:
                case {"weights": names}:
                    tree[name] = Weights({n: tensors[f"{at}{name}/{n}"] for n in names})
                case {"tensor": path}:
                    tree[name] = tensors[path]
                case {"tree": child}:
                    tree[name] = grow(child, f"{at}{name}/")
                case _:
                    tree[name] = item["value"]
        return tree

    return grow(json.loads(outline), "")


def encode(tree: Tree) -> bytes:
    tensors, outline = flatten(tree)
    dense = _dense(tensors)
    metadata = {"version": VERSION, "checksum": _checksum(VERSION, outline, dense), "outline": outline}
    return save(dense, {"crossward": json.dumps(metadata)})  # one key: the order of several would vary


def decode(data: bytes) -> Tree:
    """The tree behind `data`; bytes that are cut short, altered or of another version are refused."""
    metadata = _metadata(data)
    version = metadata.get("version")
    if type(version) is not int or version not in CHECKSUMS:
        raise StorageError(
            f"a tree of format {printable(version)}, where this crossward reads formats up to {VERSION}",
            hint="Use the version of crossward that wrote it.",
        )
    try:
        tensors = load(data)
        if _checksum(version, metadata["outline"], tensors) != metadata["checksum"]:
            raise StorageError("damaged tree: its checksum does not match its contents")
        return unflatten(tensors, metadata["outline"])
    except (SafetensorError, KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise StorageError(f"damaged tree: {error}") from None


def header_bytes(data: bytes) -> int:
    """How long the part of an encoded tree says it is that is not tensors: names, shapes and scalars, as JSON. Parsed,
    it takes many times as much memory."""
    return int.from_bytes(data[:8], "little")


def items(tree: Tree) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of the tree with its path."""
    yield from flatten(tree)[0].items()


def sizes(tree: Tree) -> dict[str, int]:
    """Bytes of each top-level item as it would travel: tensor data, and the JSON of scalars."""

    def size(value: Any) -> int:
        match value:
            case Tensor():
                return value.numel() * value.element_size()
            case Mapping():
                return sum(size(v) for v in value.values())
            case _:
                return len(json.dumps(value))

    return {name: size(value) for name, value in tree.items()}


def finite(tree: Tree) -> bool:
    """Whether no number in the tree, in a tensor or by itself, is NaN or infinite."""

    def sound(value: Any) -> bool:
        match value:
            case Tensor():
                # a sum is quick, and finite only if every term is; one that overflows is looked into
                return (
                    not value.is_floating_point()
                    or math.isfinite(float(value.detach().sum()))
                    or bool(torch.isfinite(value).all())
                )
            case Mapping():
                return all(map(sound, value.values()))
            case float():
                return math.isfinite(value)
            case _:
                return True

    return sound(tree)


def on_device(tree: Tree, device: torch.device) -> Tree:
    """The tree with every tensor on this device; the tree itself where all of them are there already."""

    def moved(value: Any) -> Any:
        match value:
            case Tensor():
                return value.to(device)
            case Weights():
                return value.map(lambda tensor: tensor.to(device))
            case dict():
                return {name: moved(inner) for name, inner in value.items()}
        return value

    return tree if all(tensor.device == device for tensor in _tensors(tree)) else moved(tree)


def _tensors(value: Any) -> Iterator[Tensor]:
    match value:
        case Tensor():
            yield value
        case Mapping():
            for inner in value.values():
                yield from _tensors(inner)


def _metadata(data: bytes) -> dict[str, Any]:
    # A safetensors file opens with the length of its JSON header, which holds the metadata.
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > len(data) - 8:
        raise StorageError("damaged tree: the file is cut short")
    try:
        return dict(json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["crossward"]))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise StorageError("not a crossward tree: its header is damaged or of another kind") from None


def _checksum(version: int, outline: str, tensors: Mapping[str, Tensor]) -> str:
    digest = CHECKSUMS[version]()
    digest.update(outline.encode())
    for path in sorted(tensors):
        t = tensors[path]
        digest.update(f"|{path}|{t.dtype}|{list(t.shape)}|".encode())
        if t.numel():
            digest.update(t.reshape(-1).view(torch.uint8).numpy().data)
    return str(digest.hexdigest()[:CHECKSUM_DIGITS])


def _dense(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    # safetensors refuses tensors that share memory, so all but the first are copied.
    dense: dict[str, Tensor] = {}
    seen: set[int] = set()
    for path, t in tensors.items():
        t = t.detach().cpu().contiguous()
        storage = t.untyped_storage().data_ptr()
        dense[path] = t.clone() if storage in seen else t
        seen.add(storage)
    return dense
