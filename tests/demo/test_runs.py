"""The order in which the demo runs the cells of a study."""

from __future__ import annotations

from crossward.demo.runs import longest_first
from crossward.studies.scheduler import Job, Listener


def test_jobs_run_method_by_method_in_the_order_of_the_study_and_seed_by_seed_within_one():
    jobs = [Job(f"{label}-{seed}", label, {}) for seed in (1, 2) for label in ("fast", "slow", "other")]
    ran: list[str] = []
    execute = longest_first(lambda ordered, listener: ran.extend(job.key for job in ordered), ("slow", "other", "fast"))
    execute(jobs, Listener())
    assert ran == ["slow-1", "slow-2", "other-1", "other-2", "fast-1", "fast-2"]
