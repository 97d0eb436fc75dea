"""Twenty sites, of which three in ten drop out of any step at random, for ten rounds."""

from __future__ import annotations

import random

from crossward.core.run import Plan, run
from crossward.methods.scaffold import Scaffold
from crossward.testing.loopback_federation import federated
from crossward.testing.short_runs import Records, assert_finite
from crossward.testing.toy import Toy

SITES, ROUNDS, SHARE = 20, 10, 0.3


class Losing:
    """Loses replies to training steps and tells which: by round, the sites."""

    def __init__(self, names):
        self.rng, self.names, self.lost = random.Random(0), names, {}

    def __call__(self, question, reply):
        if question.metadata.message_type != "train" or self.rng.random() > SHARE:
            return reply
        self.lost.setdefault(int(question.metadata.group_id), set()).add(self.names[question.metadata.dst_node_id])
        return None


def test_the_run_ends_and_every_fault_is_named():
    run_sites = Toy(sizes=((6, 2, 2),) * SITES).run_sites(Scaffold())
    with federated(run_sites, deadline=30.0, quiet=100.0) as (coordinator, engine, _):
        losing = engine.roster.post.grid.tamper = Losing([run_sites.name(i) for i in run_sites.ids])
        records = Records()
        progress = run(coordinator, engine, Plan(ROUNDS, seed=0), [records])
    assert progress.done == ROUNDS
    assert_finite(progress.state)
    assert sum(map(len, losing.lost.values())) > 0.2 * SITES * ROUNDS
    for record in records.seen:
        assert set(record.failures) == losing.lost.get(record.round - 1, set())
        assert set(record.failures.values()) <= {"no answer within 30 s"}
        assert set(record.losses) == set(record.cohort) - set(record.failures)
