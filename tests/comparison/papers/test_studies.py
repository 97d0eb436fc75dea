"""The study files that would fill the tables: every cell is a configuration that is valid."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from crossward.comparison.papers.row_methods import row_method
from crossward.comparison.papers.settings import data_setting
from crossward.comparison.papers.studies import MINUTES, PaperStudy, small_rounds, table_studies
from crossward.comparison.papers.tables import paper_table, paper_tables, table_names
from crossward.config.reading import config_from
from crossward.data.augment import augmentation
from crossward.runs.checks import check_metric
from crossward.studies.grid import GridCell, grid
from crossward.studies.study_file import read_study
from crossward.tasks import task as make_task


def cells(study: PaperStudy, folder: Path) -> list[GridCell]:
    """The runs of a study for its first seed, from its file."""
    file = folder / "paper.toml"
    file.write_text(study.text())
    written = read_study(file)
    return [cell for cell in grid(written) if cell.seed == written.settings.seeds[0]]


@pytest.mark.parametrize("small", [False, True], ids=["full", "small"])
@pytest.mark.parametrize("name", table_names())
def test_every_cell_is_a_valid_configuration(name, small, tmp_path):
    for study in table_studies(paper_table(name), small=small):
        assert tomllib.loads(study.text()) == study.document
        made = cells(study, tmp_path)
        assert made
        for cell in made:
            config = config_from(cell.document)
            task = "segmentation" if config.data.source == "polyps" else "classification"
            check_metric(config, make_task(task, ("background", "polyp")))
            augmentation(config.data.augment)
        assert len({cell.name for cell in made}) == len(made), "two methods would share a folder"


@pytest.mark.parametrize("name", table_names())
def test_studies_cover_every_figure_of_their_table(name):
    """Each row and setting is in a study, or the file says why it is left out."""
    table = paper_table(name)
    studies = table_studies(table)
    text = "\n".join(comment for study in studies for comment in study.comments)
    for row, column in table.figures:
        method = row_method(table.key, row, column.dataset, column.setting)
        if not method.name:
            assert f"Left out: {row}" in text
            continue
        slug = data_setting(table.key, table.number, column.dataset, column.setting).slug
        mine = [study for study in studies if slug in study.name or len(studies) == len(_settings(table))]
        assert any(_has(study, method.name) for study in mine or studies), (row, column)


def _settings(table) -> set[str]:
    return {column.setting for column in table.columns}


def _has(study: PaperStudy, method: str) -> bool:
    return any(entry["name"] == method for entry in study.document["study"]["method"])


def test_the_papers_settings():
    [study] = table_studies(paper_table("fedbm-4"))
    document = study.document
    assert document["study"]["seeds"] == [0, 1, 2]
    assert document["study"]["vary"] == {"key": "partition.beta", "values": [0.05, 0.1]}
    assert document["study"]["columns"] == ["best.global.accuracy", "best.global.f1"]
    assert (document["run"]["rounds"], document["run"]["participation"]) == (50, 0.5)
    assert (document["train"]["epochs"], document["train"]["batch_size"], document["train"]["lr"]) == (10, 8, 0.01)
    assert (document["data"]["size"], document["partition"]["sites"]) == (128, 12)
    assert ["FedBM", "FedAvg"] in document["study"]["pairs"]


def test_what_the_authors_tune_to_a_setting_makes_a_study_of_its_own():
    studies = {study.name: study.document for study in table_studies(paper_table("fedbm-2"))}
    assert {*studies} == {"fedbm-2-beta0.05", "fedbm-2-beta0.1"}
    taus = {name: document["study"]["method"][-1]["tau"] for name, document in studies.items()}
    assert taus == {"fedbm-2-beta0.05": 12.5, "fedbm-2-beta0.1": 7.5}
    assert studies["fedbm-2-beta0.1"]["partition"]["beta"] == 0.1
    assert studies["fedbm-2-beta0.1"]["study"]["seeds"] == [1, 3, 6]


def test_what_configuration_cannot_say_is_a_comment():
    wanted = {
        "fedbm-1": "the paper's text says Adam",
        "fedbm-3": "the paper takes MedMNIST's split",
        "fedbm-5": "the paper draws other writers for every seed",
        "fedcd-3": "rotates by the nearest pixel",
        "fednpr-3": "publishes one split",
        "fednpr-4": "Left out: FedNPR-Per no-BSM single-cluster",
    }
    for name, words in wanted.items():
        comments = [comment for study in table_studies(paper_table(name)) for comment in study.comments]
        assert any(words in comment for comment in comments), name
        assert f"# {comments[0]}" in table_studies(paper_table(name))[0].text()


def documents(name, small=False):
    return {study.name: study.document for study in table_studies(paper_table(name), small=small)}


@pytest.mark.parametrize("name", [f"fedbm-{n}" for n in range(1, 13)] + [f"fedcb-{n}" for n in range(1, 6)])
def test_fedbm_and_fedcb_choose_a_round_by_a_sum_of_metrics(name):
    for document in documents(name).values():
        assert document["evaluate"] == {"view": "global", "select": "accuracy+balanced_accuracy+precision+f1+auc"}


def test_kvasir_and_ham_are_held_out_before_anything_is_dealt():
    for name in ("fedbm-2", "fedbm-3", "fedcb-3"):
        for document in documents(name).values():
            assert document["partition"]["global_split"] == [0.7, 0.1, 0.2]


def test_pbc_is_cropped_as_medmnist_prepares_it():
    for small in (False, True):
        fits = {each["data"]["fit"] for each in documents("fedbm-4", small).values()}
        assert fits == {"centre:200/360"}


def test_fedrs_has_its_own_loss_alone():
    """With bsm it would be FedAvg, as its caution says."""
    for small in (False, True):
        methods = [method for each in documents("fednpr-3", small).values() for method in each["study"]["method"]]
        assert {method["name"] for method in methods if method["label"] == "FedRS"} == {"fedrs"}
        assert {method["name"] for method in methods if method["label"] == "FedAvg"} == {"fedavg+bsm"}


def test_fedcd_trains_on_whole_batches_and_crops_as_moon_does():
    for document in documents("fedcd-1").values():
        assert document["train"]["drop_last"] is True
    augment = {each["data"]["source"]: each["data"].get("augment") for each in documents("fedcd-1").values()}
    assert augment["cifar10"] == ["crop:4", "hflip"]  # reflected
    assert augment["cifar100"] == ["crop:4:zero", "hflip", "rotate:15:zero"]
    assert augment["emnist-letters"] is None


def test_fednpr_has_five_folds_where_no_split_is_published():
    by_source = {each["data"]["source"]: each for each in documents("fednpr-3").values()}
    partition = by_source["rsna-ich"]["partition"]
    assert (partition["folds"], partition["fold"], partition["seed"]) == (5, "seed", 0)
    assert by_source["rsna-ich"]["study"]["seeds"] == [0, 1, 2, 3, 4]
    assert "folds" not in by_source["fed-isic2019"]["partition"]


def test_small_studies_fit_an_hour():
    for table in paper_tables():
        studies = table_studies(table, small=True)
        assert 0 < sum(study.minutes or 0 for study in studies) <= MINUTES + 1, table.name
        full = table_studies(table)
        assert [study.name for study in studies] == [study.name for study in full]
        for one, other in zip(studies, full, strict=True):
            labels = [[method["label"] for method in each.document["study"]["method"]] for each in (one, other)]
            assert labels[0] == labels[1]
            assert one.document["run"]["rounds"] <= 30


def test_rounds_of_a_small_study_stand_for_those_of_the_paper():
    table = paper_table("fedcd-3")
    half = small_rounds(table, "clients=50;ratio=0.2;rounds=100")
    whole = small_rounds(table, "clients=50;ratio=0.2;rounds=200")
    assert half is not None
    assert whole is not None
    assert half < whole
