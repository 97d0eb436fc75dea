"""FedBM's generator: does it repeat images of patients? The distance of generated images to the nearest training image
is held against that of real images which nobody trained on: these say what "near" means.

A generator that repeats training images has some that are nearer to one than real images ever are: that share is what
counts. The mean does not: by pixels a bland, blurred image is nearer to every image than a sharp one is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from crossward.audits.audited_run import AuditedRun
from crossward.audits.finding import DoesNotApply, Finding, Measurement, NotMeasured
from crossward.audits.membership import auc_estimate
from crossward.audits.picture_files import write_pairs
from crossward.audits.stored_state import stored_state
from crossward.comparison.operating_points import sensitivity_at_specificity
from crossward.comparison.weighted_metrics import Array
from crossward.config.reading import method_of
from crossward.core.bit_depth import depth_of, widened
from crossward.core.image_size import as_size, sides
from crossward.core.net import NetSpec
from crossward.core.pixel_range import brightest
from crossward.core.seeds import derive
from crossward.methods.fedbm.generator import to_uint8
from crossward.methods.fedbm.method import FedBM
from crossward.runs.deployed import Deployed

GENERATED = 256
MOST = 4000  # training images, and held-out ones
AT_ONCE = 64  # rows of distances
NEAREST_SHARE = 0.01  # of held-out images, whose distance is called near


def nearest(queries: Tensor, others: Tensor) -> tuple[Array, Array]:
    """(n,) distance of each row to the nearest of the others, as a root mean square, and which one it is."""
    distances, places = [], []
    for some in queries.flatten(1).double().split(AT_ONCE):
        least = torch.cdist(some, others.flatten(1).double()).min(1)
        distances.append(least.values)
        places.append(least.indices)
    scale = queries[0].numel() ** 0.5
    return (torch.cat(distances) / scale).numpy(), torch.cat(places).numpy()


def neighbour_figures(
    space: str, generated: Array, held_out: Array, ids: Sequence[str], groups: Mapping[str, str], seed: int
) -> Iterator[Measurement]:
    """How often a generated image is nearer to a training image than a held-out one is, and how often it is nearer
    than all but 1 % of these."""
    scores = -np.concatenate([generated, held_out])
    made = np.arange(len(scores)) < len(generated)
    names = (*(f"generated {number}" for number in range(len(generated))), *ids)
    total = len(scores)
    auc = auc_estimate(scores, made, names, groups, seed)
    yield Measurement.of(
        f"{space}: a generated image is nearer than a held-out one", auc, total, baseline=0.5, baseline_name="as near"
    )
    point = sensitivity_at_specificity(scores, made, 1 - NEAREST_SHARE, ids=names, groups=groups, seed=seed)
    yield Measurement.of(
        f"{space}: generated images nearer than all but 1 % of held-out ones",
        point.sensitivity,
        total,
        baseline=NEAREST_SHARE,
        baseline_name="held-out images",
    )
    for name, values in (("generated", generated), ("held-out", held_out)):
        how = "over all images: no interval"
        yield Measurement(
            f"{space}: median distance of {name} images", float(np.median(values)), how=how, n=len(values)
        )


# on a run -------------------------------------------------------------------------------------------------------------
def generator(run: AuditedRun) -> Finding:
    method = method_of(run.config)
    if not isinstance(method, FedBM):
        raise DoesNotApply(f"{run.method} has no generator.")
    if method.generate != "images":
        raise DoesNotApply("the generator makes feature maps, and no images.")
    collection = run.federation.collection
    generated = widened(generated_images(run, method), collection.depth)
    if generated.shape[1:] != collection.images.shape[1:]:
        raise NotMeasured(f"generated images have {tuple(generated.shape[1:3])} pixels, and those of the sites others.")
    sites = run.federation.sites
    trained = run.some(torch.cat([split.train for split in sites]), MOST, "generator train")
    server = run.federation.server
    held_out = run.some(torch.cat([*(split.test for split in sites), server.test]), MOST, "generator test")
    if not len(held_out):
        raise NotMeasured("there are no held-out images, which would say what near means.")
    network = _network(run)
    rows = {"trained": trained, "held-out": held_out}
    images = {name: collection.images[each] for name, each in rows.items()} | {"generated": generated}
    ids = [collection.ids[row] for row in held_out.tolist()]
    seed = derive(run.options.seed, "generator") % 2**32
    measurements: list[Measurement] = []
    for space, vectors in (("pixels", _pixels), ("features", lambda each: _features(network, each))):
        known = vectors(images["trained"])
        distances, places = nearest(vectors(images["generated"]), known)
        others, _ = nearest(vectors(images["held-out"]), known)
        measurements += neighbour_figures(space, distances, others, ids, run.groups, seed)
        if run.options.images:
            order = np.argsort(distances)
            made, real = (_pixels(images[name]) for name in ("generated", "trained"))
            pairs = [(made[i], real[places[i]]) for i in order.tolist()]
            write_pairs(run.result.folder, f"generator-{space}", pairs, ("generated", "nearest training image"))
    return _finding(measurements, len(trained))


def generated_images(run: AuditedRun, method: FedBM, count: int = GENERATED) -> Tensor:
    """(n, H, W, C) bytes, of all classes alike, by the generator as the run left it."""
    state = stored_state(run.result, run.options.which).state
    if not state.get("trained"):
        raise NotMeasured(f"the generator was never trained up to the {run.options.which} round.")
    about = run.about
    spec = NetSpec(
        about["net"]["channels"],
        as_size(*sides(about["net"]["size"])),
        len(about["task"]["classes"]),
        text=about["text"]["numbers"],
        mean=tuple(about["images"]["mean"]),
        std=tuple(about["images"]["std"]),
        sites=len(about["sites"]),
    )
    made = method.new_generator(_network(run).network, spec, state["generator"]).eval()
    rng = run.rng("generator")
    y = torch.arange(count) % spec.classes
    with torch.inference_mode():
        parts = [made(method.sample_conditions(state["text"], labels, rng), labels) for labels in y.split(AT_ONCE)]
    return to_uint8(torch.cat(parts))


def _network(run: AuditedRun) -> Deployed:
    site = run.about["sites"][0] if run.about["personal"] else None
    return run.result.deployed(site, run.options.which)


def _pixels(images: Tensor) -> Tensor:
    return images.permute(0, 3, 1, 2).float() / brightest(depth_of(images))


def _features(network: Deployed, images: Tensor) -> Tensor:
    with torch.inference_mode():
        return torch.cat([network.network.features(x).flatten(1) for x in network.inputs(images)]).clone()


def _finding(measurements: Sequence[Measurement], trained: int) -> Finding:
    near = [each for each in measurements if "nearer than all" in each.name]
    suspicious = [each for each in near if each.low is not None and each.low > NEAREST_SHARE]
    parts = [f"{100 * (each.value or 0):.1f} in 100 by {each.name.split(':')[0]}" for each in near]
    text = (
        f"Of generated images, {' and '.join(parts)} are as near to a training image as 1 in 100 held-out images is: "
    )
    if suspicious:
        text += "the generator comes closer to images of patients than chance does. Look at the pairs (--images)."
    else:
        text += "no sign that the generator repeats images of patients."
    tried = (
        f"Whoever takes part in the run can generate images. {GENERATED} of them were compared with {trained} training "
    )
    tried += "images, by pixels and by features of the network, beside images that nobody trained on."
    return Finding("generator", "", "measured", text, tried, tuple(measurements), (), {"generated": GENERATED})
