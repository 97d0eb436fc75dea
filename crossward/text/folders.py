"""Folders of encoders: fetched from the hub where there is one, checked for what is missing, known by their bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from crossward.errors import ConfigError, CrosswardError
from crossward.text.libraries import hub

Parts = Mapping[str, tuple[str, ...]]  # what must be there -> the files, any of which will do

SAFE = ("*.json", "*.txt", "*.model", "*.safetensors")
READ = (*SAFE, "*.bin")  # what an embedding may depend on
ELSEWHERE = ("onnx/*", "openvino/*", "coreml/*")  # the same weights for other programs
POINTER = b"version https://git-lfs"


def fetched(name: str, parts: Parts, setting: str) -> Path:
    """The folder of a hub repository, from the hub's cache or the network; `setting` is how to name a folder of it."""
    others = [f"*{file}" for files in parts.values() for file in files if file.endswith(".bin")]
    try:
        with hub() as client:
            folder = Path(client.snapshot_download(name, allow_patterns=[*SAFE], ignore_patterns=[*ELSEWHERE]))
            if _lacking(folder, parts):
                wanted = [*SAFE, *others]
                folder = Path(client.snapshot_download(name, allow_patterns=wanted, ignore_patterns=[*ELSEWHERE]))
    except CrosswardError:
        raise
    except Exception as error:  # connection, proxy, access, name: the client's errors have no ancestor in common
        raise ConfigError(
            f"cannot fetch the text encoder {name!r} from the Hugging Face hub: {_first_line(error)}",
            details=[f"{what}: {' or '.join(files)}" for what, files in parts.items()],
            hint=f"Put these files of https://huggingface.co/{name} into a folder and set text.encoder = {setting}.",
        ) from error
    return folder


def checked(folder: Path, parts: Parts) -> Path:
    """The folder, if everything is in it."""
    if not folder.is_dir():
        raise ConfigError(f"text.encoder: there is no folder {folder}")
    if lacking := _lacking(folder, parts):
        raise ConfigError(
            f"the text encoder in {folder} is not whole:",
            details=[f"no {what}: {' or '.join(parts[what])}" for what in lacking],
        )
    if pointers := [file for file in _files(folder) if _starts(file, POINTER)]:
        raise ConfigError(
            f"the text encoder in {folder} is not whole:",
            details=[f"{file.name} only points to a file that git has not fetched" for file in pointers],
            hint=f"Run: git -C {folder} lfs pull",
        )
    return folder


@contextmanager
def loading(folder: Path) -> Iterator[None]:
    """Whatever a library says about files it cannot use, said of the folder."""
    try:
        yield
    except CrosswardError:
        raise
    except Exception as error:  # of many kinds, by library and version
        raise ConfigError(f"cannot use the text encoder in {folder}: {_first_line(error)}") from error


def print_of(folder: Path) -> str:
    """The hash of the bytes of all files that embeddings may depend on."""
    state = hashlib.sha256()  # which processors do in hardware: weights are large
    for file in _files(folder):
        with file.open("rb") as stream:
            part = hashlib.file_digest(stream, "sha256").digest()
        state.update(f"{file.relative_to(folder).as_posix()}|".encode() + part)
    return state.hexdigest()


def _files(folder: Path) -> list[Path]:
    return sorted(file for kind in READ for file in _matching(folder, kind))


def _lacking(folder: Path, parts: Parts) -> list[str]:
    return [what for what, files in parts.items() if not any(_matching(folder, name) for name in files)]


def _matching(folder: Path, pattern: str) -> list[Path]:
    """Also in the folders that sentence-transformers has for its modules."""
    depths = ("", "*/") if (folder / "modules.json").is_file() else ("",)
    return [file for depth in depths for file in folder.glob(f"{depth}{pattern}") if file.is_file()]


def _starts(file: Path, what: bytes) -> bool:
    with file.open("rb") as stream:
        return stream.read(len(what)) == what


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
