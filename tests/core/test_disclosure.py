"""Kinds of disclosure: every phrase that a method uses has one, and BatchNorm statistics are seen among the weights."""

from __future__ import annotations

import pytest
from torch import nn

from crossward.core.disclosure import BY_CLASS, CLASS_COUNTS, KINDS, Kind, disclosed, kind_of
from crossward.core.method import Method
from crossward.errors import ConfigError
from crossward.methods import METHODS, method_class
from crossward.methods.central import Central
from crossward.methods.creff import CReFF
from crossward.methods.fedproto import FedProto
from crossward.methods.fedsm import FedSM
from crossward.methods.lg_fedavg import LGFedAvg
from crossward.methods.local import Local
from crossward.methods.random_frozen import RandomFrozen
from crossward.nets.net import Net
from crossward.testing.toy import classifier, linear


@pytest.mark.parametrize("name", METHODS)
def test_every_method_speaks_in_known_words(name):
    assert [phrase for phrase in method_class(name).discloses.values() if phrase not in KINDS] == []


def test_every_word_is_in_use():
    assert {phrase for name in METHODS for phrase in method_class(name).discloses.values()} == set(KINDS)


@pytest.mark.parametrize(
    ("phrase", "kind"),
    [
        ("weights", "weights"),
        ("step count", "sample-count"),
        ("which classes are present", "class-counts"),
        ("feature sums by class", "prototypes"),
        ("feature statistics", "prototypes"),
        ("validation confusion matrix", "metrics"),
        ("softened class probabilities on the public set", "logits"),
        ("gradient of a network that tells whose an image is", "gradients"),
        ("weights of the site's own segmentation head, for all sites", "personal-weights"),
        ("every training image", "images"),
    ],
)
def test_the_kind_of_a_phrase(phrase, kind):
    assert kind_of(phrase) == kind


def test_an_unknown_phrase_is_named_with_the_known_ones():
    with pytest.raises(ConfigError, match="'age of the patients'") as caught:
        kind_of("age of the patients")
    assert "class prototypes; feature statistics" in caught.value.hint


def test_the_kinds_cannot_be_changed():
    with pytest.raises(TypeError):
        KINDS["age"] = Kind.WEIGHTS


def test_words_with_a_meaning_of_their_own_are_known():
    assert {kind_of(phrase) for phrase in BY_CLASS} == {Kind.PROTOTYPES}
    assert kind_of(CLASS_COUNTS) is Kind.CLASS_COUNTS


def body_without_statistics():
    return Net(nn.Flatten(), nn.Sequential(nn.BatchNorm1d(64), nn.Linear(64, 3)), width=64)


@pytest.mark.parametrize(
    ("method", "net", "kinds"),
    [
        (Method(), classifier, {"weights", "sample-count", "buffers"}),
        (Method(), linear, {"weights", "sample-count"}),
        (Method(buffers="local"), classifier, {"weights", "sample-count"}),
        (Method(buffers="server"), classifier, {"weights", "sample-count"}),
        (RandomFrozen(), body_without_statistics, {"weights", "sample-count"}),
        (RandomFrozen(), classifier, {"weights", "sample-count", "buffers"}),
        (LGFedAvg(warmup=0), classifier, {"weights", "sample-count"}),
        (FedProto(), classifier, {"prototypes", "class-counts"}),
        (CReFF(), linear, {"weights", "sample-count", "gradients", "class-counts"}),
        (FedSM(), classifier, {"weights", "personal-weights", "gradients", "sample-count", "buffers"}),
        (Central(), classifier, {"images", "sample-count"}),
        (Local(), classifier, set()),
    ],
)
def test_what_a_method_discloses_with_a_network(method, net, kinds):
    assert disclosed(method, net()) == kinds
