"""Classification: metrics by hand and against sklearn, including absent classes and ties."""

from __future__ import annotations

import json
import math
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch

from crossward.errors import ConfigError, RunError
from crossward.tasks import names, task
from crossward.tasks.classification import Classification

torch.set_num_threads(1)
ABC = Classification(("a", "b", "c"))

# truth a a a b b: guesses a a b b c, so class c is predicted but never true
PREDICTION = torch.tensor([[0.8, 0.1, 0.1], [0.6, 0.3, 0.1], [0.3, 0.5, 0.2], [0.2, 0.7, 0.1], [0.1, 0.2, 0.7]])
TRUTH = torch.tensor([0, 0, 0, 1, 1])


def random_case(seed: int, n: int, k: int, present: int, decimals: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities rounded to `decimals`, which makes ties, and truths of the first `present` classes only."""
    rng = np.random.default_rng(seed)
    p = np.round(rng.dirichlet(np.ones(k), n), decimals)
    return torch.tensor(p), torch.tensor(rng.integers(0, present, n))


def test_metrics_by_hand():
    m = ABC.metrics(PREDICTION, TRUTH)
    assert m["confusion"] == [[2, 1, 0], [0, 1, 1], [0, 0, 0]]
    assert m["support"] == [3, 2, 0]
    assert m["n"] == 5
    assert m["accuracy"] == pytest.approx(3 / 5)
    assert m["recall"] == [pytest.approx(2 / 3), pytest.approx(1 / 2), None]
    assert m["balanced_accuracy"] == pytest.approx((2 / 3 + 1 / 2) / 2)
    assert m["precision_per_class"] == [1.0, pytest.approx(1 / 2), 0.0]
    assert m["precision"] == pytest.approx((1 + 1 / 2 + 0) / 3)
    assert m["f1_per_class"] == [pytest.approx(4 / 5), pytest.approx(2 / 4), 0.0]
    assert m["f1"] == pytest.approx((4 / 5 + 2 / 4 + 0) / 3)
    # a: scores .8 .6 .3 against .2 .1 win 6 of 6; b: .7 wins 3 of 3, .2 wins only over .1
    assert m["auc"] == pytest.approx((6 / 6 + 4 / 6) / 2)
    assert m["nll"] == pytest.approx(-math.log(0.8 * 0.6 * 0.3 * 0.7 * 0.2) / 5)


def test_calibration_error_by_hand():
    # bins of width 1/15: .8, .6 (right), .5 (wrong) alone in theirs; .7 (right) and .7 (wrong) share one
    expected = ((1 - 0.8) + (1 - 0.6) + 0.5 + abs(2 * 0.7 - 1)) / 5
    assert ABC.metrics(PREDICTION, TRUTH)["ece"] == pytest.approx(expected)
    two = Classification(("a", "b"))
    assert two.metrics(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1]))["ece"] == pytest.approx(0.5)


def test_ties_share_the_win_in_auc():
    # positives .5 .9, negatives .5 .1: one tie (half a win) and three wins, of four pairs; both classes alike
    p = torch.tensor([0.5, 0.9, 0.5, 0.1])
    m = Classification(("no", "yes")).metrics(torch.stack([1 - p, p], 1), torch.tensor([1, 1, 0, 0]))
    assert m["auc"] == pytest.approx(3.5 / 4)


@pytest.mark.filterwarnings("ignore:y_pred contains classes")  # which sklearn leaves out, as we do
@pytest.mark.parametrize(
    ("seed", "n", "k", "present", "decimals"),
    [(0, 200, 5, 5, 2), (1, 200, 5, 3, 1), (2, 40, 7, 7, 6), (3, 30, 2, 2, 1), (4, 3, 4, 4, 1)],
)
def test_equal_to_sklearn(seed: int, n: int, k: int, present: int, decimals: int):
    from sklearn.metrics import balanced_accuracy_score, confusion_matrix, f1_score, precision_score, roc_auc_score

    p, y = random_case(seed, n, k, present, decimals)
    guess = p.argmax(1).numpy()
    there = sorted(set(y.tolist()))
    m = Classification(tuple("abcdefg"[:k])).metrics(p, y)
    assert m["f1"] == pytest.approx(f1_score(y, guess, average="macro", zero_division=0))
    assert m["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(y, guess))
    assert m["precision"] == pytest.approx(precision_score(y, guess, average="macro", zero_division=0))
    assert m["confusion"] == confusion_matrix(y, guess, labels=range(k)).tolist()
    aucs = [roc_auc_score((y == c).numpy(), p[:, c].numpy()) for c in there]
    assert m["auc"] == pytest.approx(np.mean(aucs), abs=1e-12)


def test_per_class_f1_equal_to_sklearn():
    from sklearn.metrics import f1_score

    p, y = random_case(5, 100, 4, 4, 3)
    ours = Classification(tuple("abcd")).metrics(p, y)["f1_per_class"]
    assert ours == pytest.approx(f1_score(y, p.argmax(1), average=None).tolist())


def test_class_neither_true_nor_predicted_is_undefined():
    m = ABC.metrics(torch.tensor([[0.9, 0.1, 0.0], [0.2, 0.8, 0.0]]), torch.tensor([0, 1]))
    assert m["recall"] == [1.0, 1.0, None]
    assert m["f1_per_class"] == m["precision_per_class"] == [1.0, 1.0, None]
    assert m["f1"] == m["precision"] == m["balanced_accuracy"] == m["auc"] == 1.0


def test_all_of_one_class_has_no_auc():
    m = ABC.metrics(torch.tensor([[0.9, 0.1, 0.0], [0.2, 0.8, 0.0]]), torch.tensor([0, 0]))
    assert m["auc"] is None
    assert m["accuracy"] == m["balanced_accuracy"] == 0.5
    assert m["f1"] == pytest.approx((2 / 3 + 0) / 2)
    assert m["precision"] == pytest.approx((1 + 0) / 2)  # b is predicted, and wrong


def test_a_class_that_is_never_predicted_has_precision_0():
    m = ABC.metrics(torch.tensor([[0.9, 0.1, 0.0], [0.8, 0.2, 0.0]]), torch.tensor([0, 1]))
    assert m["precision_per_class"] == [0.5, 0.0, None]


def test_single_sample():
    m = ABC.metrics(torch.tensor([[0.2, 0.7, 0.1]]), torch.tensor([1]))
    assert m["accuracy"] == 1.0
    assert m["f1"] == 1.0
    assert m["balanced_accuracy"] == 1.0
    assert m["auc"] is None
    assert m["n"] == 1
    assert m["ece"] == pytest.approx(0.3)


def test_no_samples_leaves_everything_undefined():
    m = ABC.metrics(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64))
    for name in ("accuracy", "f1", "balanced_accuracy", "precision", "auc", "ece", "nll"):
        assert m[name] is None, name
    assert m["recall"] == m["f1_per_class"] == [None] * 3
    assert m["support"] == [0, 0, 0]
    assert m["n"] == 0


def test_certain_and_wrong_keeps_the_likelihood_finite():
    m = Classification(("a", "b")).metrics(torch.tensor([[1.0, 0.0]]), torch.tensor([1]))
    assert m["nll"] == pytest.approx(-math.log(1e-12))


def test_metrics_are_json_and_full_changes_nothing():
    m = ABC.metrics(PREDICTION, TRUTH)
    assert json.loads(json.dumps(m, allow_nan=False)) == m
    assert ABC.metrics(PREDICTION, TRUTH, full=False) == m


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_non_finite_predictions_are_named(bad: float):
    p = PREDICTION.clone()
    p[3, 1] = bad
    with pytest.raises(RunError, match="1 of 5 predictions are not finite") as error:
        ABC.metrics(p, TRUTH)
    assert error.value.details[0].startswith("prediction 3:")


def test_loss_by_hand():
    logits, y = torch.tensor([[2.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 1])
    plain = (math.log(1 + math.exp(-2)) + math.log(2)) / 2
    assert Classification(("a", "b")).loss(logits, y).item() == pytest.approx(plain)
    # smoothing s gives the wrong class the share s/2: first row adds s/2 * 2, the second is unchanged
    assert Classification(("a", "b"), 0.2).loss(logits, y).item() == pytest.approx(plain + 0.1 * 2 / 2)


def test_vectors_counts_prediction():
    z, y = torch.ones(4, 7), torch.tensor([2, 0, 2, 2])
    rows, labels = ABC.vectors(z, y)
    assert rows is z
    assert labels is y
    assert ABC.counts(y).tolist() == [1, 0, 3]
    prediction = ABC.prediction(torch.tensor([[0.0, math.log(3.0)]], requires_grad=True))
    assert prediction.tolist()[0] == pytest.approx([0.25, 0.75])
    assert not prediction.requires_grad


def test_table_of_tasks():
    built = task("classification", ("a", "b"), label_smoothing=0.1)
    assert built == Classification(("a", "b"), 0.1)
    assert pickle.loads(pickle.dumps(built)) == built
    assert built.name == "classification"
    assert built.main == "f1"
    assert names() == ("classification", "multi-label", "segmentation")


@pytest.mark.parametrize(
    ("name", "classes", "options", "message"),
    [
        ("clasification", ("a", "b"), {}, "Did you mean 'classification'"),
        ("classification", ("a", "b"), {"label_smooth": 0.1}, "Did you mean 'label_smoothing'"),
        ("classification", ("a", "b"), {"label_smoothing": 1.0}, "below 1"),
        ("classification", ("a", "b"), {"label_smoothing": "0.1"}, "must be a number"),
        ("classification", ("a",), {}, "at least two classes"),
        ("classification", ("a", "b", "a"), {}, "named once"),
    ],
)
def test_wrong_tasks_are_refused(name: str, classes: tuple[str, ...], options: dict[str, object], message: str):
    with pytest.raises(ConfigError) as error:
        task(name, classes, **options)
    assert message in str(error.value)


def test_listing_tasks_does_not_import_torch():
    code = "import sys, crossward.tasks as t; t.names(); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
