"""Every method trains and predicts on pixels of 16 bits as on those of 8: it sees floats of one range either way."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from crossward.core.bit_depth import widened
from crossward.core.tree import Tree
from crossward.core.weights import Weights
from crossward.engines.local import LocalEngine
from crossward.testing.cases import Case, cases
from crossward.testing.short_runs import Records, run_to_end

IN_EVERY_RUN = ("fedavg", "fedbm", "fedcd", "mhpflgb")  # of the tests; the other methods in `make e2e`
PLAIN = [
    pytest.param(case, id=str(case), marks=() if str(case).startswith(IN_EVERY_RUN) else pytest.mark.e2e)
    for case in cases()
    if not case.plugins
]


def end_of(case: Case, depth: int) -> Tree:
    run_sites = case.run_sites()
    federation = run_sites.federation
    collection = replace(federation.collection, images=widened(federation.collection.images, depth))
    run_sites.federation = replace(federation, collection=collection)
    assert run_sites.federation.collection.depth == depth
    records = Records()
    end = run_to_end(run_sites, LocalEngine(run_sites), records)
    assert not [record.failures for record in records.rounds if record.failures]
    return end


@pytest.mark.parametrize("case", PLAIN)
def test_a_run_on_16_bits_ends_where_that_on_8_does(case):
    ends = [end_of(case, depth) for depth in (8, 16)]
    models = [end.get("model") for end in ends]
    if isinstance(models[0], Weights) and isinstance(models[1], Weights):
        for name, value in models[0].items():
            assert torch.allclose(models[1][name], value, atol=1e-3, rtol=1e-2), name
