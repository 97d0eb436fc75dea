"""Twenty sites, of which three in ten drop out of any step at random, for ten rounds."""

from __future__ import annotations

import random

from crossward.core.run import Plan, run
from crossward.methods.scaffold import Scaffold
from crossward.testing.loopback_federation import loopback_federation
from crossward.testing.short_runs import Records, assert_finite
from crossward.testing.toy import Toy

SITES = 20
ROUNDS = 10
SHARE = 0.3


class LosesReplies:
    """Loses replies to training steps at random; `lost` names the sites, by round."""

    def __init__(self, names):
        self.rng = random.Random(0)
        self.names = names
        self.lost = {}

    def __call__(self, request, reply):
        if request.metadata.message_type != "train" or self.rng.random() > SHARE:
            return reply
        self.lost.setdefault(int(request.metadata.group_id), set()).add(self.names[request.metadata.dst_node_id])
        return None


def test_the_run_ends_and_every_fault_is_named():
    run_sites = Toy(sizes=((6, 2, 2),) * SITES).run_sites(Scaffold())
    with loopback_federation(run_sites, deadline=30.0, probe_after=100.0) as (coordinator, engine, _):
        tamper = engine.roster.messenger.grid.tamper = LosesReplies([run_sites.name(i) for i in run_sites.ids])
        records = Records()
        progress = run(coordinator, engine, Plan(ROUNDS, seed=0), [records])
    assert progress.done == ROUNDS
    assert_finite(progress.state)
    assert sum(map(len, tamper.lost.values())) > 0.2 * SITES * ROUNDS
    for record in records.rounds:
        assert set(record.failures) == tamper.lost.get(record.round - 1, set())
        assert set(record.failures.values()) <= {"no answer within 30 s"}
        assert set(record.losses) == set(record.cohort) - set(record.failures)
