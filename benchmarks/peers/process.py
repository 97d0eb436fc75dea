"""Peer: another framework in a process and an environment of its own, which runs a lap when asked."""

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
    """A running script of peers/ that has done its warm-up. `words` are further arguments of the script."""

    def __init__(
        self, script: str | Path, warm_up: int, rounds: int, laps: int, *words: str, python: Path = PYTHON
    ) -> None:
        self.script = HERE / script
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.errors = Path(self.folder.name, "errors.txt")
        self.weights = Path(self.folder.name, "weights.pt")
        paths = {
            "PYTHONPATH": f"{HERE.parent}{os.pathsep}{ROOT}",
            "FLWR_HOME": self.folder.name,
            "RAY_TMPDIR": self.folder.name,
        }
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                [str(python), str(self.script), *map(str, (warm_up, rounds, laps, self.weights)), *words],
                env=os.environ | QUIET | paths,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._wait_for("ready")

    def weights_after_warm_up(self) -> Mapping[str, Tensor]:
        weights: Mapping[str, Tensor] = torch.load(self.weights)
        return weights

    def lap(self) -> float:
        """Run one lap; the seconds per round."""
        assert self.process.stdin is not None
        print(file=self.process.stdin, flush=True)
        return float(self._wait_for("seconds"))

    def finish(self) -> None:
        self.process.communicate()
        if self.process.returncode:
            self._fail()
        self.folder.cleanup()

    def _wait_for(self, key: str) -> Any:
        """The value of `key` in the next message of the peer that has it, whatever else the peer prints before."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(f'{{"{key}"'):
                return json.loads(line)[key]
        self.process.wait()
        return self._fail()

    def _fail(self) -> None:
        raise SystemExit(f"{self.script.name} failed:\n{self.errors.read_text()[-4000:]}")
