"""FedBM's training of the generator by hand, in plain torch: Eqs. 6 to 10, two steps of Adam, and what a client
generates. The hand-written part uses nothing of crossward; it draws the same numbers in the same order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from crossward.core.method import RoundContext
from crossward.core.net import Net
from crossward.core.training import Training
from crossward.core.tree import Tree
from crossward.core.weights import Weights
from crossward.methods.fedbm import method as fedbm_module
from crossward.methods.fedbm.method import FedBM
from crossward.runs.sites import RunSites
from crossward.testing.toy import Toy

K = 3  # classes
SIDE = 8  # pixels
BATCH = 9  # generated images in a step
RATE = 1e-4
TRAINING = Training(epochs=1, batch_size=4, lr=0.05)
SYNTHETIC = 3  # generated images in a client's batch
MEAN, STD = 0.5, 0.25  # of pixels, as the toy federation normalises them
METHOD = FedBM(
    tau=4.0,
    synthetic=SYNTHETIC,
    cycle=1,
    iterations=2,
    generator_batch=BATCH,
    generator_lr=RATE,
    generator_width=0.125,
    lambda_div=1.5,
    lambda_dis=0.25,
)


# by hand --------------------------------------------------------------------------------------------------------------
def draw_conditions(text: Tree, count: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Labels, all alike likely, and Eq. 9: z ~ N(mu_y, Sigma_y + 1e-4 I) with Sigma = factor^T factor."""
    y = torch.randint(K, (count,), generator=rng)
    within = torch.randn(count, 1, text["factor"].shape[1], generator=rng)
    around = torch.randn(count, text["mean"].shape[1], generator=rng)
    spread = torch.stack([within[i, 0] @ text["factor"][y[i]] for i in range(count)])
    return y, text["mean"][y] + spread + 0.01 * around


def generate(g: dict[str, Tensor], z: Tensor, *, running: bool = False) -> Tensor:
    """From 4 x 4 to 8 x 8 pixels: a linear layer, a convolution, a doubling with a convolution, a last convolution."""
    x = (z @ g["lift.weight"].T + g["lift.bias"]).view(len(z), -1, 4, 4)
    x = normed_convolution(g, "blocks.0", x, running)
    x = x.repeat_interleave(2, 2).repeat_interleave(2, 3)
    x = normed_convolution(g, "blocks.1", x, running)
    return torch.sigmoid(F.conv2d(x, g["last.weight"], g["last.bias"], padding=1))


def normed_convolution(g: dict[str, Tensor], name: str, x: Tensor, running: bool) -> Tensor:
    x = F.conv2d(x, g[f"{name}.0.weight"], padding=1)
    if running:
        mean = g[f"{name}.1.running_mean"]
        variance = g[f"{name}.1.running_var"]
    else:
        mean, variance = channel_moments(x)
    x = (x - per_channel(mean)) / torch.sqrt(per_channel(variance) + 1e-5)
    x = per_channel(g[f"{name}.1.weight"]) * x + per_channel(g[f"{name}.1.bias"])
    return torch.where(x > 0, x, 0.2 * x)


def channel_moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and biased variance of each channel, over images and pixels."""
    mean = x.mean((0, 2, 3))
    return mean, (x - per_channel(mean)).pow(2).mean((0, 2, 3))


def per_channel(values: Tensor) -> Tensor:
    return values.view(1, -1, 1, 1)


def augment(images: Tensor, rng: torch.Generator) -> Tensor:
    """Moved by up to one pixel (8 / 32 is less than one) with edges repeated, mirrored, normalised."""
    down, right = torch.randint(3, (2,), generator=rng).tolist()
    across, over = (torch.rand(2, generator=rng) < 0.5).tolist()
    rows = (torch.arange(SIDE) + down - 1).clamp(0, SIDE - 1)
    columns = (torch.arange(SIDE) + right - 1).clamp(0, SIDE - 1)
    rows = rows.flip(0) if over else rows
    columns = columns.flip(0) if across else columns
    return (images[:, :, rows][:, :, :, columns] - MEAN) / STD


@dataclass(frozen=True)
class ByHand:
    """Eq. 10 with the toy network as its teacher: convolution, BatchNorm, ReLU, mean of quarters, tanh, projection."""

    teacher: Weights
    text: Tree
    tau: float
    lambda_div: float
    lambda_dis: float
    surrogate: bool

    def loss(self, g: dict[str, Tensor], rng: torch.Generator) -> Tensor:
        y, z = draw_conditions(self.text, BATCH, rng)
        images = generate(g, z)
        h, distance = self._teach(augment(images, rng))
        spread = 0.5 * self.tau**2 * h.pow(2) @ self._variance.T  # 1/2 tau^2 h^2 Sigma_k
        scores = self.tau * h @ self.text["mean"].T + spread
        semantic = (scores.exp().sum(1).log() - scores[torch.arange(BATCH), y]).mean()  # Eq. 6
        if self.surrogate:
            semantic = semantic + spread[torch.arange(BATCH), y].mean()
        return semantic + self.lambda_div * self._alike(images, z, y) + self.lambda_dis * distance  # Eq. 10

    @property
    def _variance(self) -> Tensor:
        return torch.stack([(factor.T @ factor).diagonal() for factor in self.text["factor"]])

    def _teach(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Unit features of the teacher in eval mode, and Eq. 8."""
        w = self.teacher
        x = F.conv2d(x, w["body.0.0.weight"], w["body.0.0.bias"], padding=1)
        mean, variance = channel_moments(x)
        kept_mean = w["body.0.1.running_mean"]
        kept_variance = w["body.0.1.running_var"]
        distance = (mean - kept_mean).pow(2).sum().sqrt() + (variance - kept_variance).pow(2).sum().sqrt()
        x = (x - per_channel(kept_mean)) / torch.sqrt(per_channel(kept_variance) + 1e-5)
        x = per_channel(w["body.0.1.weight"]) * x + per_channel(w["body.0.1.bias"])
        quarters = x.clamp_min(0).view(len(x), -1, 2, 4, 2, 4).mean((3, 5))
        h = quarters.flatten(1).tanh() @ w["body.1.weight"].T + w["body.1.bias"]
        return h / h.pow(2).sum(1, keepdim=True).sqrt(), distance

    @staticmethod
    def _alike(images: Tensor, z: Tensor, y: Tensor) -> Tensor:
        """Eq. 7 over the pairs of each class, on images as they were generated."""
        total = torch.zeros(())
        for k in range(K):
            rows = (y == k).nonzero()[:, 0].tolist()
            pairs = [(i, j) for i in rows for j in rows if i < j]
            ratios = [(images[i] - images[j]).abs().sum() / (z[i] - z[j]).abs().sum() for i, j in pairs]
            if ratios:
                total = total + torch.stack([1 / (ratio + 1e-5) for ratio in ratios]).mean()
        return total / K


def adam(g: dict[str, Tensor], loss: Callable[[dict[str, Tensor]], Tensor], steps: int) -> dict[str, Tensor]:
    """Adam with beta_1 = 0.5 and beta_2 = 0.999."""
    learnt = [name for name in g if "running" not in name]
    first = {name: torch.zeros_like(g[name]) for name in learnt}
    second = {name: torch.zeros_like(g[name]) for name in learnt}
    for t in range(1, steps + 1):
        present = {name: g[name].clone().requires_grad_(name in learnt) for name in g}
        gradients = torch.autograd.grad(loss(present), [present[name] for name in learnt])
        for name, gradient in zip(learnt, gradients, strict=True):
            first[name] = 0.5 * first[name] + 0.5 * gradient
            second[name] = 0.999 * second[name] + 0.001 * gradient.pow(2)
            mean = first[name] / (1 - 0.5**t)
            square = second[name] / (1 - 0.999**t)
            g = g | {name: g[name] - RATE * mean / (square.sqrt() + 1e-8)}
    return g


# what is compared -----------------------------------------------------------------------------------------------------
def two_norms() -> Net:
    body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 3), nn.BatchNorm2d(2), nn.Flatten())
    return Net(body, nn.Linear(32, K), width=32)


def federation(method: FedBM) -> tuple[RunSites, Tree]:
    """The toy federation, and a state whose BatchNorm has seen something."""
    run_sites = Toy().run_sites(method, training=TRAINING)
    state = method.start(context(run_sites))
    rng = torch.Generator().manual_seed(7)
    model = dict(state["model"])
    for name in ("weight", "bias", "running_mean", "running_var"):
        model[f"body.0.1.{name}"] = 0.5 + torch.rand(4, generator=rng)
    generator = dict(state["generator"])
    for name in generator:
        if "running" in name:
            generator[name] = 0.2 + torch.rand(len(generator[name]), generator=rng)
    return run_sites, state | {"model": Weights(model), "generator": Weights(generator)}


def context(run_sites: RunSites) -> RoundContext:
    return RoundContext(0, 5, len(run_sites.ids), run_sites.task, run_sites.server(0))


def by_hand(method: FedBM, state: Tree) -> ByHand:
    return ByHand(
        state["model"],
        state["text"],
        state["tau"],
        method.lambda_div,
        method.lambda_dis,
        method.semantic == "surrogate",
    )


TERMS = {
    "the whole": {},
    "semantic alone": {"lambda_div": 0.0, "lambda_dis": 0.0},
    "cross entropy alone": {"lambda_div": 0.0, "lambda_dis": 0.0, "semantic": "ce"},
    "with diversity": {"lambda_div": 3.0, "lambda_dis": 0.0},
    "with statistics": {"lambda_div": 0.0, "lambda_dis": 2.0},
    "the whole with cross entropy": {"semantic": "ce"},
}


@pytest.mark.parametrize("terms", TERMS.values(), ids=TERMS)
def test_the_loss_and_its_gradient_by_hand(terms: dict[str, float], monkeypatch):
    """Eq. 10 at the first step."""
    method = replace(METHOD, **terms)
    run_sites, state = federation(method)
    found: dict[str, Tensor] = {}

    def keep_gradient(loss, parameters, steps, **options):
        value = loss()
        found["loss"] = value.detach()
        found["gradient"] = torch.cat([g.flatten() for g in torch.autograd.grad(value, list(parameters))])

    monkeypatch.setattr(fedbm_module, "minimise", keep_gradient)
    method._train_generator(state, None, context(run_sites))
    g = {name: tensor.clone().requires_grad_("running" not in name) for name, tensor in state["generator"].items()}
    value = by_hand(method, state).loss(g, context(run_sites).server.rng)
    gradient = torch.autograd.grad(value, [tensor for tensor in g.values() if tensor.requires_grad])
    torch.testing.assert_close(found["loss"], value.detach(), atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(found["gradient"], torch.cat([x.flatten() for x in gradient]), atol=1e-6, rtol=1e-4)


def test_the_distances_of_all_layers_are_summed(monkeypatch):
    """Eq. 8 with two BatchNorm layers, whose statistics are as they start: N(0, 1)."""
    losses: list[Tensor] = []
    monkeypatch.setattr(fedbm_module, "minimise", lambda loss, *_, **options: losses.append(loss().detach()))
    for weight in (0.0, 2.0):
        method = replace(METHOD, lambda_div=0.0, lambda_dis=weight)
        run_sites = Toy().run_sites(method, training=TRAINING, net=two_norms)
        state = method.start(context(run_sites))
        method._train_generator(state, None, context(run_sites))
    rng = context(run_sites).server.rng
    _, z = draw_conditions(state["text"], BATCH, rng)
    w = state["model"]
    first = F.conv2d(augment(generate(dict(state["generator"]), z), rng), w["body.0.0.weight"], w["body.0.0.bias"])
    second = F.conv2d(first / (1 + 1e-5) ** 0.5, w["body.0.2.weight"], w["body.0.2.bias"])
    distances = [(mean.norm() + (variance - 1).norm()) for mean, variance in map(channel_moments, (first, second))]
    torch.testing.assert_close(losses[1] - losses[0], 2.0 * (distances[0] + distances[1]), atol=1e-5, rtol=1e-5)


def test_two_steps_of_the_generators_training_by_hand():
    """Two, because the first step of Adam is the same for all betas."""
    run_sites, state = federation(METHOD)
    trained = METHOD._train_generator(state, None, context(run_sites))
    rng = context(run_sites).server.rng
    hand = by_hand(METHOD, state)
    expected = adam(dict(state["generator"]), lambda g: hand.loss(g, rng), steps=2)
    for name in (name for name in trained if "running" not in name):
        assert not torch.equal(trained[name], state["generator"][name])
        torch.testing.assert_close(trained[name], expected[name], atol=1e-6, rtol=0)


def test_what_a_client_generates_by_hand():
    """In eval mode: BatchNorm of the generator with its running statistics, whatever else is in the batch."""
    run_sites, state = federation(METHOD)
    site = run_sites.open(1, 0, {})
    site.rng.manual_seed(3)
    x, y = next(METHOD.generated_batches(site, state))
    rng = torch.Generator().manual_seed(3)
    chunk = 256 // SYNTHETIC * SYNTHETIC
    expected_y, z = draw_conditions(state["text"], chunk, rng)
    images = generate(dict(state["generator"]), z[:SYNTHETIC], running=True)
    assert torch.equal(y, expected_y[:SYNTHETIC])
    torch.testing.assert_close(x, augment(images, rng), atol=1e-5, rtol=0)
