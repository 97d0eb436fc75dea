"""The images of a finished run. A run directory holds none: they are loaded as the configuration says, if they are
still there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from crossward.config.reading import config_from
from crossward.data.federation import Federation
from crossward.data.manifest import from_manifest
from crossward.errors import StorageError
from crossward.runs.result import Result


def load_images(result: Result, partition: Mapping[str, Any] | None = None) -> Federation:
    """The images as they were shared out; raises CrosswardError in words if they are not there any more. `partition` is
    the run's, where it has been read already."""
    if result.across_hospitals:
        raise StorageError("the images are at the hospitals, not here")
    try:
        collection, _ = config_from(result.config).data.load()
    except (OSError, ImportError) as error:
        raise StorageError(f"the images cannot be loaded ({type(error).__name__})") from error
    return from_manifest(collection, dict(result.partition if partition is None else partition))
