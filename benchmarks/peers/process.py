"""Peer: another framework in a process and an environment of its own, which runs a lap when it is told to."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PYTHON = ROOT / ".venv-bench" / "bin" / "python"
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "OMP_NUM_THREADS": "1",
}


class Peer:
    def __init__(self, script: str, warm_up: int, rounds: int, laps: int, *more: str) -> None:
        self.script = script
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        here = self.folder.name
        self.errors, self.weights = Path(here, "errors.txt"), Path(here, "weights.pt")
        paths = {"PYTHONPATH": f"{HERE.parent}{os.pathsep}{ROOT}", "FLWR_HOME": here, "RAY_TMPDIR": here}
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                [str(PYTHON), str(HERE / script), *map(str, (warm_up, rounds, laps, self.weights)), *more],
                env=os.environ | QUIET | paths, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
            )  # fmt: skip
        self._told("ready")

    def learnt(self) -> Mapping[str, Tensor]:
        """The weights after its warm-up."""
        weights: Mapping[str, Tensor] = torch.load(self.weights)
        return weights

    def lap(self) -> float:
        """Seconds per round."""
        assert self.process.stdin is not None
        print(file=self.process.stdin, flush=True)
        return float(self._told("seconds"))

    def finish(self) -> None:
        self.process.communicate()
        if self.process.returncode:
            self._fail()
        self.folder.cleanup()

    def _told(self, key: str) -> Any:
        """What the peer says of `key`, among whatever else it prints."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(f'{{"{key}"'):
                return json.loads(line)[key]
        self.process.wait()
        return self._fail()

    def _fail(self) -> None:
        raise SystemExit(f"{self.script} failed:\n{self.errors.read_text()[-4000:]}")
