"""Site: everything a client may touch, and the one way to train there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from crossward.core.device_memory import is_out_of_memory
from crossward.core.loop import Diverged, Edit, Loop, eval_mode, training_only
from crossward.core.net import Net
from crossward.core.plugin import Plugin, overrides
from crossward.core.private_loop import GradientPrivacy, PrivateLoop, refuse_unbounded
from crossward.core.samples import Batch, Samples
from crossward.core.select import Select, everything
from crossward.core.task import Task
from crossward.core.training import Training
from crossward.core.tree import Tree
from crossward.core.weights import Weights

if TYPE_CHECKING:
    from crossward.core.method import Method

Predictor = Callable[[Tensor], Tensor]
PREDICT_BATCH = 256
PREDICT_PIXELS = PREDICT_BATCH * 28 * 28  # in a batch: more does not fit the caches of a CPU
LARGE_BATCH_PIXELS = 128 * 128  # of an image: a device predicts PREDICT_BATCH of them at a time, half as many if larger


@dataclass(frozen=True)
class Out:
    """One forward pass, shared by the method's loss and every plugin's."""

    x: Tensor
    y: Tensor
    z: Tensor  # features
    logits: Tensor


class ReplyGate(Protocol):
    """What stands between a site and the server."""

    def let_out(self, method: Method, site: Site, step: str, down: Tree, reply: Tree) -> Tree:
        """The reply to a step as it leaves the site, or an error."""
        ...

    def losses(self, losses: tuple[float, ...]) -> tuple[float, ...]:
        """The losses of the step's fits that may leave."""
        ...


@dataclass(frozen=True)
class Fit:
    """What a local fit did. `lr` is the mean effective step size: how far a constant gradient of 1 moves a weight in
    a step, with momentum and schedule counted in (with Adam: the nominal rate)."""

    steps: int
    lr: float
    loss: float


@dataclass
class Site:
    """A client's network, data and memory while one step runs."""

    id: int
    name: str
    model: Net
    task: Task
    train: Samples
    val: Samples
    test: Samples
    training: Training
    round: int = 0
    memory: Tree = field(default_factory=dict)  # survives between rounds, never leaves
    plugins: tuple[Plugin, ...] = ()
    public: Samples | None = None  # the unlabelled pool that every site has
    common: dict[str, Samples] = field(default_factory=dict)  # in simulation: the federation's own "val" and "test"
    rng: torch.Generator = field(default_factory=torch.Generator)
    device: torch.device = torch.device("cpu")
    fits: list[Fit] = field(default_factory=list)  # of the step that runs
    released: list[str] = field(default_factory=list)  # kinds of noisy statistics, in the step that runs
    scratch: dict[str, Any] = field(default_factory=dict)  # for methods and plugins, gone after the step
    epoch: int = 0  # of the fit that runs
    architecture: str = ""  # of its network: the key under which the server keeps what is for this architecture
    privacy: GradientPrivacy | None = None  # bounds and noises the gradients of fits; None: they are as they are
    protect_reply: Callable[[Tree, Tree], Tree] | None = None  # payload, reply -> the reply, clipped and noised
    gate: ReplyGate | None = None  # what decides what leaves; None: whatever the method declares

    @property
    def size(self) -> int:
        return len(self.train)

    @property
    def num_classes(self) -> int:
        return len(self.task.classes)

    @property
    def counts(self) -> Tensor:
        """(K,) training samples (or pixels) of each class; with privacy, as they were released with noise."""
        if self.privacy is not None:
            return self.privacy.statistics.class_counts(self)
        parts = [self.task.counts(labels.long()) for labels in self.train.labels.split(PREDICT_BATCH)]
        counts = torch.stack(parts).sum(0) if parts else torch.zeros(self.num_classes, dtype=torch.int64)
        return counts.to(self.device)

    def vectors(self, samples: Samples) -> Iterator[Batch]:
        """The features of every sample as the task's rows with their labels, some at a time, in eval mode."""
        with eval_mode(self.model):
            for x, y in samples.in_order(prediction_batch_sizes(samples)[0]):
                yield self.task.vectors(in_pieces(self.model.features, x), y)

    def batches(self, epochs: int | None = None) -> Iterator[Batch]:
        size = self.training.batch_size
        in_epoch = self.train.batch_count(size)
        passes = self.training.epochs if epochs is None else epochs
        for number, batch in enumerate(self.train.shuffled(size, self.rng, passes)):
            self.epoch = number // in_epoch
            yield batch

    def forward(self, x: Tensor, y: Tensor) -> Out:
        z = self.model.features(x)
        return Out(x, y, z, self.model.head(z))

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        """The supervised loss that this site trains with: the task's, on logits as the plugins shift them."""
        for plugin in overrides(self.plugins, "shift"):
            logits = plugin.shift(self, logits)
        return self.task.loss(logits, y)

    def fit(
        self,
        loss: Callable[[Out], Tensor] | None = None,
        *,
        params: Select = everything,
        also: Iterable[nn.Parameter] = (),
        batches: Iterable[Batch] | None = None,
        generated: Iterable[Batch] | None = None,
        epochs: int | None = None,
        lr: float | None = None,
        edit_gradients: Edit | None = None,
        plugins: bool = True,
        public: bool = False,
    ) -> Fit:
        """Train site.model; every method and plugin comes through here.

        `params` are trained, the rest is frozen. `also` are parameters outside the network (learnt prototypes) that
        join the optimiser. `batches` replaces site.batches(epochs). `generated`, with privacy only, are batches of
        images that are nobody's, one beside each step's own. `lr` replaces the configured rate, still scheduled.
        `edit_gradients` sees the gradients of the network before clipping and the step. `public`: the batches hold no
        image of the site, and need no noise.
        """
        supervised = loss or (lambda out: self.loss(out.logits, out.y))
        carried = self.plugins if plugins else ()
        self.epoch = 0
        with training_only(self.model, params) as trained, ExitStack() as recording:
            loop: Loop
            if self.privacy is None or public:
                if generated is not None:
                    raise ValueError("without privacy, generated images are a part of `batches`")
                loop = Loop(self, supervised, trained, list(also), lr, edit_gradients, carried)
            else:
                refuse_unbounded(also, batches)
                recorded = recording.enter_context(self.privacy.recording(self, trained))
                loop = PrivateLoop(recorded, generated, self, supervised, trained, [], lr, edit_gradients, carried)
                batches = self.privacy.batches(self, self.training.epochs if epochs is None else epochs)
            for x, y in self.batches(epochs) if batches is None else batches:
                loop.step(x, y, self.epoch)
            fit = Fit(*loop.close())
        self.fits.append(fit)
        return fit

    def gradient(self) -> Weights:
        """The mean gradient of the supervised loss over one epoch at the present weights, which stay as they are."""
        before = {n: b.clone() for n, b in self.model.state_dict().items()}
        total: Weights | None = None

        def add(gradients: Weights) -> Weights:
            nonlocal total
            total = gradients * 1.0 if total is None else total + gradients
            return gradients

        usual, self.training = self.training, replace(self.training, amp=False)  # none of its gradients overflows
        try:
            fit = self.fit(epochs=1, lr=0.0, edit_gradients=add)
        finally:
            self.training = usual
        self.model.load_state_dict(before)
        assert total is not None
        return total / fit.steps

    def predict(self, predictor: Predictor, samples: Samples) -> Tensor:
        """The task's prediction for every sample, from the predictor's logits: in order, on the CPU."""
        self.model.eval()
        *sizes, least = prediction_batch_sizes(samples)
        for size in sizes:
            try:
                return self._predicted(predictor, samples, size)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
        return self._predicted(predictor, samples, least)

    def _predicted(self, predictor: Predictor, samples: Samples, size: int) -> Tensor:
        """Collected where it is computed; a device is waited for once, at the end."""
        parts, finite = [], []
        with torch.inference_mode():
            for x, _ in samples.in_order(size):
                logits = predictor(x)
                finite.append(torch.isfinite(logits).all())
                parts.append(self.task.prediction(logits))
        if not bool(torch.stack(finite).all()):
            raise Diverged("its predictions hold NaN or infinity")
        return torch.cat(parts).cpu().clone()


def in_pieces(network: Predictor, x: Tensor) -> Tensor:
    """What the network makes of a batch; of its halves one after the other where a device has no memory for all."""
    try:
        return network(x)
    except RuntimeError as error:
        if len(x) == 1 or not is_out_of_memory(error):
            raise
    return torch.cat([in_pieces(network, half) for half in x.split(-(-len(x) // 2))])


def prediction_batch_sizes(samples: Samples) -> list[int]:
    """How many images to predict at a time, and how many if a device has no memory for so many, down to the last."""
    least = predict_batch_size(samples)
    if samples.device.type == "cpu":
        return [least]
    _, height, width, _ = samples.images.shape
    most = PREDICT_BATCH if height * width <= LARGE_BATCH_PIXELS else PREDICT_BATCH // 2
    halved = [most >> power for power in range(8)]
    return [*(size for size in halved if size > least), least]


def predict_batch_size(samples: Samples) -> int:
    """How many images to predict at a time: as many as PREDICT_BATCH if they are small."""
    _, height, width, _ = samples.images.shape
    return max(16, min(PREDICT_BATCH, PREDICT_PIXELS // (height * width)))
