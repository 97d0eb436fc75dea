"""What must hold of a kit's names and TOML files; every mistake is a line in plain words."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from crossward.errors import ConfigError
from crossward.hospitals.certificates import wrong_host
from crossward.names import nearest, plain

Shape = Mapping[str, Any]  # key -> what it must be: a type, or the shape of a table
FEDERATION: Shape = {"name": str, "sites": list, "host": str, "port": int, "created": datetime, "crossward": str}
SITE: Shape = {
    "name": str,
    "coordinator": str,
    "take": str,
    "net": list,
    "device": str,
    "data": dict,
    "partition": dict,
    "disclosure": dict,  # what is in it, the policy judges
    "memory": {"encrypt": bool},
}
OPTIONAL = ("take", "net", "device", "data", "partition")
WORDS = {str: "a text", list: "a list", int: "a whole number", bool: "true or false", dict: "a table"}
LONGEST_NAME = 64  # characters, as a certificate allows
TAKEN = (  # what else is in a site's folder, beside the key that bears its name
    "ca.crt", "site.toml", "memory.key", "readme.md", "crossward-site.service", "dockerfile", "constraints.txt",
    "memory", "weights", "cache", "sent.jsonl", "flower", "worker.log", "forks.log", "supernode.log",
)  # fmt: skip


def table(file: Path, shape: Shape, wrong: list[str]) -> dict[str, Any]:
    """What a TOML file says where it has the right shape; `wrong` says the rest."""
    try:
        found = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        wrong.append(f"{file} is missing")
    except (OSError, UnicodeDecodeError) as error:
        wrong.append(f"{file} cannot be read: {error}")
    except tomllib.TOMLDecodeError as error:
        wrong.append(f"{file} is not valid TOML: {error}")
    else:
        return _shaped(found, shape, f"{file}: ", wrong)
    return {}


def _shaped(found: Mapping[str, Any], shape: Shape, at: str, wrong: list[str]) -> dict[str, Any]:
    wrong += [f"{at}there is no key {key!r}. {nearest(key, shape)}" for key in found if key not in shape]
    wrong += [f"{at}{key} is missing" for key in shape if key not in found and key not in OPTIONAL]
    good: dict[str, Any] = {}
    for key, value in found.items():
        kind = shape.get(key)
        if isinstance(kind, Mapping) and isinstance(value, dict):
            good[key] = _shaped(value, kind, f"{at}{key}.", wrong)
        elif kind is not None and type(value) is (dict if isinstance(kind, Mapping) else kind):
            good[key] = value
        elif kind is not None:
            wanted = WORDS[dict] if isinstance(kind, Mapping) else WORDS.get(kind, "a date and time")
            wrong.append(f"{at}{key} must be {wanted}, not {value!r}")
    return good


def wrong_federation(name: str, sites: Sequence[str], host: str, port: int) -> list[str]:
    """What is wrong with who takes part and where they meet."""
    wrong = [_wrong_name(name, "the federation"), *wrong_sites(sites), wrong_host(host), wrong_port(port)]
    return [line for line in wrong if line]


def wrong_sites(sites: Sequence[str]) -> list[str]:
    told = [] if sites else ["sites: there are none; name each hospital"]
    for at, site in enumerate(sites):
        told.append(_wrong_name(site, "a site"))
        same = [other for other in sites[:at] if str(other).lower() == str(site).lower()]
        if same:
            alike = "" if same[0] == site else f", as {same[0]!r}: on some disks these are the same"
            told.append(f"sites: {site!r} is named twice{alike}")
        elif str(site).lower() in TAKEN:
            told.append(f"sites: {site!r} is the name of another file in a site's folder; choose another")
    return list(dict.fromkeys(line for line in told if line))


def _wrong_name(name: Any, what: str) -> str:
    if not isinstance(name, str):
        return f"{name!r} is not a name for {what}: it must be a text"
    try:
        plain(name, what)
    except ConfigError as error:
        return f"{error.what}. {error.hint}"
    if name.startswith("-"):
        return f"{name!r} is not a name for {what}: commands would take it for an option"
    return f"{name!r} is longer than {LONGEST_NAME} characters" if len(name) > LONGEST_NAME else ""


def wrong_port(port: int) -> str:
    right = type(port) is int and 1 <= port <= 65535
    return "" if right else f"port: {port!r} is not a port; choose a whole number from 1 to 65535"


def wrong_address(address: str) -> list[str]:
    """What is wrong with host:port, or [host]:port of an IPv6 address."""
    host, _, port = address.rpartition(":")
    wrong = [wrong_host(host.strip("[]")), wrong_port(int(port) if port.isdecimal() else -1)]
    return [f"{address!r} is not the address of a coordinator, such as fl.hospital.org:9092"] if any(wrong) else []
