"""FedDF: Ensemble Distillation for Robust Model Fusion in Federated Learning.
Lin, Kong, Stich, Jaggi, NeurIPS 2020, https://arxiv.org/abs/2006.07242, Algorithm 1, and Algorithm 3 for sites whose
networks differ; https://github.com/epfml/federated-learning-public-code

    paper            here                                  lives
    x_t, x_t^p       state["model"], of each architecture  server: one, or one for each of several
    x^_t^k           reply["model"]                        sent; the teachers
    x_{t,0}          the average within an architecture    server, where its student starts
    d                the public set, without its labels    server
    AVGLOGITS        Teachers.logits, divergence           server
    N                distil_steps                          eta  distil_lr, with a cosine to 0      n_k  reply["n"]

Every architecture is averaged over its own clients and taught by all clients. One that no client of a round has keeps
its model (code). What is evaluated is the model after the fusion.

Departures:
- N = 200 steps of Adam in each round, and the last student stays. The paper takes up to 10,000, stops after 1,000 that
  gain nothing on a validation set at the server, and keeps the best. The cosine comes to 0 after N.
- Clients are weighted by n_k in the average, as printed; the code weighs them alike. Teachers count alike.
- The student is in training mode (code): its dropout acts, and BatchNorm statistics move from the average of the
  clients' towards those of the public set. The code's clipping of gradients, unknown to the paper, is left out.
- With buffers = "local" or "server" the clients' BatchNorm statistics are not sent: those of a teacher are measured on
  the public set. With "server" the students' are then what the server keeps.
- The paper classifies images. In segmentation the divergence is that of single pixels, averaged, and a step takes 16
  images instead of 128.
- With a robust rule that puts one network in the place of all of an architecture (median, trimmed-mean), that one is
  its only teacher.
The logits of the teachers are computed once in a round, or at every step if they would take too much memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge, Gt
from torch import Tensor
from torch.nn import functional as F

from crossward.core import select
from crossward.core.gradient_descent import minimise
from crossward.core.method import Clients, Method, Need, RoundContext, View
from crossward.core.net import Net
from crossward.core.samples import Batch, Samples
from crossward.core.seeds import seeded, stream
from crossward.core.site import Predictor, Site, predict_batch_size
from crossward.core.tree import Tree
from crossward.core.weights import Weights
from crossward.methods.public_set import unlabelled_samples
from crossward.nets.parts.feature_moments import reset_batchnorm_statistics

MOST_LOGITS = 2**26  # of the teachers that are kept for a round, in segmentation: 256 MiB
BATCH_SIZE = {"classification": 128, "segmentation": 16}
Models = Weights | dict[str, Weights]  # of the one architecture, or of each of several
TeacherLogits = Callable[[Tensor, Tensor], Tensor]  # for a batch, from its images and their places in the public set


@dataclass(frozen=True)
class FedDF(Method):
    tasks: ClassVar[tuple[str, ...]] = ("classification", "segmentation")
    needs: ClassVar[frozenset[Need]] = frozenset({Need.PUBLIC_SET})
    recipe: ClassVar[Mapping[str, Any]] = {"optimizer": "sgd", "lr": 0.1, "batch_size": 64, "epochs": 40}
    server_needs: ClassVar[str] = "it distils from the network of each site"

    distil_steps: Annotated[int, Ge(0)] = 200  # N, of each student in each round; 0: FedAvg within an architecture
    distil_lr: Annotated[float, Gt(0)] = 1e-3  # of Adam at the first step
    distil_batch: Annotated[int, Ge(2)] | None = None  # public images in a step; None: 128, in segmentation 16

    def check_nets(self, nets: Mapping[str, Net]) -> None:
        """Any networks serve together: they meet in their logits."""

    # server half -----------------------------------------------------------------------------------------------------
    def start(self, ctx: RoundContext) -> Tree:
        names = list(dict.fromkeys(ctx.server.architectures.values()))
        if len(names) < 2:
            return super().start(ctx)
        return {"model": {name: Weights.of(ctx.server.new_net(name), self.travels) for name in names}}

    def round(self, state: Tree, clients: Clients, ctx: RoundContext) -> Tree:
        if isinstance(state["model"], Weights):
            return super().round(state, clients, ctx)

        def payload(client: int) -> Tree:
            return {"model": model_of(state["model"], ctx.server.architectures[client])}

        return self.aggregate(state, clients.ask("train", payload), ctx)

    def aggregate(self, state: Tree, replies: Mapping[int, Tree], ctx: RoundContext) -> Tree:
        names = list(dict.fromkeys(ctx.server.architectures[client] for client in replies))
        new = {name: self._average(name, state, replies, ctx) for name in names}
        if self.distil_steps:
            teacher_logits = self._teacher_logits(self._teachers(new, replies, ctx), ctx)
            new = {name: self._distil(name, start, teacher_logits, ctx) for name, start in new.items()}
        if isinstance(state["model"], Weights):
            return state | {"model": new[names[0]]}
        return state | {"model": state["model"] | new}

    def _average(self, architecture: str, state: Tree, replies: Mapping[int, Tree], ctx: RoundContext) -> Weights:
        """FedAvg among the clients of an architecture."""
        members = [client for client in replies if ctx.server.architectures[client] == architecture]
        if len(members) < len(replies):  # otherwise `replies` itself, which need not be in memory at once
            replies = {client: replies[client] for client in members}
        averaged = super().aggregate({"model": model_of(state["model"], architecture)}, replies, ctx)["model"]  # line 6
        assert isinstance(averaged, Weights)
        return averaged

    def _teachers(self, averages: Mapping[str, Weights], replies: Mapping[int, Tree], ctx: RoundContext) -> Teachers:
        device = ctx.server.device
        nets = {name: ctx.server.new_net(name).to(device).eval().requires_grad_(False) for name in averages}
        for name, net in nets.items():
            averages[name].into(net)
        teachers = Teachers(nets, replies, ctx.server.architectures, {})
        if self.buffers == "average":
            return teachers
        return teachers.with_statistics_of(lambda architecture: self._public(architecture, ctx))

    def _public(self, architecture: str, ctx: RoundContext) -> Samples:
        """The public set as an architecture sees it, without labels."""
        public = ctx.server.public_for(architecture)
        assert public is not None  # Need.PUBLIC_SET
        return unlabelled_samples(public, torch.arange(len(public)))

    def _distil(self, architecture: str, start: Weights, teacher_logits: TeacherLogits, ctx: RoundContext) -> Weights:
        """The student of an architecture, lines 7-10."""
        student = ctx.server.new_net(architecture).to(ctx.server.device)
        start.into(student)
        student.train()
        rng = stream(ctx.server.rng, architecture)
        batch_size = self.distil_batch or BATCH_SIZE[ctx.task.name]
        batches = endless_batches(self._public(architecture, ctx), batch_size, rng)

        def loss() -> Tensor:
            x, places = next(batches)  # line 8
            return divergence(teacher_logits(x, places), student(x))  # line 9

        trained = [parameter for parameter in student.parameters() if parameter.requires_grad]
        what = "FedDF's distillation"
        with seeded(rng.initial_seed()):  # of dropout
            minimise(loss, trained, self.distil_steps, lr=self.distil_lr, schedule="cosine", what=what)
        return Weights.of(student, self.travels)

    def _teacher_logits(self, teachers: Teachers, ctx: RoundContext) -> TeacherLogits:
        public = ctx.server.public
        assert public is not None  # Need.PUBLIC_SET
        _, height, width, _ = public.images.shape
        count = len(public) * height * width * len(ctx.task.classes)
        if ctx.task.name == "segmentation" and count > MOST_LOGITS:  # all see images of the same size
            return lambda x, places: teachers.logits(lambda architecture: [x])
        # (n, K) or (n, K, H, W)
        kept = teachers.logits(lambda architecture: images_in_order(self._public(architecture, ctx)))
        return lambda x, places: kept[places]

    # client half -----------------------------------------------------------------------------------------------------
    def predictor(self, site: Site, down: Tree, view: View = "local") -> Predictor:
        """The fused model of the site's architecture."""
        own = {"model": model_of(down["model"], site.architecture)} if "model" in down else {}
        return super().predictor(site, own, view)


@dataclass(frozen=True)
class Teachers:
    """The clients' networks of a round, in eval mode; of each architecture one is in memory at a time."""

    nets: Mapping[str, Net]  # by architecture
    replies: Mapping[int, Tree]
    architectures: Mapping[int, str]  # of the clients
    statistics: Mapping[int, Weights]  # of their BatchNorm, where clients do not send theirs

    def logits(self, images: Callable[[str], Iterable[Tensor]]) -> Tensor:
        """(n, K) or (n, K, H, W): the mean over clients, of `images` as their architecture sees them."""
        total: Tensor | None = None
        with torch.no_grad():
            for client in self.replies:
                net = self._network(client)
                logits = torch.cat([net(x) for x in images(self.architectures[client])])
                total = logits if total is None else total.add_(logits)
        assert total is not None
        return total / len(self.replies)

    def with_statistics_of(self, public: Callable[[str], Samples]) -> Teachers:
        """The same with BatchNorm statistics of the public set."""
        statistics = {}
        for client in self.replies:
            net = self._network(client)
            reset_batchnorm_statistics(net, images_in_order(public(self.architectures[client])))
            net.eval()
            statistics[client] = Weights.of(net, select.buffers)
        return replace(self, statistics=statistics)

    def _network(self, client: int) -> Net:
        net = self.nets[self.architectures[client]]
        self.replies[client]["model"].into(net)
        if client in self.statistics:
            self.statistics[client].into(net)
        return net


def model_of(models: Models, architecture: str) -> Weights:
    return models if isinstance(models, Weights) else models[architecture]


def images_in_order(samples: Samples) -> Iterator[Tensor]:
    """All images in order, a batch at a time."""
    return (x for x, _ in samples.in_order(predict_batch_size(samples)))


def endless_batches(samples: Samples, size: int, rng: torch.Generator) -> Iterator[Batch]:
    """Shuffled batches, pass after pass."""
    while True:
        yield from samples.shuffled(size, rng)


def divergence(teacher: Tensor, student: Tensor) -> Tensor:
    """KL(softmax(teacher) || softmax(student)) of logits (B, K, ...), the mean over images and pixels."""
    per_class = F.kl_div(student.log_softmax(1), teacher.log_softmax(1), reduction="none", log_target=True)
    return per_class.sum(1).mean()
