"""FedBM: Stealing Knowledge from Pre-trained Language Models for Heterogeneous Federated Learning.
Zhu, Yang, Gao, Yuan, Liu, https://github.com/CUHK-AIM-Group/FedBM, Algorithm 1: the classifier of FedCB (LKCC,
Eqs. 1-5) and a generator guided by concepts (CGDE, Eqs. 6-11), which gives every client images of every class.

    paper            here                                   lives
    mu, Sigma        state["text"]                          server; sent to a client once
    G                state["generator"]                     server; sent to a client when it has changed
    F                state["model"], the teacher of G       server
    z, y^            Concepts.sample, uniform               drawn where they are used
    x^ = G(z)        batches()                              client, fresh at every step, beside the real images
    lambda_div/dis   lambda_div, lambda_dis

Departures:
- L_sem has the covariance term of Eq. 4 beside the cross entropy, as in the code (semantic = "ce" leaves it out).
- L_dis compares the statistics of the *global model's* BatchNorm layers; "of the generator" in the text is a slip.
  A net without BatchNorm has them measured: after aggregation the clients tell mean and variance behind every
  convolution of the new global model over their training images, and these stand in for the running statistics.
- Where BatchNorm statistics stay (buffers = "local" or "server"), F has none of its own for Eqs. 6 and 8. They are
  measured in the same way, at the input of every BatchNorm layer, each site normalising by its own images as it does in
  training; pooled, they are what F works with and what L_dis compares with. So sites do tell them ("moments").
- The plugin bsm is refused beside generated images, which are of all classes alike: it would shift a class that a site
  lacks by -20.7 while images of it are in every batch. balanced = true has the prior of the mixture.
- L_div takes pairs of one class, before augmentation, and averages them (code).
- G is trained after rounds cycle, 2 cycle, ... from the weights it had, with a new optimiser (code; Algorithm 1
  trains it at the start of a round). Until then clients have real images alone.
- conditions = "label" is the ablation without concepts: z ~ N(0, I) plus an embedding of the label learnt with G, since
  G could not tell the classes apart otherwise.
- generate = "features" is the remedy for privacy that the authors propose: G makes the maps behind the first `cut`
  modules of the body, which never were images; real images join them there. L_dis then has the layers above the cut.
- classifier = "trained" is the ablation without LKCC: an ordinary head, trained; concepts still guide G.
- statistics = "real" lets a client's BatchNorm statistics be those of its real images, measured once more after the
  fit: generated images have others, which the code mixes in, and which the generator is then taught to match.
- With privacy, a site's own images are drawn by chance and their gradients clipped and noised; generated images, which
  are the server's, add theirs after the noise, so that a step is the mean over both, as without. The moments that sites
  tell are noisy means, of rows clipped to moments_clip. tau = "auto" is refused.
- G is the paper's at 128 pixels; at other sizes it starts from another map and doubles more or less often, and feature
  maps end in a softplus where images have a sigmoid. generator_width makes it narrower for small networks.
- Crop, flips and normalisation of x^ are one decision a batch (code); the crop moves by size/32, 4 pixels at 128, and
  repeats edges where the code leaves black.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, cast

import torch
from annotated_types import Ge, Gt
from torch import Tensor

from crossward.core.concepts import Concepts
from crossward.core.disclosure import (
    SAMPLE_COUNT,
    VALIDATION_CONFUSION,
    WEIGHTS,
    Bound,
    Disclosure,
    DisclosureKind,
    Made,
)
from crossward.core.gradient_descent import minimise
from crossward.core.method import Clients, RoundContext
from crossward.core.net import Net, NetSpec
from crossward.core.noisy_statistics import MOMENTS
from crossward.core.plugin import Plugin, RunFacts
from crossward.core.samples import Batch
from crossward.core.seeds import seeded
from crossward.core.site import Site
from crossward.core.tree import Tree
from crossward.core.weights import Weights
from crossward.errors import ConfigError
from crossward.losses import diversity_loss
from crossward.methods.fedbm.generator import Generator, augment_generated, to_uint8
from crossward.methods.fedbm.split_body import ImagesAndMaps, SplitBody, split_body
from crossward.methods.fedcb import CONCEPT_PARTS, FedCB
from crossward.nets.parts.feature_moments import (
    Moments,
    batchnorm_layers,
    forward_with_moments,
    image_moments,
    measure_moments,
    moments_of_mean,
    pool_moments,
    reset_batchnorm_statistics,
    running_moments,
)

JITTER = 1e-4  # added to the covariance, which has rank M - 1 at most
CHUNK = 256  # images that a client generates at a time; each is used once
PICTURES = 8  # generated images of each class for people to look at
NonNegative = Annotated[float, Ge(0)]
Count = Annotated[int, Ge(1)]


@dataclass(frozen=True)
class FedBM(FedCB):
    steps: ClassVar[tuple[str, ...]] = ("train", "trial", "score", "observe")
    discloses: ClassVar[Mapping[str, Disclosure]] = {
        "model": WEIGHTS,
        "n": SAMPLE_COUNT,
        "confusion": VALIDATION_CONFUSION,
        "moments": Disclosure(DisclosureKind.PROTOTYPES, "feature statistics", made=Made.MEAN, bound=Bound.CLIP),
    }
    server_needs: ClassVar[str] = ""
    sometimes: ClassVar[tuple[str, ...]] = ("confusion", "moments")  # moments: no BatchNorm statistics at the server

    synthetic: Annotated[int, Ge(0)] = 16  # generated images in each batch
    cycle: Count = 5  # rounds between two trainings of the generator
    iterations: Count = 100  # steps of a training
    generator_batch: Annotated[int, Ge(2)] = 64  # images in each of them
    generator_lr: Annotated[float, Gt(0)] = 3e-4  # of Adam
    generator_width: Annotated[float, Gt(0)] = 1.0  # of its layers; 1 is the paper's
    lambda_div: NonNegative = 1.0  # weight of diversity, Eq. 7
    lambda_dis: NonNegative = 0.1  # weight of the statistics' distance, Eq. 8
    semantic: Literal["surrogate", "ce"] = "surrogate"  # L_sem with or without the covariance term
    conditions: Literal["concept", "label"] = "concept"  # what tells the generator the class
    statistics: Literal["mixed", "real"] = "mixed"  # that BatchNorm keeps: of all images in a fit, or of the real ones
    generate: Literal["images", "features"] = "images"  # what the generator makes
    moments_clip: Annotated[float, Gt(0)] = (
        2.0  # with privacy: most that the moments of an image are, as a root mean square
    )
    cut: Annotated[int, Ge(0)] = 0  # features: behind how many modules of the body; 0: as deep as maps have 8 pixels

    def cautions(self, facts: RunFacts) -> list[str]:
        notes = super().cautions(facts)
        if self.buffers != "average":
            what = "mean and variance of their features in every BatchNorm layer (moments)"
            notes.append(
                f'buffers = "{self.buffers}": sites tell {what} all the same, whenever the generator is trained'
            )
        return notes

    def check_plugins(self, plugins: tuple[Plugin, ...]) -> None:
        """A prior of a site's own images does not hold where generated ones are mixed in."""
        refused = [type(plugin).__name__.lower() for plugin in plugins if plugin.allows_for_prior]
        if refused and self.synthetic and not self.balanced:
            raise ConfigError(
                f"FedBM mixes generated images of all classes into every batch, and {', '.join(refused)} would punish "
                "those of classes that a site lacks",
                hint="Set method.balanced = true instead: it allows for both, real images and generated ones.",
            )

    def noisy_statistics(self, rounds: int) -> Mapping[str, int]:
        """With privacy no net has BatchNorm, so moments are measured whenever the generator is trained."""
        return {**super().noisy_statistics(rounds), MOMENTS: rounds // self.cycle if self.lambda_dis else 0}

    # both halves -----------------------------------------------------------------------------------------------------
    def build(self, net: Net, spec: NetSpec) -> Net:
        spec.square_side("FedBM's generator")  # refused before round 1
        if self.generate == "features":
            net = Net(split_body(net.body, spec, self.cut), net.head, net.width)
        return super().build(net, spec)

    def new_generator(self, net: Net, spec: NetSpec, weights: Weights | None = None) -> Generator:
        """With these weights, or with random ones."""
        channels, size = spec.channels, spec.square_side("FedBM's generator")
        if self.generate == "features":
            channels, size, _ = next(m for m in net.modules() if isinstance(m, SplitBody)).shape
        labels = spec.classes if self.conditions == "label" else 0
        with nullcontext() if weights is None else torch.device("meta"):  # no random weights that nobody will use
            generator = Generator(
                spec.text, channels, size, width=self.generator_width, output=self.generate, labels=labels
            )
        if weights is not None:
            weights.into(generator.to_empty(device="cpu"))
        return generator.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]

    def sample_conditions(self, text: Tree, y: Tensor, rng: torch.Generator) -> Tensor:
        """Eq. 9: z ~ N(mu_y, Sigma_y + 1e-4 I) with the full covariance; without concepts N(0, I)."""
        if self.conditions == "concept":
            return Concepts(text["mean"].to(y.device), text["factor"].to(y.device)).sample(y, JITTER, rng)
        return torch.randn(len(y), text["mean"].shape[1], generator=rng).to(y.device)

    @property
    def text_parts(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([*CONCEPT_PARTS[self.classifier], "mean", "factor"]))

    # server half -----------------------------------------------------------------------------------------------------
    def start(self, ctx: RoundContext) -> Tree:
        self._require_one_size(ctx)
        with seeded(int(torch.randint(2**31, (), generator=ctx.server.rng))):
            generator = self.new_generator(ctx.server.new_net(), ctx.server.spec)
        return super().start(ctx) | {"generator": Weights.of(generator), "trained": 0}

    def _require_one_size(self, ctx: RoundContext) -> None:
        shrinks = ctx.server.shrinks
        if self.synthetic and len({*shrinks.values()}) > 1:
            raise ConfigError(
                "FedBM's generator makes images of one size, and the networks of the sites see several",
                details=[f"{architecture}: shrink = {shrink}" for architecture, shrink in shrinks.items()],
                hint="Give every site the same shrink.",
            )

    def versions(self, state: Tree) -> Mapping[str, int]:
        trained = {"generator": state["trained"]} if state["trained"] and self.synthetic else {}
        return {**super().versions(state), **trained}

    def round(self, state: Tree, clients: Clients, ctx: RoundContext) -> Tree:
        state = super().round(state, clients, ctx)
        if (ctx.round + 1) % self.cycle:
            return state
        return state | {"generator": self._train_generator(state, clients, ctx), "trained": ctx.round + 1}

    def _train_generator(self, state: Tree, clients: Clients, ctx: RoundContext) -> Weights:
        spec, device, rng = ctx.server.spec, ctx.server.device, ctx.server.rng
        teacher = ctx.server.new_net().to(device)
        state["model"].into(teacher)
        self.set_classifier(teacher, state).eval().requires_grad_(False)
        targets = self._real_moments(teacher, state, clients, device)
        generator = self.new_generator(teacher, spec, state["generator"]).to(device).train()

        def loss() -> Tensor:  # Eq. 10
            y = torch.randint(spec.classes, (self.generator_batch,), generator=rng).to(device)
            z = self.sample_conditions(state["text"], y, rng)
            generated = generator(z, y)
            x: Tensor | ImagesAndMaps
            if self.generate == "features":
                x = ImagesAndMaps(None, generated)
            else:
                x = augment_generated(generated, spec, rng)
            h, moments = forward_with_moments(teacher, lambda: cast(Tensor, teacher.body(x)))
            sem = ctx.task.loss(teacher.head(h), y)  # Eq. 6
            if self.semantic == "surrogate":
                sem = sem + self.alignment(teacher, h, y).mean()
            gaps = [a.distance(b) for a, b in zip(moments, targets) if a is not None]  # no targets: lambda_dis = 0
            dis = torch.stack(gaps).sum() if gaps else sem.new_zeros(())  # Eq. 8
            return sem + self.lambda_div * diversity_loss(generated, z, y, spec.classes) + self.lambda_dis * dis

        what = "the training of FedBM's generator"
        minimise(loss, generator.parameters(), self.iterations, lr=self.generator_lr, betas=(0.5, 0.999), what=what)
        return Weights.of(generator)

    def _real_moments(self, teacher: Net, state: Tree, clients: Clients, device: torch.device) -> list[Moments]:
        """The moments of real images in the teacher, for Eq. 8; none where lambda_dis is 0. A teacher whose BatchNorm
        has no statistics, because they stay elsewhere, is given those that the clients measure."""
        running = running_moments(teacher)
        if running and self.buffers == "average":
            return running if self.lambda_dis else []
        if not running and not self.lambda_dis:
            return []
        observed = self._observed_moments(state, clients, device)
        for kept, measured in zip(running, observed):  # `running` is empty for a net without BatchNorm
            kept.mean.copy_(measured.mean)
            kept.variance.copy_(measured.variance)
        return observed if self.lambda_dis else []

    def _observed_moments(self, state: Tree, clients: Clients, device: torch.device) -> list[Moments]:
        """The moments of the clients' images in the new global model."""
        replies = list(clients.ask("observe", {"model": state["model"]}).values())
        sizes = [float(reply["n"]) for reply in replies]
        by_client = [
            [Moments(m["mean"].to(device), m["variance"].to(device)) for m in reply["moments"].values()]
            for reply in replies
        ]
        return [pool_moments(layer, sizes) for layer in zip(*by_client, strict=True)]

    def pictures(self, state: Tree, ctx: RoundContext) -> Mapping[str, Tensor]:
        if state["trained"] != ctx.round + 1:
            return {}
        server = ctx.server
        generator = self.new_generator(server.new_net(), server.spec, state["generator"]).to(server.device).eval()
        y = torch.arange(ctx.num_classes).repeat_interleave(PICTURES).to(server.device)
        with torch.no_grad():
            generated = generator(self.sample_conditions(state["text"], y, server.rng), y)
        return {"generated": to_uint8(generated).unflatten(0, (ctx.num_classes, PICTURES))}

    # client half -----------------------------------------------------------------------------------------------------
    def fit(self, site: Site, down: Tree) -> None:
        if "generator" not in down or not self.synthetic:
            super().fit(site, down)
            return
        share = self.synthetic / (self.synthetic + site.training.batch_size)
        loss = self.loss(site, share)
        if site.privacy is not None:
            site.fit(loss, generated=self.generated_alone(site, down))  # the mean over both is Eq. 11, too
            return
        site.fit(loss, batches=self.batches(site, down))  # Eq. 11
        if self.statistics == "real":
            reset_batchnorm_statistics(site.model, (x for x, _ in site.train.in_order(CHUNK)))

    def batches(self, site: Site, down: Tree) -> Iterator[Batch]:
        """Real images with generated ones behind them, in one batch."""
        generated = self.generated_batches(site, down)
        for x, y in site.batches():
            x_hat, y_hat = next(generated)
            both = ImagesAndMaps(x, x_hat) if self.generate == "features" else torch.cat([x, x_hat])
            yield both, torch.cat([y, y_hat])  # type: ignore[misc]

    def generated_alone(self, site: Site, down: Tree) -> Iterator[Batch]:
        """Batches without real images, whose own are drawn by chance and clipped."""
        for x_hat, y_hat in self.generated_batches(site, down):
            yield ImagesAndMaps(None, x_hat) if self.generate == "features" else x_hat, y_hat  # type: ignore[misc]

    def generated_batches(self, site: Site, down: Tree) -> Iterator[Batch]:
        """Fresh images and labels without end; generated in chunks, which is faster than a few at a time."""
        _, stored, _, channels = site.train.images.shape
        side = stored // site.train.shrink  # as large as the network sees images
        dim = down["text"]["mean"].shape[1]
        spec = NetSpec(channels, side, site.num_classes, dim, site.train.mean, site.train.std)
        generator = self.new_generator(site.model, spec, down["generator"]).to(site.device).eval()
        chunk = max(1, CHUNK // self.synthetic) * self.synthetic
        while True:
            y = torch.randint(site.num_classes, (chunk,), generator=site.rng).to(site.device)
            with torch.no_grad():
                images = generator(self.sample_conditions(down["text"], y, site.rng), y)
            for some, labels in zip(images.split(self.synthetic), y.split(self.synthetic), strict=True):
                yield (some if self.generate == "features" else augment_generated(some, spec, site.rng)), labels

    def observe(self, site: Site, down: Tree) -> Tree:
        """The moments of the site's training images; nothing of it stays at the site."""
        stays = Weights.of(site.model, ~self.travels)
        down["model"].into(site.model)
        site.model.eval()
        layers = self._moments(site) if site.privacy is None else self._noisy_moments(site)
        stays.into(site.model)
        moments = {str(k): {"mean": m.mean, "variance": m.variance} for k, m in enumerate(layers)}
        return {"moments": moments, "n": site.size}

    def _moments(self, site: Site) -> list[Moments]:
        batches = site.train.in_order(CHUNK)
        if norms := batchnorm_layers(site.model):  # they normalise by the batch, so batches are drawn as in training
            batches = replace(site.train, augment=None, drop_last=False).shuffled(CHUNK, site.rng)
            for layer in norms:
                layer.train()
        return measure_moments(site.model, (x for x, _ in batches))

    def _noisy_moments(self, site: Site) -> list[Moments]:
        """Why it is private: they are made of one noisy sum over images, to which each adds a row of its own moments,
        clipped; the network is the server's. Without clip and noise they are those of `_moments`."""
        assert site.privacy is not None
        channels: list[int] = []

        def rows() -> Iterator[Tensor]:
            for x, _ in site.train.in_order(CHUNK):
                row, channels[:] = image_moments(site.model, x)
                yield row

        return moments_of_mean(site.privacy.statistics.mean(site, MOMENTS, rows(), clip=self.moments_clip), channels)
