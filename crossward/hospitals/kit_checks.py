"""Checks of a kit's names and TOML files. They return or collect problems, as lines for people."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from crossward.errors import ConfigError
from crossward.hospitals.certificates import host_problem
from crossward.names import nearest, require_plain_name

Shape = Mapping[str, Any]  # key -> what its value must be: a type, or the shape of a table
FEDERATION_SHAPE: Shape = {
    "name": str,
    "sites": list,
    "host": str,
    "port": int,
    "created": datetime,
    "crossward": str,
    "net": list,
    "reply_megabytes": int,
}
SITE_SHAPE: Shape = {
    "name": str,
    "coordinator": str,
    "take": str,
    "net": list,
    "device": str,
    "data": dict,
    "partition": dict,
    "disclosure": dict,  # the policy checks what is in it
    "memory": {"encrypt": bool},
    "limits": dict,  # SiteLimits checks what is in it
    "privacy": dict,  # site_privacy checks what is in it
}
SITE_SETTINGS = ("data", "partition", "net", "take", "device")  # what a site may set for runs; all optional
OPTIONAL_KEYS = (*SITE_SETTINGS, "limits", "privacy", "reply_megabytes")
TYPE_WORDS = {str: "a text", list: "a list", int: "a whole number", bool: "true or false", dict: "a table"}
MAX_NAME_LENGTH = 64  # characters, as a certificate allows
RESERVED_NAMES = (  # other files in a site's folder, beside the key that has the site's name
    "ca",  # whose certificate would be ca.crt
    "ca.crt",
    "site.toml",
    "memory.key",
    "peers.txt",
    "sums.jsonl",
    "sums.head",
    "sums.key",
    "readme.md",
    "crossward-site.service",
    "dockerfile",
    "constraints.txt",
    "memory",
    "weights",
    "cache",
    "sent.jsonl",
    "sent.head",
    "log.key",
    "privacy.jsonl",
    "privacy.head",
    "privacy.key",
    "privacy.lock",
    "notes.log",
    "activity.log",
    "usage.json",
    "up",
    "flower",
    "worker.log",
    "forks.log",
    "supernode.log",
)


def read_table(file: Path, shape: Shape, problems: list[str]) -> dict[str, Any]:
    """The keys of a TOML file whose values have the right shape; the rest is reported in `problems`."""
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        problems.append(f"{file} is missing")
    except (OSError, UnicodeDecodeError) as error:
        problems.append(f"{file} cannot be read: {error}")
    except tomllib.TOMLDecodeError as error:
        problems.append(f"{file} is not valid TOML: {error}")
    else:
        return _check_table(table, shape, f"{file}: ", problems)
    return {}


def _check_table(table: Mapping[str, Any], shape: Shape, prefix: str, problems: list[str]) -> dict[str, Any]:
    problems += [f"{prefix}there is no key {key!r}. {nearest(key, shape)}" for key in table if key not in shape]
    problems += [f"{prefix}{key} is missing" for key in shape if key not in table and key not in OPTIONAL_KEYS]
    valid: dict[str, Any] = {}
    for key, value in table.items():
        if key not in shape:
            continue
        inner_shape = shape[key] if isinstance(shape[key], Mapping) else None
        expected_type = shape[key] if inner_shape is None else dict
        if type(value) is not expected_type:
            expected = TYPE_WORDS.get(expected_type, "a date and time")
            problems.append(f"{prefix}{key} must be {expected}, not {value!r}")
        elif inner_shape is not None:
            valid[key] = _check_table(value, inner_shape, f"{prefix}{key}.", problems)
        else:
            valid[key] = value
    return valid


def federation_problems(name: str, sites: Sequence[str], host: str, port: int) -> list[str]:
    """What is wrong with the names of a federation and its sites, or with the address of its coordinator."""
    problems = [
        _name_problem(name, "the federation"),
        *site_name_problems(sites),
        host_problem(host),
        port_problem(port),
    ]
    return [problem for problem in problems if problem]


def site_name_problems(sites: Sequence[str]) -> list[str]:
    """What is wrong with the names of the sites."""
    if not sites:
        return ["sites: there are none; name each hospital"]
    problems = []
    for number, site in enumerate(sites):
        problems.append(_name_problem(site, "a site"))
        same = [other for other in sites[:number] if str(other).lower() == str(site).lower()]
        if same:
            alike = "" if same[0] == site else f", as {same[0]!r}: on some disks these are the same"
            problems.append(f"sites: {site!r} is named twice{alike}")
        elif str(site).lower() in RESERVED_NAMES:
            problems.append(f"sites: {site!r} is the name of another file in a site's folder; choose another")
    return list(dict.fromkeys(problem for problem in problems if problem))


def _name_problem(name: Any, what: str) -> str:
    if not isinstance(name, str):
        return f"{name!r} is not a name for {what}: it must be a text"
    try:
        require_plain_name(name, what)
    except ConfigError as error:
        return f"{error.what}. {error.hint}"
    if name.startswith("-"):
        return f"{name!r} is not a name for {what}: commands would take it for an option"
    if len(name) > MAX_NAME_LENGTH:
        return f"{name!r} is longer than {MAX_NAME_LENGTH} characters"
    return ""


def port_problem(port: int) -> str:
    """Why a number cannot be a port; empty if it can."""
    is_valid = type(port) is int and 1 <= port <= 65535
    return "" if is_valid else f"port: {port!r} is not a port; choose a whole number from 1 to 65535"


def address_problems(address: str) -> list[str]:
    """What is wrong with host:port, or with [host]:port of an IPv6 address."""
    host, _, port = address.rpartition(":")
    port_number = int(port) if port.isdecimal() else -1
    if host_problem(host.strip("[]")) or port_problem(port_number):
        return [f"{address!r} is not the address of a coordinator, such as fl.hospital.org:9092"]
    return []
