"""The situations of the demo: their studies are valid, fair, and cover every method."""

from __future__ import annotations

import pytest

from crossward.demo.situations import ALONE, FEDAVG, MORE_SITUATIONS, SITUATIONS, Situation
from crossward.methods import METHODS
from crossward.studies.study import Study
from crossward.studies.study_file import StudyFile, read_study

TUNED_ON = {*range(100, 112)}  # seeds on which settings were chosen

LOOKED_AT = {0, 1, 2}  # patients of earlier versions of the demo


def study_of(situation: Situation, folder) -> StudyFile:
    return read_study(situation.write_study(folder))


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: situation.name)
def test_a_situation_compares_the_papers_methods_with_training_alone_and_fedavg(situation, tmp_path):
    study = study_of(situation, tmp_path)
    labels = set(study.settings.labels())
    references = {ALONE} if situation.name == "own-networks" else {ALONE, FEDAVG}  # FedAvg needs one network
    assert labels == {*situation.methods, *references}
    pairs = set(study.settings.compared_pairs())
    assert {(method, reference) for method in situation.methods for reference in references} <= pairs


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: situation.name)
def test_settings_were_chosen_on_other_seeds_and_patients(situation, tmp_path):
    study = study_of(situation, tmp_path)
    assert not TUNED_ON & set(study.settings.seeds)
    assert study.shared["data"].get("seed", 0) not in TUNED_ON
    assert study.shared["data"].get("seed", 0) not in LOOKED_AT
    assert study.shared["data"]["sites"] == 6
    assert "were chosen on" in situation.study_text()


@pytest.mark.parametrize("situation", [*SITUATIONS, *MORE_SITUATIONS], ids=lambda situation: situation.name)
def test_every_cell_of_a_situation_can_run(situation, tmp_path):
    study = Study(situation.write_study(tmp_path), tmp_path)
    assert len(study.cells) == study.size


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: situation.name)
def test_there_are_seeds_enough_for_an_interval(situation, tmp_path):
    assert len(study_of(situation, tmp_path).settings.seeds) >= 3


def test_four_networks_have_four_resolutions(tmp_path):
    (situation,) = [each for each in SITUATIONS if each.name == "own-networks"]
    sites = study_of(situation, tmp_path).shared["site"]
    assert len({site["net"]["name"] for site in sites}) == 4
    assert len({site.get("shrink", 1) for site in sites}) == 4


def test_all_situations_together_have_every_method(tmp_path):
    names = {
        entry.name.split("+")[0]
        for situation in (*SITUATIONS, *MORE_SITUATIONS)
        for entry in study_of(situation, tmp_path).settings.methods()
    }
    assert names == set(METHODS)
