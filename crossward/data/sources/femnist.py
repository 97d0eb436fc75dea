"""LEAF's FEMNIST (62 characters): a writer is a site.

Handwritten digits and letters by writer, in the JSON of LEAF (Caldas et al., 2018, arXiv:1812.01097).

https://github.com/TalwalkarLab/leaf, data/femnist: all_data/*.json, or train/*.json and test/*.json, made by its
preprocess.sh. Each file is {"users": [...], "num_samples": [...], "user_data": {user: {"x": [784 numbers from 0 to 1, 1
being the white paper], "y": [labels 0 to 61]}}}. A user is a site. Rows have no groups: a group is never on two sides,
and a site that is one writer could not test on what it wrote.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase, digits
from typing import Any, Literal

import numpy as np

from crossward.data.bad_files import BadFile
from crossward.data.collection import Collection
from crossward.data.partition import Ints
from crossward.data.prepare import Pixels
from crossward.data.sources.array_images import collection_of_arrays
from crossward.data.sources.settings import Loaded, SmallImageSettings
from crossward.errors import ConfigError, DataError
from crossward.settings import Count, NonNegative, Seed
from crossward.user_folders import data_root

NAME = "femnist"
WHERE = "https://github.com/TalwalkarLab/leaf"
CLASSES = (*digits, *ascii_uppercase, *ascii_lowercase)
SIDE = 28
ROLES = ("train", "val", "test")
Sides = dict[str, tuple[Path, ...]]  # "train" and "test", or "" alone (undecided) -> files


class FemnistSettings(SmallImageSettings):
    source: Literal["femnist"]
    max_samples: Count | None = None  # of a writer, others are left out; FedBM: 149
    users: tuple[Count, NonNegative, NonNegative] | None = None  # drawn: train, val, test
    users_seed: Seed = 0

    def load(self) -> Loaded:
        collection, left_out = read(
            self.path or locate(data_root()),
            size=self.size,
            channels=self.channels,
            max_samples=self.max_samples,
            users=self.users,
            users_seed=self.users_seed,
        )
        return collection, [str(user) for user in left_out]


@dataclass(frozen=True)
class UserSamples:
    """What a file holds of one user."""

    user: str
    side: str
    file: str
    images: Pixels  # (n, 28, 28)
    labels: Ints


def locate(root: Path | None) -> Path:
    """The folder of the set in `root`, where all datasets are kept."""
    if root is None:
        raise ConfigError(
            "data.path is not set, nor is CROSSWARD_DATA.",
            hint=f"Make FEMNIST with {WHERE} and set data.path to its folder, data/femnist, or CROSSWARD_DATA to the "
            f"folder that holds it as {NAME}.",
        )
    for place in (root / NAME, root / "FEMNIST", root / "leaf" / "data" / NAME):
        if place.is_dir():
            return place
    raise ConfigError(
        f"FEMNIST is not in {root}.",
        hint=f"Make it with {WHERE} and put its data/femnist at {root / NAME}, or set data.path to where it is.",
    )


def read(
    root: Path,
    *,
    size: int | None = None,
    channels: int | None = None,
    max_samples: int | None = None,
    users: tuple[int, int, int] | None = None,
    users_seed: int = 0,
) -> tuple[Collection, list[BadFile]]:
    """The writing in `root`, and the users without any.

    Users with more than `max_samples` are left out. `users` draws so many to train, to validate and to test on, all
    they wrote: the first are the sites, the rows of the others the server's. Without it a side is what the files say;
    if no user is in both train and test, those of test are the server's too.
    """
    _check_options(max_samples, users)
    samples = list[UserSamples]()
    problems = list[str]()
    for side, files in _sides(root, whole=users is not None).items():
        for file in files:
            samples += _read(file, f"{file.parent.name}/{file.name}", side, problems)
    problems += _repeated_users(samples)
    if problems:
        raise DataError(
            f"{root} is not FEMNIST as LEAF writes it: {len(problems)} problem(s).",
            details=problems,
            hint=f"Make the files again with preprocess.sh of {WHERE}.",
        )
    sizes: dict[str, int] = defaultdict(int)
    for part in samples:
        sizes[part.user] += len(part.labels)
    left_out = [BadFile(part.user, None, f"has no samples in {part.file}") for part in samples if not sizes[part.user]]
    names = [user for user, n in sizes.items() if n > 0 and (max_samples is None or n <= max_samples)]
    roles = _draw_users(root, sorted(names), users, users_seed)
    rows = [part for part in samples if part.user in roles and len(part.labels)]
    return _collection(sorted(rows, key=lambda part: part.user), roles, size, channels), left_out


def _collection(
    rows: Sequence[UserSamples], roles: Mapping[str, str | None], size: int | None, channels: int | None
) -> Collection:
    labels = np.concatenate([part.labels for part in rows])
    collection = collection_of_arrays(
        NAME, CLASSES, {"": ([part.images for part in rows], labels)}, size=size, channels=channels
    )
    users = {side: {part.user for part in rows if part.side == side} for side in ("train", "test")}
    server_users = users["test"] if not users["test"] & users["train"] else set()
    sites = []
    splits = []
    ids = []
    for part in rows:
        role = roles[part.user]
        n = len(part.labels)
        is_server = role != "train" if role else part.user in server_users
        sites += ["" if is_server else part.user] * n
        splits += [role or part.side] * n
        ids += ["/".join(word for word in (part.side, part.user, str(row)) if word) for row in range(n)]
    return replace(collection, ids=tuple(ids), sites=tuple(sites), splits=tuple(splits) if any(splits) else None)


def _check_options(max_samples: int | None, users: tuple[int, int, int] | None) -> None:
    if max_samples is not None and max_samples < 1:
        raise ConfigError(f"max_samples is {max_samples}.", hint="Use a number of samples, such as 149.")
    if users is not None and (len(users) != 3 or min(users) < 0 or users[0] < 1):
        raise ConfigError(
            f"users is {list(users)}.", hint="Use three numbers of users, to train, validate and test on: [35, 5, 10]."
        )


def _sides(root: Path, whole: bool) -> Sides:
    """The files of train and of test, or of all; if `whole`, all of them is what is wanted where there are both."""
    if not root.is_dir():
        raise DataError(f"There is no folder {root}.", hint="Check the path.")
    homes = [home for home in (root, root / "data") if home.is_dir()]
    files_of = {
        name: next((files for home in homes if (files := _json(home / name))), ())
        for name in ("train", "test", "all_data")
    }
    both = {"train": files_of["train"], "test": files_of["test"]}
    everything = files_of["all_data"] or (() if any(both.values()) else _json(root))
    if everything and (whole or not any(both.values())):
        return {"": everything}
    if missing := [f"missing: {side}/*.json" for side, files in both.items() if not files]:
        raise DataError(
            f"{root} does not hold FEMNIST as LEAF writes it.",
            details=missing,
            hint=f"Set data.path to the folder of train and test, or of all_data, that preprocess.sh of {WHERE} made.",
        )
    return both


def _json(folder: Path) -> tuple[Path, ...]:
    return tuple(sorted(folder.glob("*.json")))


def _read(file: Path, name: str, side: str, problems: list[str]) -> list[UserSamples]:
    """What a file holds of each of its users; what is wrong with it goes to `problems`."""
    try:
        data = file.read_bytes()
        # LEAF's pixels have 256 values: to know them again takes a quarter of the memory
        content = json.loads(data, parse_float=lru_cache(maxsize=1024)(float))
    except OSError as error:
        problems.append(f"{name}: cannot be read ({error.strerror})")
        return []
    except (ValueError, RecursionError) as error:
        problems.append(f"{name}: its {len(data)} bytes are not whole JSON ({error})")
        return []
    if wrong := list(_wrong_lists(content)):
        problems += [f"{name}: {reason}" for reason in wrong]
        return []
    samples = []
    for user, count in zip(content["users"], content["num_samples"], strict=True):
        user_data = content["user_data"].pop(user)
        if wrong := list(_wrong_user(user_data, count)):
            problems += [f"{name}: user {user}: {reason}" for reason in wrong]
            continue
        pixels = np.rint(np.asarray(user_data["x"], dtype=np.float64) * 255).astype(np.uint8).reshape(-1, SIDE, SIDE)
        samples.append(UserSamples(user, side, name, pixels, np.asarray(user_data["y"], dtype=np.int64)))
    return samples


def _wrong_lists(content: Any) -> Iterator[str]:
    types = {"users": list, "num_samples": list, "user_data": dict}
    if not isinstance(content, dict) or any(
        not isinstance(content.get(key), expected) for key, expected in types.items()
    ):
        yield "is not an object of lists users and num_samples and an object user_data"
        return
    users, counts, user_data = (content[key] for key in types)
    if unnamed := [user for user in users if not isinstance(user, str) or not user]:
        yield f"{len(unnamed)} of {len(users)} users have no name"
    elif len(set(users)) < len(users):
        yield f"{len(users) - len(set(users))} of {len(users)} users are listed again"
    elif len(users) != len(counts):
        yield f"has {len(users)} users, but {len(counts)} num_samples"
    elif missing := [user for user in users if user not in user_data]:
        yield f"{len(missing)} of {len(users)} users have no user_data: {', '.join(missing[:3])}"
    elif unlisted := sorted(user_data.keys() - set(users)):
        yield f"{len(unlisted)} of {len(user_data)} users in user_data are not listed: {', '.join(unlisted[:3])}"


def _wrong_user(user_data: Any, count: Any) -> Iterator[str]:
    if not isinstance(user_data, dict) or not all(isinstance(user_data.get(key), list) for key in "xy"):
        yield "is not an object of lists x and y"
        return
    x, y = user_data["x"], user_data["y"]
    if len(x) != len(y):
        yield f"has {len(x)} images x, but {len(y)} labels y"
    elif len(y) != count:
        yield f"has {len(y)} samples, but num_samples says {count}"
    for row, label in enumerate(y):
        if type(label) is not int or not 0 <= label < len(CLASSES):
            yield f"sample {row} has the label {label!r:.20}, not 0 to {len(CLASSES) - 1}"
    if not _sound(x):
        yield from _wrong_images(x)


def _sound(x: list[Any]) -> bool:
    """Whether all are images, seen at once: one pixel after the other would take as long as the reading."""
    try:
        values = np.asarray(x or np.empty((0, SIDE * SIDE)))
    except ValueError:  # they differ in length
        return False
    shaped = values.ndim == 2 and values.shape[1] == SIDE * SIDE and values.dtype.kind in "fi"
    return shaped and bool(((values >= 0) & (values <= 1)).all())


def _wrong_images(x: list[Any]) -> Iterator[str]:
    for row, pixels in enumerate(x):
        if not isinstance(pixels, list) or len(pixels) != SIDE * SIDE:
            there = f"{len(pixels)} pixels" if isinstance(pixels, list) else f"{pixels!r:.20}"
            yield f"sample {row} has {there}, not {SIDE * SIDE}"
        elif outside := [value for value in pixels if not (type(value) in (int, float) and 0 <= value <= 1)]:
            yield f"sample {row} has {len(outside)} pixels that are not 0 to 1, the first being {outside[0]!r:.20}"


def _repeated_users(samples: Sequence[UserSamples]) -> list[str]:
    places: dict[tuple[str, str], list[str]] = defaultdict(list)
    for part in samples:
        places[part.side, part.user].append(part.file)
    return [f"user {user}: is in {' and in '.join(files)}" for (_, user), files in places.items() if len(files) > 1]


def _draw_users(
    root: Path, names: Sequence[str], users: tuple[int, int, int] | None, seed: int
) -> dict[str, str | None]:
    """user -> what they were drawn for; None: what the files say."""
    if not names:
        raise DataError(f"{root} has no user with samples that may be kept.", hint="Raise max_samples.")
    if users is None:
        return dict.fromkeys(names)
    if sum(users) > len(names):
        raise ConfigError(
            f"users asks for {' + '.join(map(str, users))} = {sum(users)} users, but {len(names)} are there.",
            hint="Ask for fewer, or raise max_samples.",
        )
    order = np.random.RandomState(seed).permutation(len(names))  # its streams never change: a seed names one draw
    roles = np.repeat(ROLES, users).tolist()
    return {names[at]: role for at, role in zip(order.tolist(), roles)}
