"""Attack: a hospital's folder is put back to an earlier state while a run is going on. The coordinator, which returns
the tag of the last line that it was told of, brings it to light; and keeps these tags itself."""

from __future__ import annotations

import shutil

import pytest
import torch

from crossward.core.run import Observer, Plan, run
from crossward.foreign import ForeignError
from crossward.hospitals.flower.engine import checked_receipt
from crossward.methods.scaffold import Scaffold
from crossward.testing.loopback_federation import loopback_federation
from crossward.testing.toy import Toy

torch.set_num_threads(1)


class PutBack(Observer):
    """Saves a site's log after round 1, and puts it back after round 2."""

    def __init__(self, folder, backup):
        self.folder, self.backup = folder, backup

    def on_round(self, record):
        for name in ("sent.jsonl", "sent.head"):
            if record.round == 1:
                shutil.copy(self.folder / name, self.backup / name)
            elif record.round == 2:
                shutil.copy(self.backup / name, self.folder / name)


@pytest.mark.parametrize("attacked", [False, True])
def test_a_log_put_back_to_an_earlier_state_in_a_run(tmp_path, attacked):
    with loopback_federation(Toy().run_sites(Scaffold())) as (coordinator, engine, services):
        log = services[0].log
        observers = [PutBack(log.file.parent, tmp_path)] if attacked else []
        run(coordinator, engine, Plan(3), observers=observers)
        problems = log.verify()
        assert bool(problems) == attacked
        assert all("the coordinator holds a receipt" in line for line in problems)
        assert services[1].log.verify() == []
        assert engine.log_receipts[0] == log.receipt()
        assert engine.log_receipts[1] == services[1].log.receipt()


@pytest.mark.parametrize(
    "receipt", [3, [], {}, {"number": 1, "tag": "x"}, {"number": "1", "tag": "0" * 64}, {"tag": 3}]
)
def test_a_receipt_that_is_none(receipt):
    with pytest.raises(ForeignError):
        checked_receipt(receipt)
