"""The situations of the demo: what each shows, and the study that shows it (situations/*.toml)."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from pathlib import Path

ALONE = "local"
FEDAVG = "fedavg"


@dataclass(frozen=True)
class Situation:
    name: str  # of its study file
    title: str
    nav: str  # in few words
    made_for: str  # what the methods of the papers were made for, and how the phantom shows it
    methods: tuple[str, ...] = ()  # of the papers; none: all of them are compared

    def study_text(self) -> str:
        """The study as TOML."""
        return resources.files("crossward.demo").joinpath("situations", f"{self.name}.toml").read_text(encoding="utf-8")

    def write_study(self, folder: Path) -> Path:
        """The study file in a folder: people can read it, change it, and run it again."""
        file = folder / f"{self.name}.toml"
        file.write_text(self.study_text(), encoding="utf-8")
        return file


SITUATIONS = (
    Situation(
        "few-sites",
        "Labels that differ, and few hospitals asked",
        "Labels",
        "FedCB and FedBM (Zhu et al., 2024 and 2025) are for hospitals with very different diagnoses, of which only "
        "some take part in a round: the classifier that is averaged leans to those who were asked. FedCB makes it from "
        "the names of the classes and freezes it; FedBM also generates images of the classes that a hospital lacks. "
        "Here each hospital has two or three diagnoses for the most part, and half of the hospitals take part in a "
        "round. Judged on a test set of all hospitals and classes.",
        ("fedcb", "fedbm"),
    ),
    Situation(
        "missing-classes",
        "Rare classes, and classes never seen",
        "Imbalance",
        "FedNPR-Per (Wicaksana, Yan, Cheng) is for hospitals whose classes are imbalanced and partly missing, and that "
        "want a network for their own patients: features are shared, the classifier is each hospital's own, and "
        "sub-prototypes of each class keep rare ones apart. Here hospitals have few images and lack classes. Judged at "
        "each hospital on its own patients.",
        ("fednpr-per",),
    ),
    Situation(
        "many-epochs",
        "Many epochs between two exchanges",
        "Epochs",
        "FedCD (Long et al., ACM Multimedia 2023) is for hospitals that train long between two exchanges, because "
        "these are costly: local classifiers drift apart, so FedCD trains them on prototypes of all hospitals and "
        "averages them class by class. Here each hospital has one to three diagnoses for the most part, and trains ten "
        "epochs in a round. Judged on a test set of all hospitals and classes.",
        ("fedcd",),
    ),
    Situation(
        "own-networks",
        "Four networks, at four resolutions",
        "Networks",
        "MH-pFLGB (Xie et al., MICCAI 2024) is for hospitals that cannot agree on a network: only a small bypass is "
        "shared, and each hospital fuses its features with those of its own network. FedAvg cannot run here at all. "
        "Hospitals have ResNets of 17, 11, 8 and 5 layers, for images of 36, 18, 12 and 9 pixels. Judged at each "
        "hospital on its own patients.",
        ("mh-pflgb",),
    ),
)
MORE_SITUATIONS = (
    Situation(
        "every-method",
        "Every method on the same hospitals",
        "All methods",
        "All methods of the catalogue with one network, one rate and one seed. Most would do better with settings of "
        "their own: this shows that they run, not which is best.",
    ),
    Situation(
        "polyps",
        "Polyps, outlined at four hospitals with different endoscopes",
        "Polyps",
        "Segmentation: one U-Net for all hospitals.",
    ),
    Situation(
        "polyp-networks",
        "Polyps, with a different network at every hospital",
        "Polyp networks",
        "Segmentation with a U-Net, a U-Net++, an FCN and a ResUNet: only a bypass is shared.",
        ("mh-pflgb",),
    ),
)  # of `crossward demo --all`
