"""The states of a cell."""

from __future__ import annotations

FINISHED = "finished"
STORED = "stored"  # its folder is gone, its figures are kept
RUNNING = "running"
CUT_OFF = "cut off"  # the next `study run` goes on with it
WAITING = "waiting"
FAILED = "failed"
BLOCKED = "blocked"  # its folder holds something else, which is left alone
TO_DO = (WAITING, CUT_OFF)
HAS_FIGURES = (FINISHED, STORED)
ORDER = (FINISHED, STORED, RUNNING, CUT_OFF, WAITING, FAILED, BLOCKED)
