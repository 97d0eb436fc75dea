"""Sums and means of features by class."""

from __future__ import annotations

import pytest
import torch

from crossward.statistics import class_means, class_sums

Z = torch.tensor([[1.0, 2], [3, 4], [5, 6], [7, 8]])
Y = torch.tensor([2, 0, 2, 2])


def test_sums_and_counts_by_hand():
    sums, counts = class_sums([(Z, Y)], 4)
    assert sums.tolist() == [[3, 4], [0, 0], [13, 16], [0, 0]]
    assert counts.tolist() == [1, 0, 3, 0]


@pytest.mark.parametrize("cuts", [(1, 3), (2, 2), (1, 1, 1, 1), (4,)])
def test_pieces_add_up_to_the_whole(cuts: tuple[int, ...]):
    pieces = zip(Z.split(cuts), Y.split(cuts), strict=True)
    sums, counts = class_sums(pieces, 3)
    assert sums.tolist() == [[3, 4], [0, 0], [13, 16]]
    assert counts.tolist() == [1, 0, 3]


def test_what_is_given_stays_as_it_is():
    z, y = Z.clone(), Y.clone()
    class_sums([(z, y), (z, y)], 3)
    assert torch.equal(z, Z)
    assert torch.equal(y, Y)


def test_means_by_hand():
    """One sample is its own mean; a class without samples has a mean of zero, not NaN."""
    means = class_means(*class_sums([(Z, Y)], 4))
    torch.testing.assert_close(means, torch.tensor([[3.0, 4], [0, 0], [13 / 3, 16 / 3], [0, 0]]))


def test_sums_keep_the_precision_of_the_features():
    sums, _ = class_sums([(Z.double(), Y)], 3)
    assert sums.dtype == torch.float64


def test_renaming_classes_reorders_the_rows():
    renamed = torch.tensor([1, 2, 0])
    (sums, counts), (others, other) = class_sums([(Z, Y)], 3), class_sums([(Z, renamed[Y])], 3)
    assert torch.equal(others[renamed], sums)
    assert torch.equal(other[renamed], counts)
