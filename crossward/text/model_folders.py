"""Folders of language models: downloaded from the hub, checked for missing files, identified by their bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from crossward.errors import ConfigError, CrosswardError
from crossward.text.text_libraries import hub_client

RequiredFiles = Mapping[str, tuple[str, ...]]  # part of a model -> patterns of files, any of which will do

SAFE_PATTERNS = ("*.json", "*.txt", "*.model", "*.safetensors")
MODEL_PATTERNS = (*SAFE_PATTERNS, "*.bin")  # files that an embedding may depend on
IGNORED_PATTERNS = ("onnx/*", "openvino/*", "coreml/*")  # the same weights for other programs
LFS_POINTER = b"version https://git-lfs"


def download_model(name: str, required: RequiredFiles, setting: str) -> Path:
    """The folder of a hub repository, from the hub's cache or the network, by preference without pickled weights.

    `setting` is what the user may write in place of the name to use a folder of their own.
    """
    safe = [*SAFE_PATTERNS]
    pickled = [f"*{file}" for files in required.values() for file in files if file.endswith(".bin")]
    ignored = [*IGNORED_PATTERNS]
    try:
        with hub_client() as client:
            folder = Path(client.snapshot_download(name, allow_patterns=safe, ignore_patterns=ignored))
            if _missing_parts(folder, required):
                patterns = safe + pickled
                folder = Path(client.snapshot_download(name, allow_patterns=patterns, ignore_patterns=ignored))
    except CrosswardError:
        raise
    except Exception as error:  # connection, proxy, access, name: the client's errors share no base class
        raise ConfigError(
            f"cannot fetch the text encoder {name!r} from the Hugging Face hub: {_first_line(error)}",
            details=[f"{part}: {' or '.join(files)}" for part, files in required.items()],
            hint=f"Put these files of https://huggingface.co/{name} into a folder and set text.encoder = {setting}.",
        ) from error
    return folder


def require_model_files(folder: Path, required: RequiredFiles) -> Path:
    """The folder, if it has all parts of a model."""
    if not folder.is_dir():
        raise ConfigError(f"text.encoder: there is no folder {folder}")
    missing = _missing_parts(folder, required)
    if missing:
        raise ConfigError(
            f"the text encoder in {folder} is not whole:",
            details=[f"no {part}: {' or '.join(required[part])}" for part in missing],
        )
    pointers = [file for file in _model_files(folder) if _is_lfs_pointer(file)]
    if pointers:
        raise ConfigError(
            f"the text encoder in {folder} is not whole:",
            details=[f"{file.name} only points to a file that git has not fetched" for file in pointers],
            hint=f"Run: git -C {folder} lfs pull",
        )
    return folder


@contextmanager
def loading_from(folder: Path) -> Iterator[None]:
    """Turn any error of a library into a ConfigError that names the folder."""
    try:
        yield
    except CrosswardError:
        raise
    except Exception as error:  # its class depends on the library and its version
        raise ConfigError(f"cannot use the text encoder in {folder}: {_first_line(error)}") from error


def fingerprint(folder: Path) -> str:
    """The hash of the names and bytes of all files that embeddings may depend on."""
    state = hashlib.sha256()  # fast in hardware: weights are large
    for file in _model_files(folder):
        with file.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").digest()
        state.update(f"{file.relative_to(folder).as_posix()}|".encode() + digest)
    return state.hexdigest()


def _model_files(folder: Path) -> list[Path]:
    return sorted(file for pattern in MODEL_PATTERNS for file in _matching(folder, pattern))


def _missing_parts(folder: Path, required: RequiredFiles) -> list[str]:
    return [part for part, patterns in required.items() if not any(_matching(folder, p) for p in patterns)]


def _matching(folder: Path, pattern: str) -> list[Path]:
    """The files of that pattern, also in the folders that sentence-transformers has for its modules."""
    depths = ("", "*/") if (folder / "modules.json").is_file() else ("",)
    return [file for depth in depths for file in folder.glob(f"{depth}{pattern}") if file.is_file()]


def _is_lfs_pointer(file: Path) -> bool:
    with file.open("rb") as stream:
        return stream.read(len(LFS_POINTER)) == LFS_POINTER


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
