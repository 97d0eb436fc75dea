"""Patients of stored images: what a run writes is what statistics resample."""

from __future__ import annotations

from collections import Counter

from crossward.comparison.method_runs import read_method_runs
from crossward.config.reading import config_from
from crossward.runs.build import prepare


def test_statistics_find_the_patients_of_a_run(finished_run, config):
    result = finished_run()
    groups = read_method_runs([result]).groups
    collection = prepare(config_from(config())).federation.collection
    true_groups = dict(zip(collection.ids, collection.groups, strict=True))
    assert groups
    pairs = {(group, true_groups[image]) for image, group in groups.items()}
    assert len(pairs) == len({group for group, _ in pairs}) == len({patient for _, patient in pairs})
    assert max(Counter(groups.values()).values()) > 1
