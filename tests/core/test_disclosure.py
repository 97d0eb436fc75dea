"""What methods declare that they send: each item has a kind and words, and BatchNorm statistics count among weights."""

from __future__ import annotations

import pytest
from torch import nn

from crossward.core.disclosure import CLASS_COUNTS, Disclosure, DisclosureKind
from crossward.core.method import Method
from crossward.core.net import Net
from crossward.hospitals.policy import disclosed_kinds
from crossward.methods import METHODS, method_class
from crossward.methods.central import Central
from crossward.methods.creff import CReFF
from crossward.methods.fedproto import FedProto
from crossward.methods.fedsm import FedSM
from crossward.methods.lg_fedavg import LGFedAvg
from crossward.methods.local import Local
from crossward.methods.random_frozen import RandomFrozen
from crossward.testing.toy import classifier, linear


@pytest.mark.parametrize("name", METHODS)
def test_every_method_declares_kinds_and_words(name):
    for item, disclosure in method_class(name).discloses.items():
        assert isinstance(disclosure, Disclosure), item
        assert isinstance(disclosure.kind, DisclosureKind), item
        assert disclosure.what, item


@pytest.mark.parametrize(
    ("name", "item", "kind"),
    [
        ("fedavg", "model", "weights"),
        ("feddc", "reach", "sample-count"),
        ("creff", "classes", "class-counts"),
        ("fedproc", "prototypes", "prototypes"),
        ("fedbm", "moments", "prototypes"),
        ("fedcb", "confusion", "metrics"),
        ("kt-pfl", "probabilities", "logits"),
        ("fedsm", "gradient", "gradients"),
        ("lc-fed", "head", "personal-weights"),
        ("central", "model", "images"),
    ],
)
def test_the_kind_of_what_a_method_sends(name, item, kind):
    assert method_class(name).discloses[item].kind == kind


def test_only_sums_and_prototypes_have_a_row_for_each_class():
    by_class = {(name, item) for name in METHODS for item, d in method_class(name).discloses.items() if d.by_class}
    assert by_class == {
        ("fedproc", "prototypes"),
        ("fedproto", "prototypes"),
        ("fednh", "prototypes"),
        ("fedcd", "prototypes"),
    }


def test_a_disclosure_in_words():
    assert str(CLASS_COUNTS) == "class-counts: class counts"


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
    assert disclosed_kinds(method, net()) == kinds
