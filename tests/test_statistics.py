"""Sums and means of features by class, Sinkhorn's even shares, k-means."""

from __future__ import annotations

import pytest
import torch

from crossward.statistics import class_means, class_sums, kmeans, sample_per_class, sinkhorn

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


def test_inputs_stay_unchanged():
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
    sums, counts = class_sums([(Z, Y)], 3)
    new_sums, new_counts = class_sums([(Z, renamed[Y])], 3)
    assert torch.equal(new_sums[renamed], sums)
    assert torch.equal(new_counts[renamed], counts)


def test_sinkhorn_shares_columns_evenly():
    rng = torch.Generator().manual_seed(0)
    scores = torch.randn(200, 4, generator=rng) / 0.25
    q = sinkhorn(scores, 50)
    torch.testing.assert_close(q.sum(1), torch.ones(200))
    torch.testing.assert_close(q.sum(0), torch.full((4,), 50.0), atol=1e-3, rtol=0)


def test_sinkhorn_by_hand():
    """Affinities 1 and 3 against 1 and 1: a step of columns, then of rows."""
    q = sinkhorn(torch.tensor([[1.0, 1.0], [3.0, 1.0]]).log(), 1)
    torch.testing.assert_close(q, torch.tensor([[1 / 3, 2 / 3], [0.6, 0.4]]))


def test_sinkhorn_does_not_underflow():
    q = sinkhorn(torch.tensor([[1.0, -1.0], [0.9, -1.0], [-1.0, 1.0]]) / 1e-4, 50)
    assert q.isfinite().all()
    torch.testing.assert_close(q.sum(1), torch.ones(3))


def test_one_column_takes_all():
    assert sinkhorn(torch.randn(5, 1), 3).tolist() == [[1.0]] * 5


def test_kmeans_finds_clusters():
    rng = torch.Generator().manual_seed(0)
    middles = torch.tensor([[0.0, 0], [10, 0], [0, 10]])
    z = torch.cat([middle + 0.1 * torch.randn(20, 2, generator=rng) for middle in middles])
    centres = kmeans(z, torch.ones(60), 3, rng)
    expected = torch.stack([z[k : k + 20].mean(0) for k in (0, 20, 40)])
    torch.testing.assert_close(centres[torch.cdist(expected, centres).argmin(1)], expected)


def test_kmeans_is_as_good_as_sklearns():
    from sklearn.cluster import KMeans

    rng = torch.Generator().manual_seed(1)
    z = torch.randn(200, 5, generator=rng)
    ours = min(torch.cdist(z, kmeans(z, torch.ones(200), 4, rng)).amin(1).square().sum() for _ in range(10))
    theirs = KMeans(4, n_init=10, random_state=0).fit(z.numpy()).inertia_
    assert float(ours) == pytest.approx(theirs, rel=0.02)


def test_weights_of_rows_are_repetitions():
    rng = torch.Generator().manual_seed(2)
    z = torch.randn(6, 2, generator=rng)
    mass = torch.tensor([1.0, 5, 1, 1, 3, 1])
    torch.testing.assert_close(kmeans(z, mass, 1, rng)[0], (mass[:, None] * z).sum(0) / 12)


def test_kmeans_of_copies_gives_as_many_centres():
    centres = kmeans(torch.ones(4, 3), torch.ones(4), 3, torch.Generator().manual_seed(0))
    assert centres.tolist() == [[1.0] * 3] * 3


def test_rows_are_sampled_per_class():
    z, y = torch.arange(20.0)[:, None], torch.tensor([0] * 15 + [2] * 5)
    rows, labels = sample_per_class(z, y, 3, 4, torch.Generator().manual_seed(0))
    assert labels.tolist() == [0] * 4 + [2] * 4
    assert len({*rows.flatten().tolist()}) == 8
