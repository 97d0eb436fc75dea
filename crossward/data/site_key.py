"""The key of a site, and the codes that it makes of patients and file names, so that neither is written anywhere.

A code is an HMAC-SHA-256 with a key that stays on this machine, in a file of mode 0600: without the key nobody can try
out which patient a code is of. One key serves all folders of a user, so that a patient has one code in all of them;
two sites give one patient different codes.
"""

from __future__ import annotations

import hmac
import os
import secrets
import stat
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from crossward.data.file_format import names_patients
from crossward.disk import cannot_write, draft_file
from crossward.errors import StorageError
from crossward.user_folders import key_folder

LENGTH = 32  # bytes of a key
DIGITS = 16  # of a code: among a million patients two share one with a chance of 3 in 10^8


@dataclass(frozen=True)
class SiteKey:
    secret: bytes = field(repr=False)

    def code(self, noun: str, value: str) -> str:
        """The code of a value: equal values of one noun ("patient", "file") have equal codes."""
        return hmac.digest(self.secret, f"{noun}\0{value}".encode(), "sha256").hex()[:DIGITS]

    @property
    def fingerprint(self) -> str:
        """What tells one key from another and nothing else."""
        return self.code("key", "fingerprint")


def site_key(folder: Path | None = None) -> SiteKey:
    """The key of this user's site, made at its first use."""
    file = (folder or key_folder()) / "site.key"
    try:
        return SiteKey(_read(file))
    except FileNotFoundError:
        _create(file)
        return SiteKey(_read(file))


def patient_code(key: SiteKey, patient: str, issuer: str = "") -> str:
    """The code of a patient by the number that a hospital gave, whether a DICOM file or a table has it."""
    return key.code("patient", f"{issuer}\0{patient}")


def shown_name(path: str, *, private: bool = False) -> str:
    """What a file is called outside of its folder: pictures by their path, DICOM and NIfTI files, or `private` ones, by
    a code."""
    return _known_key(key_folder()).code("file", path) if private or names_patients(path) else path


_known_key = lru_cache(maxsize=4)(site_key)  # it is asked for each file


def _read(file: Path) -> bytes:
    try:
        with file.open("rb") as stream:
            open_to_others = stat.S_IMODE(os.fstat(stream.fileno()).st_mode) & 0o077
            secret = stream.read(LENGTH + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StorageError(f"the key {file} cannot be read: {error.strerror}") from error
    if open_to_others:
        raise StorageError(f"other users can read the key {file}", hint=f"Close it to them: chmod 600 {file}")
    if len(secret) != LENGTH:
        raise StorageError(
            f"{file} holds no key of {LENGTH} bytes",
            hint="Restore it from a copy, or remove it for a new one; patients and files then have new codes.",
        )
    return secret


def _create(file: Path) -> None:
    """Make the key, unless another process did so in the meantime."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with draft_file(file.with_name(f".{file.name}.{secrets.token_hex(8)}.part"), mode=0o600) as draft:
            draft.stream.write(secrets.token_bytes(LENGTH))
            draft.stream.flush()
            os.fsync(draft.stream.fileno())
            os.link(draft.path, file)  # fails where there is one: the first key stays
    except FileExistsError:
        return
    except OSError as error:
        raise cannot_write(file, error) from error
