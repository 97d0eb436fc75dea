"""A site that wants the model for itself: it lies about how many images it has, sends a huge update, or makes up counts
and metrics. It is rejected by name or held down, and the run goes on."""

from __future__ import annotations

import json

import pytest
import torch

from crossward.core.weights import Weights
from crossward.methods.fedavg import FedAvg
from crossward.testing.hostile_site import HOSTILE, HostileFederation, change_header, change_tree


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CROSSWARD_CACHE", str(tmp_path / "cache"))


def assert_rejected(federation, step, why):
    """Every reply of the hostile site to the step was rejected for this reason, and the others took both rounds."""
    federation.coordinate()
    faults = federation.events("fault")
    assert {(fault["site"], fault["step"]) for fault in faults} == {(HOSTILE, step)}
    assert all(why in fault["why"] for fault in faults), faults[0]["why"]
    assert [list(line["failures"]) for line in federation.rounds] == [[HOSTILE]] * 2


@pytest.mark.parametrize("n", [10**9, -20, 0, 9, True, 8.0, 10**400], ids=repr)
def test_a_sample_count_that_is_not_the_sites(tmp_path, n):
    """n = 10**9 made every weight of the model that site's."""
    lie = change_tree(lambda tree: tree | {"model": tree["model"] * 0.0 + tree["model"], "n": n})
    assert_rejected(HostileFederation(tmp_path, hostile={"train": lie}), "train", "rejected: n ")


@pytest.mark.parametrize(
    ("method", "change", "why"),
    [
        ("fedproto", {"counts": 1e6}, "counts"),
        ("fedproto", {"counts": -1.0}, "counts"),
        ("fedproto", {"counts": 0.5}, "counts"),
        ("fedproc", {"counts": 8.0}, "counts"),
        ("feddc", {"reach": 0.0}, "reach"),
        ("feddc", {"reach": -1.0}, "reach"),
    ],
)
def test_counts_that_cannot_be_so(tmp_path, method, change, why):
    def lie(tree):
        made_up = {
            name: torch.full_like(tree[name], value) if isinstance(tree[name], torch.Tensor) else value
            for name, value in change.items()
        }
        return tree | made_up

    federation = HostileFederation(tmp_path, {"method": {"name": method}}, {"train": change_tree(lie)})
    assert_rejected(federation, "train", why)


def test_a_negative_variance(tmp_path):
    """Its root is NaN in everybody's average; FedDF's distillation ended the run with it."""

    def lie(tree):
        model = {name: -w if name.endswith("running_var") else w for name, w in tree["model"].items()}
        assert any(name.endswith("running_var") for name in model)
        return tree | {"model": Weights(model)}

    federation = HostileFederation(tmp_path, {"net": {"name": "resnet5"}}, {"train": change_tree(lie)})
    assert_rejected(federation, "train", "model holds a negative variance")


@pytest.mark.parametrize(
    ("classes", "why"), [([99], "classes"), ([-1], "classes"), ([0, 0], "classes"), ([0], "gradients")], ids=str
)
def test_classes_that_there_are_not(tmp_path, classes, why):
    """An index out of range ended the run in the method's own sum."""
    lie = change_tree(lambda tree: tree | ({"classes": torch.tensor(classes)} if "classes" in tree else {}))
    method = {"name": "creff", "retrain_epochs": 1}
    federation = HostileFederation(tmp_path, {"method": method}, {"gradient": lie, "train": lie, "gradients": lie})
    federation.coordinate()
    assert {fault["site"] for fault in federation.events("fault")} == {HOSTILE}
    assert all(why in fault["why"] for fault in federation.events("fault"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("f1", 1.5),
        ("accuracy", -0.1),
        ("accuracy", 1),
        ("nll", -1.0),
        ("n", 5),
        ("n", -4),
        ("support", [9, 0, 0, 0, 0, 0, 0, 0]),
        ("confusion", "doubled"),
    ],
)
def test_metrics_out_of_their_range(tmp_path, name, value):
    def lie(tree):
        metrics = json.loads(tree["metrics"])
        own = metrics["val"]
        doubled = [[2 * count for count in row] for row in own["confusion"]]
        metrics["val"] = own | {name: doubled if value == "doubled" else value}
        return {"metrics": json.dumps(metrics)}

    assert_rejected(HostileFederation(tmp_path, hostile={"judge": change_tree(lie)}), "judge", "the metrics of val")


def shouted(factor):
    """The weights, far from where they were, but with a norm that a network may have."""

    def shout(tree):
        noise = {name: torch.ones_like(w) if w.is_floating_point() else w for name, w in tree["model"].items()}
        norm = float(tree["model"].norm())
        scale = factor * norm / float(Weights(noise).norm())
        return tree | {"model": Weights({n: w * scale if w.is_floating_point() else w for n, w in noise.items()})}

    return change_tree(shout)


def distance(one, other):
    return float((one.state["model"] - other.state["model"]).norm())


def test_an_update_that_shouts_down_the_others(tmp_path):
    """50 times the norm of the network passed: only the norm of the weights was bounded, by 100 times the network's."""
    once = {"run": {"rounds": 1}}
    honest = HostileFederation(tmp_path / "honest", once)
    honest.coordinate()
    loud = HostileFederation(tmp_path / "loud", once, {"train": shouted(50)})
    loud.coordinate()
    believed = HostileFederation(tmp_path / "believed", once | {"robust": {"rule": "none"}}, {"train": shouted(50)})
    believed.coordinate()
    assert [line["failures"] for line in loud.rounds] == [{}]
    length = float(honest.state["model"].norm())
    assert distance(believed, honest) > 10 * length
    assert distance(loud, honest) < 0.5 * length
    (rule,) = loud.events("rule")
    assert rule["rule"] == "clip"
    assert not believed.events("rule")


def test_a_site_that_joins_with_a_billion_images(tmp_path):
    """What nobody can check has a ceiling: no site of three counts for more than all others together."""
    lie = {
        "open": change_header(images={"train": 10**9, "val": 4, "test": 4}),
        "train": change_tree(lambda tree: tree | {"n": 10**9, "model": tree["model"] * 3.0}),
    }
    vain = HostileFederation(tmp_path / "vain", {"run": {"rounds": 1}, "robust": {"rule": "none"}}, lie)
    vain.coordinate()
    honest = HostileFederation(tmp_path / "honest", {"run": {"rounds": 1}, "robust": {"rule": "none"}})
    honest.coordinate()
    assert 0.5 < float(vain.state["model"].norm() / honest.state["model"].norm()) < 2.2  # 3.0 would be its alone
    (held,) = vain.events("share")
    assert held["site"] == HOSTILE
    assert not honest.events("share")


def test_a_reply_over_which_the_method_itself_fails(tmp_path, monkeypatch):
    """It has passed every check, and ended the run for all when the method made use of it."""
    average = FedAvg.aggregate

    def fragile(self, state, replies, ctx):
        if any(float(reply["model"]["head.bias"][0]) == 13.0 for reply in replies.values()):
            raise IndexError("13 is out of range")
        return average(self, state, replies, ctx)

    def lie(tree):
        bias = tree["model"]["head.bias"].clone()
        bias[0] = 13.0
        return tree | {"model": Weights({**tree["model"], "head.bias": bias})}

    monkeypatch.setattr(FedAvg, "aggregate", fragile)
    sections = {"robust": {"rule": "none"}}
    federation = HostileFederation(tmp_path, sections, {"train": change_tree(lie)})
    assert_rejected(federation, "train", "rejected: the method cannot use its reply (IndexError)")


def test_the_opposite_of_what_was_learnt(tmp_path):
    """Five times as long, it turned the run of three sites back."""
    once = {"run": {"rounds": 1}}
    honest = HostileFederation(tmp_path / "honest", once)
    honest.coordinate()
    opposite = change_tree(lambda tree: tree | {"model": tree["model"] * -5.0})
    hostile = HostileFederation(tmp_path / "hostile", once, {"train": opposite})
    hostile.coordinate()
    assert distance(hostile, honest) < 0.3 * float(honest.state["model"].norm())


def test_a_billion_images_of_every_class(tmp_path):
    """The prototypes of all classes became that site's."""
    lie = {
        "open": change_header(images={"train": 10**9, "val": 6, "test": 6}, counts=[10**9] * 8),
        "train": change_tree(
            lambda tree: {
                "counts": torch.full_like(tree["counts"], 10**8),
                "prototypes": torch.full_like(tree["prototypes"], 2.0),
            }
        ),
    }
    means = {}
    for share in ("auto", 1.0):
        sections = {
            "run": {"rounds": 1},
            "method": {"name": "fedproto", "weighting": "samples"},
            "robust": {"largest_share": share},
        }
        hostile = HostileFederation(tmp_path / str(share), sections, lie)
        hostile.coordinate()
        assert [fault["why"] for fault in hostile.events("fault")] == []
        means[share] = float(hostile.state["prototypes"].mean())
    assert means[1.0] == pytest.approx(2.0, abs=1e-3)
    assert means["auto"] < 1.6
