"""The server's state and the sites' memories of a finished run, from its checkpoints."""

from __future__ import annotations

from dataclasses import dataclass

from crossward.audits.finding import NotMeasured
from crossward.core.store import read_tree
from crossward.core.tree import Tree
from crossward.runs.checkpoint_writer import BEST, CHECKPOINT
from crossward.runs.result import Result


@dataclass(frozen=True)
class StoredState:
    state: Tree
    memories: dict[int, Tree]  # by the number of the site
    round: int  # after which, from 1


def stored_state(result: Result, which: str) -> StoredState:
    """After the best round, or after the last."""
    file = result.folder / (BEST if which == "best" else CHECKPOINT)
    if not file.exists():
        raise NotMeasured(f"the run has no checkpoint of its {which} round any more: it was pruned, or not evaluated.")
    stored = read_tree(file)
    folder = result.folder / "checkpoint" / "memory"
    memories = {int(site): read_tree(folder / str(name)) for site, name in stored["memory"].items()}
    return StoredState(stored["state"], memories, int(stored["round"] if which == "best" else stored["done"]))
