"""How much of the machine's memory each thing may take that can live on disk as well. Budgets change where something
lives, never a result.

All are shares of the memory that the machine has, or that its container or batch system allows, not of what happens to
be free: a run that is repeated has the same budgets. Processes that train side by side share them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from crossward.core.cores import training_processes
from crossward.core.machine_memory import total_bytes

Budgeted = Literal["client memory", "replies", "images"]

SHARES: Mapping[Budgeted, float] = {
    "client memory": 1 / 32,  # what clients remember between rounds: 256 MiB of 8 GiB; beyond, in files of the run
    "replies": 1 / 32,  # of the clients to one step, until the round is over; beyond, in temporary files
    "images": 1 / 16,  # of an archive of arrays: 512 MiB of 8 GiB; a larger one is mapped from the cache
}
USUAL_MACHINE = 8 << 30  # bytes, where the system does not say
LEAST = 64 << 20  # bytes that each may always take


def budgets() -> dict[str, int]:
    """Bytes by what may take them."""
    return {of: budget(of) for of in SHARES}


def budget(of: Budgeted) -> int:
    """Bytes that it may take in memory, in this process."""
    machine = total_bytes() or USUAL_MACHINE
    return max(LEAST, int(machine * SHARES[of]) // training_processes())
