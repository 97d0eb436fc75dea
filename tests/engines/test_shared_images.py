"""What a worker of the pool is sent: names of files, neither images nor masks."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from crossward.core.training import Training
from crossward.data.collection import Collection
from crossward.data.sources.folder import read
from crossward.engines.local import LocalEngine
from crossward.engines.pool import PoolEngine
from crossward.methods.fedavg import FedAvg
from crossward.runs.sites import RunSites
from crossward.testing.short_runs import assert_same, run_to_end, shared_pool
from crossward.testing.toy import Toy

COUNT = 24
SIDE = 64
PIXELS = COUNT * SIDE * SIDE  # bytes of the masks


@pytest.fixture
def masked(tmp_path) -> Collection:
    rng = np.random.default_rng(0)
    for number in range(COUNT):
        for folder in ("images", "masks"):
            (tmp_path / "set" / folder).mkdir(parents=True, exist_ok=True)
        shape = (SIDE, SIDE, 3)
        Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8)).save(tmp_path / f"set/images/{number}.png")
        mask = np.zeros((SIDE, SIDE), dtype=np.uint8)
        mask[: 8 + number] = 255
        Image.fromarray(mask).save(tmp_path / f"set/masks/{number}.png")
    return read(tmp_path / "set", size=SIDE, cache=tmp_path / "cache")[0]


def test_images_and_masks_of_the_cache_go_by_name(masked):
    sent = pickle.dumps(masked)
    assert len(sent) < 0.1 * PIXELS
    received = pickle.loads(sent)
    assert torch.equal(received.images, masked.images)
    assert torch.equal(received.targets, masked.targets)
    assert received.targets.float().mean() > 0


def test_images_and_masks_in_memory_are_shared_once(masked, tmp_path):
    in_memory = replace(
        masked, images=masked.images.clone(), targets=masked.targets.clone(), file=None, masks_file=None
    )
    assert len(pickle.dumps(in_memory)) > 4 * PIXELS
    shared = in_memory.mapped(tmp_path / "images", tmp_path / "masks")
    assert len(pickle.dumps(shared)) < 0.1 * PIXELS
    assert torch.equal(pickle.loads(pickle.dumps(shared)).targets, masked.targets)


def test_labels_of_classes_stay_in_memory(tmp_path):
    collection = Toy().run_sites(FedAvg(), training=Training()).federation.collection
    shared = collection.mapped(tmp_path / "images", tmp_path / "masks")
    assert not (tmp_path / "masks").exists()
    assert torch.equal(pickle.loads(pickle.dumps(shared)).targets, collection.targets)


def test_what_a_worker_is_sent_does_not_grow_with_images_and_masks():
    sizes = {}
    for side in (16, 64):
        run_sites = segmentation(side)
        run_sites.share_images()
        sizes[side] = len(pickle.dumps(run_sites))
        assert pickle.loads(pickle.dumps(run_sites)).federation.collection.targets.shape[1] == side
    assert sizes[64] - sizes[16] < 1000
    collection = segmentation(64).federation.collection
    assert sizes[64] < 0.05 * (collection.images.numel() + collection.targets.numel())


def test_workers_train_on_shared_masks_to_the_bit():
    here = segmentation(16)
    shared = segmentation(16)
    shared.share_images()
    expected = run_to_end(here, LocalEngine(here))
    assert_same(run_to_end(shared, PoolEngine(shared, worker_pool=shared_pool(2))), expected)


def segmentation(side: int) -> RunSites:
    """The toy federation with images and masks of `side` pixels."""
    run_sites = Toy("segmentation").run_sites(FedAvg(), training=Training(epochs=1, batch_size=4, lr=0.05))
    small = run_sites.federation.collection
    images, masks = (
        pixels.repeat_interleave(side // 8, 1).repeat_interleave(side // 8, 2)
        for pixels in (small.images, small.targets)
    )
    run_sites.federation = replace(run_sites.federation, collection=replace(small, images=images, targets=masks))
    return run_sites
