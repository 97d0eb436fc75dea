"""Whether the numbers of a reply can be so: sample counts and class counts are whole and no more than the site said
when it joined, metrics lie in their range and add up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from crossward.core.disclosure import CLASS_COUNTS, SAMPLE_COUNT, Disclosure, DisclosureKind
from crossward.core.task import Task
from crossward.core.tree import Tree
from crossward.foreign import MAX_NUMBER, ForeignError, finite_number, whole_number
from crossward.hospitals.site_facts import Facts

UNBOUNDED_METRICS = ("nll", "hd95")  # and whatever begins so: any number of at least 0; the others are shares
ROUNDING = 1e-6
PROBABILITIES = "probabilities"  # an item of this name holds shares that add up to 1
MODEL = "model"  # an item of this name holds weights as they are, not how they have changed
VARIANCE = "running_var"  # of BatchNorm; the root of a negative one is no number, at every site that gets the average
SMALLEST_REACH = 1e-9  # what a method divides by


def count_problems(reply: Tree, discloses: Mapping[str, Disclosure], task: Task, facts: Facts | None) -> list[str]:
    """What is impossible in a reply whose items have the right types and shapes; `facts` are what its site said when
    it joined, None if nobody was asked."""
    problems: list[str] = []
    for item, about in discloses.items():
        if item not in reply:
            continue
        value = reply[item]
        try:
            if about.kind is DisclosureKind.SAMPLE_COUNT:
                _check_sample_count(item, value, about, facts)
            elif about == CLASS_COUNTS:
                _check_class_counts(item, value, task, facts or {})
            elif about.kind is DisclosureKind.CLASS_COUNTS:
                _check_present_classes(item, value, task, reply)
            elif item == PROBABILITIES:
                _check_probabilities(item, value)
            elif item == MODEL or about.kind is DisclosureKind.PERSONAL_WEIGHTS:
                _check_variances(item, value)
            elif about.kind is DisclosureKind.METRICS:
                _check_whole(item, value, _most(facts or {}, "val", task))
        except ForeignError as error:
            problems.append(str(error))
    return problems


def metrics_problems(values: Mapping[str, Any], images: int | None) -> list[str]:
    """What is impossible in metrics that have the names and types of the task's; `images` is how many the site said it
    has, if it did."""
    problems = list(_range_problems(values))
    count = values.get("n")
    if images is not None and count is not None and count != images:
        problems.append(f"n is {count}, and it said that it has {images} images")
    confusion, support = values.get("confusion"), values.get("support")
    if confusion is not None and count is not None and sum(map(sum, confusion)) != count:
        problems.append("confusion does not add up to n")
    if confusion is not None and support is not None and [sum(row) for row in confusion] != support:
        problems.append("support is not what the rows of confusion add up to")
    return problems


def _range_problems(values: Mapping[str, Any]) -> Iterator[str]:
    for name, value in values.items():
        most = MAX_NUMBER if name.startswith(UNBOUNDED_METRICS) else 1 + ROUNDING
        for number in _numbers(value):
            try:
                if isinstance(number, int):
                    whole_number(number, name)
                else:
                    finite_number(number, name, least=0.0, most=most)
            except ForeignError as error:
                yield str(error)
                break


def _numbers(value: Any) -> Iterator[int | float]:
    if isinstance(value, list):
        for inner in value:
            yield from _numbers(inner)
    elif value is not None:
        yield value


def _check_sample_count(item: str, value: Any, about: Disclosure, facts: Facts | None) -> None:
    if about != SAMPLE_COUNT:  # some measure of it, which a method divides by
        finite_number(value, item, least=SMALLEST_REACH)
        return
    count = whole_number(value, item, least=1)
    if facts is None:
        return
    images = facts.get("images", {}).get("train")
    if images is None:
        raise ForeignError(f"{item} is {count}, and it did not say how many images it has when it joined")
    if count != images:
        raise ForeignError(f"{item} is {count}, and it said that it has {images} images when it joined")


def _check_class_counts(item: str, value: Any, task: Task, facts: Facts) -> None:
    """(K,), or (K, M) with sub-classes: images, or vectors of pixels."""
    _check_whole(item, value, _most(facts, "train", task))
    counts = facts.get("counts")
    if counts is None or task.name == "segmentation" or not isinstance(value, Tensor):
        return
    by_class = value.double().reshape(len(value), -1).sum(1).tolist() if value.dim() else []
    if len(by_class) == len(counts) and any(count > known for count, known in zip(by_class, counts)):
        raise ForeignError(f"{item} counts more of a class than it said that it has when it joined")


def _most(facts: Facts, part: str, task: Task) -> int | None:
    """How many images, or pixels, there can be in a part of the site's images; None if it did not say."""
    images = facts.get("images", {}).get(part)
    if images is None:
        return None
    height, width = facts["size"] if task.name == "segmentation" else (1, 1)
    each = len(task.classes) if task.name == "multi-label" else 1  # classes that one image may have
    return int(images * height * width * each)


def _check_whole(item: str, value: Any, most: int | None) -> None:
    """Counts in a tensor are whole, not negative, and together no more than `most`."""
    tensors = value.values() if isinstance(value, Mapping) else [value]
    total = 0.0
    for tensor in tensors:
        counts = torch.as_tensor(tensor).double()
        if bool((counts < 0).any()) or bool((counts != counts.round()).any()):
            raise ForeignError(f"{item} holds what is not a count")
        total += float(counts.sum())
    if most is not None and total > most:
        raise ForeignError(f"{item} adds up to {total:g}, at most {most} is possible")


def _check_present_classes(item: str, value: Any, task: Task, reply: Tree) -> None:
    """(P,) numbers of classes, each once; other tensors of the reply have a row for each of them."""
    if not isinstance(value, Tensor) or value.dim() != 1 or value.is_floating_point():
        raise ForeignError(f"{item} is not a list of classes")
    classes = value.tolist()
    if any(not 0 <= number < len(task.classes) for number in classes) or len({*classes}) < len(classes):
        raise ForeignError(f"{item} lists classes that there are not, or one twice")
    for other, rows in reply.items():
        if isinstance(rows, Tensor) and rows.dim() and len(rows) != len(classes):
            raise ForeignError(f"{other} has {len(rows)} rows for {len(classes)} classes")


def _check_variances(item: str, value: Any) -> None:
    if isinstance(value, Mapping):
        negative = [name for name, w in value.items() if str(name).endswith(VARIANCE) and bool((w < 0).any())]
        if negative:
            raise ForeignError(f"{item} holds a negative variance: {', '.join(negative[:4])}")


def _check_probabilities(item: str, value: Any) -> None:
    """(N, K), or (N, K, H, W): of each row's classes."""
    if not isinstance(value, Tensor) or value.dim() < 2 or not value.numel():
        return
    shares = value.double()
    sums = shares.sum(1)
    if bool((shares < -ROUNDING).any()) or bool(((sums - 1).abs() > 1e-2).any()):
        raise ForeignError(f"{item} holds what are not shares that add up to 1")
