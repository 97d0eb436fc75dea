"""What a run computes: a digest of its resolved configuration and of its data, and whether a run directory is that run.

The digest covers the settings that differ from their defaults, so that a key that a later version adds changes no
digest. Where images lie does not matter, only what they are: the fingerprint of the collection stands for the path.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from hashlib import blake2b
from pathlib import Path
from typing import Any

from crossward import nets
from crossward.config.reading import differences, method_of, plugins_of
from crossward.config.schema import Config
from crossward.data.manifest import collection_facts
from crossward.data.sources.settings import SourceSettings
from crossward.errors import DataError

DIGITS = 10  # hexadecimal, at the end of a folder's name
FREE_TO_CHANGE = (
    "engine.name:", "engine.workers:", "engine.memory_mib:", "engine.device_images_mib:", "run.out:", "run.name:",
    "data.path:", "data.bad_files:", "observe.",
)  # fmt: skip
SEEN_IN_TRAINING = {"normalise", "augment"}  # settings of a source that change no image of its collection
GENERATED = ("phantom",)  # sources whose images are drawn from their settings


@dataclass(frozen=True)
class CollectionFacts:
    """What is known of the images of a study before anything runs."""

    fingerprint: str
    task: str


@dataclass
class Collections:
    """The fingerprints of collections, each read once."""

    known: dict[str, CollectionFacts] = field(default_factory=dict)

    def facts(self, data: SourceSettings) -> CollectionFacts:
        """Read the images (from the cache of decoded images, if they are there) and say what they are."""
        settings = data.model_dump(mode="json", exclude=SEEN_IN_TRAINING)
        key = json.dumps(settings, sort_keys=True)
        if key not in self.known:
            collection, _ = data.load()
            facts = collection_facts(collection)
            self.known[key] = CollectionFacts(facts["fingerprint"], facts["task"])
        return self.known[key]

    def fingerprint(self, data: SourceSettings) -> str:
        return "" if data.source in GENERATED else self.facts(data).fingerprint


def run_digest(config: Config, fingerprint: str) -> str:
    """Equal for two runs that compute the same."""
    text = json.dumps([_changed_settings(config), fingerprint], sort_keys=True, default=str)
    return blake2b(text.encode(), digest_size=16).hexdigest()


def _changed_settings(config: Config) -> dict[str, Any]:
    """Every setting that is not its default, without those that change no result."""
    full = config.canonical()
    defaults = Config.model_validate({}).canonical()
    defaults["data"] = _data_defaults(config.data)
    for section, key in (("run", "out"), ("run", "name"), ("data", "path")):
        full[section].pop(key, None)
    full.pop("observe")
    full.pop("checkpoint")
    for key in ("name", "workers", "memory_mib", "device_images_mib"):
        full["engine"].pop(key)
    changed: dict[str, Any] = _without_defaults(full, defaults)
    changed["data"] = {**changed.get("data", {}), "source": config.data.source}
    changed["method"] = {"name": config.method.name, **_own_options(method_of(config))}
    changed["plugin"] = {
        name: _own_options(plugin) for name, plugin in zip(config.plugin_names, plugins_of(config), strict=True)
    }
    changed["net"] = _net(full["net"])
    if config.partition.file is not None:
        changed["partition"]["file"] = _content(config.partition.file)
    return changed


def _without_defaults(value: Any, default: Any) -> Any:
    if not isinstance(value, Mapping) or not isinstance(default, Mapping):
        return value
    changed = {key: inner for key, inner in value.items() if key not in default or inner != default[key]}
    return {key: _without_defaults(inner, default.get(key)) for key, inner in changed.items()}


def _data_defaults(data: SourceSettings) -> dict[str, Any]:
    names = [name for name, each in type(data).model_fields.items() if not each.is_required()]
    return type(data).model_construct(None, source=data.source).model_dump(mode="json", include=set(names))


def _own_options(part: Any) -> dict[str, Any]:
    """The options of a method or a plugin that are not its defaults."""
    options = asdict(part)
    defaults = {each.name: each.default for each in fields(part) if each.default is not MISSING}
    return {name: value for name, value in options.items() if name not in defaults or value != defaults[name]}


def _net(section: Mapping[str, Any]) -> dict[str, Any]:
    names = section["name"] if isinstance(section["name"], list) else [section["name"]]
    defaults = nets.NETS[names[0]].options if len(names) == 1 and names[0] in nets.NETS else {}
    return {key: value for key, value in section.items() if key == "name" or value != defaults.get(key)}


def _content(file: Path) -> str:
    try:
        return blake2b(file.read_bytes(), digest_size=16).hexdigest()
    except OSError as error:
        raise DataError(f"cannot read the partition {file}: {error.strerror}") from error


def settings_apart(about: Mapping[str, Any], config: Config) -> list[str]:
    """The settings in which a run directory, by its run.json, is another run than the configuration asks for. A key
    that the directory lacks, because its version had no such key, counts as its default."""
    stored = _filled(about["config"], Config.model_validate({}).canonical() | {"data": _data_defaults(config.data)})
    apart = differences(stored, config.canonical())
    return [line for line in apart if not line.startswith(FREE_TO_CHANGE)]


def _filled(value: Any, defaults: Any) -> Any:
    if not isinstance(value, Mapping) or not isinstance(defaults, Mapping):
        return value
    return {**defaults, **{key: _filled(inner, defaults.get(key)) for key, inner in value.items()}}
