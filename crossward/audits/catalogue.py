"""The attacks that there are. No torch is imported here, so that `crossward audit --list` answers at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class AttackEntry:
    """What `crossward audit --list` says of an attack, and where it is."""

    title: str
    what: str
    cost: str
    module: str  # of crossward.audits, in which a function has the attack's name


ATTACKS: Mapping[str, AttackEntry] = {
    "membership": AttackEntry(
        "Was this image trained on?",
        "Whoever has the network and an image guesses whether it was trained on: by the loss, and by RMIA with a "
        "reference network (--reference, --train-reference).",
        "predicts the training and test images; --train-reference: half of the run's time",
        "membership",
    ),
    "inversion": AttackEntry(
        "Images from one gradient",
        "The coordinator looks for images whose gradient is the one that a site sent, of one image and of a batch.",
        "at most --seconds",
        "gradient_inversion",
    ),
    "crafted": AttackEntry(
        "Crafted weights",
        "A hostile coordinator sends weights that make a site's answer hold patients' images, with the run's "
        "protection and without it.",
        "12 training steps of one site",
        "crafted_runs",
    ),
    "generator": AttackEntry(
        "Generated images",
        "Whether FedBM's generator repeats training images: how near these are to what it makes.",
        "predicts the training images",
        "generator_neighbours",
    ),
    "rare": AttackEntry(
        "Rare classes",
        "What prototypes and class counts tell of classes of which a site has few images.",
        "one more round of the run",
        "rare_classes",
    ),
    "canary": AttackEntry(
        "Canaries",
        "The run is repeated with canaries, each trained on or not by the toss of a coin; who can tell which "
        "from what leaves the site refutes an epsilon (--canaries N).",
        "the whole run once more",
        "canary_audit",
    ),
}
