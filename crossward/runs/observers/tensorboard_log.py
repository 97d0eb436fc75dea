"""TensorBoard: a run's metrics as event files in its folder tensorboard/; `tensorboard --logdir runs` shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from crossward.disk import cannot_write
from crossward.runs.observers.round_log import RoundLog
from crossward.runs.observers.scalars import Scalars, hyperparameters

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

FOLDER = "tensorboard"


class TensorBoardLog(RoundLog):
    _writer: SummaryWriter | None = None

    def open(self) -> int:
        """The files are written anew, so that no round is there twice; those of a resumed run are small."""
        from torch.utils.tensorboard import SummaryWriter

        folder = self.rundir.folder / FOLDER
        try:
            old = list(folder.glob("events.out.tfevents.*"))
            for file in old:
                file.unlink()
            # a TensorBoard that shows the run at this moment forgets what it has read before
            self._writer = SummaryWriter(str(folder), purge_step=1 if old else None)
        except OSError as error:
            raise cannot_write(folder, error) from error
        return 0

    def write(self, round: int, when: float, scalars: Scalars) -> None:
        assert self._writer is not None
        try:
            for name, value in scalars.items():
                self._writer.add_scalar(name, value, round, walltime=when)
            self._writer.flush()
        except OSError as error:
            raise cannot_write(self.rundir.folder / FOLDER, error) from error

    def finish(self, summary: Scalars) -> None:
        """The settings with the best round: the page HPARAMS, where runs are compared."""
        assert self._writer is not None
        self._writer.add_hparams(hyperparameters(self.config), summary, run_name=".")

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
