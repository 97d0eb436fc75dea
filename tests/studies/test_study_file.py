"""The file of a study: what it may hold, and what is said of every mistake, with its line and the nearest word."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from crossward.errors import ConfigError
from crossward.studies.study_file import SECTIONS, read_study

STUDIES = Path(__file__).parents[2] / "studies"

TWO_METHODS = 'seeds = [0, 1]\nmethod = ["fedavg", "scaffold"]\n'


def mistakes(tmp_path: Path, section: str, shared: str = "") -> list[str]:
    file = tmp_path / "s.toml"
    file.write_text(f"[study]\n{section}\n{shared}")
    with pytest.raises(ConfigError) as error:
        read_study(file)
    assert error.value.what == "the study is not valid:"
    return [line.replace(str(file), "s.toml") for line in error.value.details]


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ('method = ["fedavg"]', "study.seeds: field required: write, say, seeds = [0, 1, 2] (s.toml, line 1)"),
        ('seeds = []\nmethod = ["fedavg"]', "study.seeds: there are no seeds (s.toml, line 2)."),
        ('seeds = [1, 1]\nmethod = ["fedavg"]', "study.seeds: 1 is there twice (s.toml, line 2)."),
        ("seeds = [0]", "study.method: there is no method (s.toml, line 1)."),
        (TWO_METHODS + "colums = []", "study.colums: no such key (s.toml, line 4). Did you mean 'columns'?"),
        (
            TWO_METHODS + 'pairs = [\n["scafold", "fedavg"]]',
            "study.pairs.0: the pair ['scafold', 'fedavg'] names no method 'scafold' (s.toml, line 5). "
            "Did you mean 'scaffold'?",
        ),
        (TWO_METHODS + 'pairs = [["fedavg", "fedavg"]]', "study.pairs.0: fedavg cannot be compared with itself"),
        (
            'seeds = [0]\nmethod = ["fedavg",\n{ name = "fedprox", label = "fedavg" }]',
            "study.method.1.label: two methods are called 'fedavg' (s.toml, line 4).",
        ),
        (TWO_METHODS + 'baselines = ["locl"]', "study.baselines.0: there is no baseline 'locl'. Did you mean 'local'?"),
        (TWO_METHODS + 'noise_floor = ["fedavgg"]', "there is no method 'fedavgg' to repeat (s.toml, line 4)."),
        (TWO_METHODS + 'axes."partion.beta" = [1]', "partion.beta is no key of a configuration (s.toml, line 4)."),
        (TWO_METHODS + 'axes."run.seed" = [1]', "run.seed is set by the study itself (s.toml, line 4)."),
        (TWO_METHODS + "axes.dataset = [1]", "each value is a table, as in dataset = "),
        (TWO_METHODS + "axes.dataset = [{ data = {} }]", "the value has no label (s.toml, line 4)."),
        (TWO_METHODS + 'axes.dataset = [{ label = "a", dta = {} }]', "'dta' is no section (s.toml, line 4)."),
        (TWO_METHODS + 'axes."partition.beta" = [1, 1]', "1 is there twice (s.toml, line 4)."),
        (TWO_METHODS + 'axes."partition.beta" = []', "study.axes.partition.beta"),
        (TWO_METHODS + 'exclude = [{ metod = "fedavg" }]', "there is no axis 'metod' (s.toml, line 4). Did you mean"),
        (TWO_METHODS + "exclude = [{ seed = 7 }]", "study.exclude.0.seed: 7 is no value of it (s.toml, line 4)."),
        (TWO_METHODS + "exclude = [{}]", "it is empty and would leave out everything (s.toml, line 4)."),
        (TWO_METHODS + "last = 0", "study.last: input should be greater than or equal to 1, not 0 (s.toml, line 4)"),
    ],
)
def test_a_mistake_is_named_with_its_line(tmp_path, section, said):
    assert any(said in line for line in mistakes(tmp_path, section))


def test_all_mistakes_are_reported_at_once(tmp_path):
    section = 'seeds = []\nmethod = ["fedavg"]\npairs = [["a", "fedavg"]]\nexclude = [{ b = 1 }]'
    assert len(mistakes(tmp_path, section)) == 3


def test_the_ensemble_needs_predictions(tmp_path):
    said = mistakes(
        tmp_path, TWO_METHODS + 'baselines = ["ensemble"]', "[evaluate]\nview = 'local'\nkeep_predictions = false"
    )
    assert said == [
        "evaluate.keep_predictions: the ensemble is made of stored predictions (s.toml, line 7). Write true."
    ]


def test_a_file_without_a_study_and_one_that_is_no_toml(tmp_path):
    file = tmp_path / "s.toml"
    file.write_text("[run]\nrounds = 1\n")
    with pytest.raises(ConfigError, match="has no section") as error:
        read_study(file)
    assert "crossward run" in error.value.hint
    file.write_text("[study\n")
    with pytest.raises(ConfigError, match="is not valid TOML"):
        read_study(file)
    with pytest.raises(ConfigError, match="cannot read"):
        read_study(tmp_path / "none.toml")


def test_pairs_and_labels(tmp_path):
    file = tmp_path / "s.toml"
    file.write_text(f'[study]\n{TWO_METHODS}baselines = ["ensemble"]')
    settings = read_study(file).settings
    assert settings.labels() == ("fedavg", "scaffold", "local", "ensemble")
    assert settings.compared_pairs() == (("fedavg", "local"), ("scaffold", "local"), ("ensemble", "local"))
    file.write_text(f"[study]\n{TWO_METHODS}pairs = []\nnoise_floor = true")
    settings = read_study(file).settings
    assert settings.compared_pairs() == ()
    assert settings.repeated() == ("fedavg",)


def test_every_section_of_a_configuration_can_vary():
    from crossward.config.schema import Config

    assert {*SECTIONS, "method", "plugin"} == {*Config.model_fields}


def test_looking_at_a_study_imports_no_torch():
    code = "import sys, crossward.studies.status, crossward.studies.prune; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("file", sorted(STUDIES.glob("*.toml")), ids=lambda file: file.stem)
def test_no_study_trains_fedrs_with_bsm(file):
    """The two together train as fedavg with bsm does: its row would stand for another method."""
    names = [method.name.split("+") for method in read_study(file).settings.method]
    assert not any(parts[0] == "fedrs" and "bsm" in parts for parts in names)
