"""The sites of a run: opens any of them with its data, its network and its memory."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from crossward.core.compilation import compile_network
from crossward.core.concepts import Concepts
from crossward.core.cores import worker_number
from crossward.core.determinism import fix_order_of_sums
from crossward.core.device_copy import DeviceCopy
from crossward.core.engine import SERVER
from crossward.core.image_size import as_size
from crossward.core.method import PERSONAL, Method, Server
from crossward.core.net import Net, NetSpec
from crossward.core.plugin import Plugin
from crossward.core.samples import Augment, Samples
from crossward.core.seeds import derive, seeded
from crossward.core.site import Site
from crossward.core.task import Task
from crossward.core.training import Training
from crossward.core.tree import Tree
from crossward.core.weights import Weights
from crossward.data.federation import Federation, Split
from crossward.privacy.gate import Gate, SiteRules
from crossward.privacy.run_privacy import RunPrivacy
from crossward.runs.architectures import NetFactory, NetPlan, architecture_of

PARTS = ("train", "val", "test")
DEVICE_IMAGES = 2 << 30  # bytes
ONLY_HERE = ("device", "_device_copy")  # each worker process has its own


@dataclass
class RunSites:
    """The sites of one run. Those of one architecture share one network in memory: a site's own weights are written
    into it when the site is opened."""

    federation: Federation
    method: Method
    task: Task
    net: NetFactory | tuple[NetFactory, ...]  # the same at all sites, or one for each
    training: Training = field(default_factory=Training)
    plugins: tuple[Plugin, ...] = ()
    seed: int = 0
    batch_order: int = 0  # of training: another number, and only the order of batches is another
    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.25,)
    augment: Augment | None = None
    devices: tuple[str, ...] = ("cpu",)
    deterministic: bool = False  # on devices other than the CPU
    compiles: bool = False  # whether the networks of sites are compiled
    device_images: int = DEVICE_IMAGES  # bytes of images and masks that may be kept on a device
    text: Concepts | None = None
    text_numbers: int = 0  # of the embedding of a class, where the text itself is not at hand
    remote: bool = False  # the images are at the hospitals, not here
    privacy: RunPrivacy | None = None  # what bounds and noises the replies of sites
    rules: SiteRules | None = None  # of the people at the one site whose images are here
    _networks: dict[str, Net] = field(default_factory=dict, init=False, repr=False)
    _holders: list[IO[bytes] | tempfile.TemporaryDirectory[str]] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.method.pooled:
            self.federation = self.federation.pooled()

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in self.__dict__.items() if name not in ONLY_HERE}
        return state | {"_networks": {}, "_holders": []}

    def share_images(self) -> None:
        """Put images and masks that live in this process's memory where other processes can map them, too."""
        collection = self.federation.collection
        if collection.file is None or (collection.masks_file is None and collection.has_masks):
            mapped = collection.mapped(self._shared_file(), self._shared_file())
            self.federation = replace(self.federation, collection=mapped)

    def _shared_file(self) -> Path:
        """In memory where the system can (it goes with this process, even if that is killed), else in a folder."""
        if hasattr(os, "memfd_create"):
            file = os.fdopen(os.memfd_create("crossward"), "rb")
            self._holders.append(file)
            return Path(f"/proc/{os.getpid()}/fd/{file.fileno()}")
        folder = tempfile.TemporaryDirectory(prefix="crossward-")
        self._holders.append(folder)
        return Path(folder.name) / "pixels.raw"

    @property
    def ids(self) -> Sequence[int]:
        return range(len(self.federation.sites))

    @property
    def clients(self) -> list[int]:
        """The sites that have something to train on."""
        return [site for site in self.ids if self.work(site, "train")]

    def name(self, site: int) -> str:
        return self._split(site).name

    def work(self, site: int, step: str) -> int:
        split = self._split(site)
        if self.remote and site != SERVER:
            return 1  # it is not known here
        if step in ("predict", "deploy"):
            common = self.federation.server if self.personal else None
            return sum(s.val.numel() + s.test.numel() for s in (split, common) if s is not None)
        return split.train.numel()

    @cached_property
    def carried(self) -> tuple[Plugin, ...]:
        """The method's own plugins, and those it was given."""
        return (*self.method.carried, *self.plugins)

    @cached_property
    def personal(self) -> bool:
        """Whether sites predict with networks of their own: some weights stay, or a method or plugin says so."""
        own = len(self.architectures) > 1 or bool(self._personal_weights(SERVER))
        return own or self.method.personalises or any(p.personalises for p in self.carried)

    @cached_property
    def architectures(self) -> dict[str, int]:
        """Every architecture, and a site that has it: the first."""
        first_sites: dict[str, int] = {}
        for site, architecture in self._architecture_by_site.items():
            first_sites.setdefault(architecture, site)
        return first_sites or {self.architecture(SERVER): SERVER}

    @cached_property
    def _architecture_by_site(self) -> Mapping[int, str]:
        if not isinstance(self.net, tuple):  # of a hundred thousand sites, each would be put into words
            return dict.fromkeys(self.ids, self.architecture(SERVER))
        return {site: self.architecture(site) for site in self.ids}

    def net_factory(self, site: int) -> NetFactory:
        """How a site's network is made; the server's is that of the first site."""
        return self.net[max(site, 0)] if isinstance(self.net, tuple) else self.net

    def architecture(self, site: int) -> str:
        return architecture_of(self.net_factory(site))

    def targets(self, site: int, split: str) -> Tensor:
        """Class maps as the bytes that they are: as int64 those of 5,000 images of 256 pixels would take 2.6 GB."""
        rows: Tensor = getattr(self._split(site), split)
        targets = self.federation.collection.targets
        targets = targets[rows] if rows.numel() else targets[:0]
        return targets if self.federation.collection.has_masks else targets.long()

    def test_images(self, site: int, rows: Tensor) -> tuple[Tensor, list[str]]:
        """(n, H, W, C) bytes of some rows of its test set, and what they are called."""
        collection, mine = self.federation.collection, self._split(site).test[rows]
        return collection.images[mine], [collection.ids[row] for row in mine.tolist()]

    def open(self, site: int, round: int, memory: Tree, fresh: bool = False) -> Site:
        split = self._split(site)
        network = self._build_network(site) if fresh else self._shared_network(site)
        if (
            not fresh and self._personal_weights(site) and PERSONAL not in memory
        ):  # its first time: as its own seed says
            Weights.of(self._build_network(site), ~self.method.travels).into(network)
        if self.device.type != "cpu":  # networks are built on the CPU: a process that opens no site holds no device
            network.to(self.device)
        for buffer in network.buffers():
            if not buffer.is_floating_point():
                buffer.zero_()
        shrink = self._shrink(site)
        common = {part: self._samples(getattr(self.federation.server, part), shrink) for part in ("val", "test")}
        opened = Site(
            id=site,
            name=split.name,
            model=network,
            task=self.task,
            **{part: self._samples(getattr(split, part), shrink, part) for part in PARTS},  # type: ignore[arg-type]
            training=self.training,
            round=round,
            memory=memory,
            plugins=self.carried,
            public=self._public(shrink),
            common=common if site != SERVER and self.personal else {},
            device=self.device,
            architecture=self.architecture(site),
        )
        if site != SERVER:
            self._protect(opened)
        return opened

    def _protect(self, opened: Site) -> None:
        """Let nothing out of the site but what its rules and its noise allow; without either, there is no gate."""
        if self.privacy is not None:
            self.privacy.attach(opened)
        if self.privacy is not None or self.rules is not None:
            opened.gate = Gate(self.privacy.settings.unit if self.privacy else None, self.rules)

    def server(self, round: int) -> Server:
        rng = torch.Generator().manual_seed(derive(self.seed, "server", round))
        shrink = self._shrink(SERVER)
        val = self._samples(self.federation.server.val, shrink)
        return Server(
            new_net=lambda architecture=None: self._build_network(SERVER, architecture),
            task=self.task,
            rng=rng,
            device=self.device,
            spec=self.spec(SERVER),
            public=self._public(shrink),
            val=val if len(val) else None,
            text=self.text,
            architectures=self._architecture_by_site,
            shrinks={architecture: self._shrink(site) for architecture, site in self.architectures.items()},
        )

    def spec(self, site: int) -> NetSpec:
        collection = self.federation.collection
        factory = self.net_factory(site)
        text = self.text.dim if self.text else self.text_numbers
        size = factory.size if isinstance(factory, NetPlan) else as_size(*collection.size)
        return NetSpec(collection.channels, size, len(self.task.classes), text, self.mean, self.std, len(self.ids))

    @cached_property
    def device(self) -> torch.device:
        """Workers take the devices in turn."""
        device = torch.device(self.devices[worker_number() % len(self.devices)])
        fix_order_of_sums(device, self.deterministic)
        return device

    @cached_property
    def _device_copy(self) -> DeviceCopy | None:
        """All images on the device, for the sites and rounds to come; made when a first batch is wanted."""
        if self.device.type == "cpu":
            return None
        collection = self.federation.collection
        return DeviceCopy(collection.images, collection.targets, self.device, self.device_images)

    def _split(self, site: int) -> Split:
        return self.federation.server if site == SERVER else self.federation.sites[site]

    def _shrink(self, site: int) -> int:
        factory = self.net_factory(site)
        return factory.shrink if isinstance(factory, NetPlan) else 1

    def _samples(self, rows: Tensor, shrink: int, part: str = "") -> Samples:
        collection = self.federation.collection
        samples = Samples(
            collection.images,
            collection.targets,
            rows,
            self.mean,
            self.std,
            device=self.device,
            shrink=shrink,
            device_copy=self._device_copy,
        )
        if part != "train":
            return samples
        order, drop_last = self.batch_order, self.training.drop_last
        return replace(samples, augment=self.augment, batch_order=order, drop_last=drop_last)

    def _public(self, shrink: int) -> Samples | None:
        return self._samples(self.federation.public, shrink) if len(self.federation.public) else None

    def _build_network(self, site: int, architecture: str | None = None) -> Net:
        """As the site's seed says; the server may ask for any architecture."""
        like = site if architecture is None else self.architectures[architecture]
        with seeded(derive(self.seed, "network", site)):
            network = self.method.build(self.net_factory(like)(), self.spec(like))
        return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]

    def _personal_weights(self, site: int) -> list[str]:
        """The weights that never leave a site."""
        return (~self.method.travels).names(self._shared_network(site))

    def _shared_network(self, site: int) -> Net:
        architecture = self.architecture(site)
        if architecture not in self._networks:
            network = self._build_network(SERVER, architecture if site != SERVER else None)
            if self.compiles:
                compile_network(network)
            self._networks[architecture] = network
        return self._networks[architecture]
