"""Crossward: federated learning for medical imaging between hospitals that differ.

import crossward
result = crossward.run({"data": {"source": "phantom"}, "method": {"name": "scaffold"}})
again = crossward.load(result.folder)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from crossward.runs.lifecycle import resume, run
    from crossward.runs.result import Result, load
    from crossward.studies.study import Study, study

__version__ = "0.1.0"
__all__ = ["Result", "Study", "__version__", "load", "resume", "run", "study"]


def __getattr__(name: str) -> Any:
    """The API on demand: importing torch takes seconds, and the command line often needs none of it."""
    if name in ("Study", "study"):
        from crossward.studies import study as studies

        return getattr(studies, name)
    if name in __all__:
        from crossward.runs import lifecycle

        return getattr(lifecycle, name)
    raise AttributeError(f"module 'crossward' has no attribute {name!r}")
