"""The section [study.search]: which keys of the configuration are tuned, over which values, with how many trials.

A key is one of the configuration's ("train.lr", "method.mu", "plugin.npr.k"). Its values are a list, or a table with
`low` and `high`. A key of a method or a plugin is tuned for the methods that have it. Nothing here imports torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Annotated, Any, Literal

from annotated_types import Len
from pydantic import ConfigDict

from crossward.names import nearest
from crossward.settings import Count, Section, Seed

TUNED_SECTIONS = ("train", "method", "plugin", "net", "task", "text", "robust")  # others change what is compared
BOUNDS = ("low", "high", "log", "step")
Mistake = tuple[tuple[str, ...], str, str]  # key below [study], what is wrong, what to do


@dataclass(frozen=True)
class Choice:
    """One of these values."""

    values: tuple[Any, ...]


@dataclass(frozen=True)
class Range:
    """Numbers between two bounds, both included; whole numbers if both bounds are."""

    low: int | float
    high: int | float
    log: bool = False
    step: int | float | None = None

    @property
    def whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int) and not isinstance(self.step, float)


Domain = Choice | Range
Space = Mapping[str, Domain]  # key -> its values


class SearchSettings(Section):
    """[study.search]; keys with a dot are the space."""

    model_config = ConfigDict(extra="allow", frozen=True)

    trials: Count = 16  # of each method in each setting
    batch: Count = 8  # trials that are drawn together; results do not depend on the number of workers
    sampler: Literal["tpe", "random"] = "tpe"
    pruner: Literal["halving", "none"] = "halving"
    seeds: Annotated[tuple[Seed, ...], Len(1)] = (1000,)  # of the runs of a trial; never those of the study
    sampler_seed: Seed = 0
    metric: str | None = None  # on validation; None: the one that chooses the best round

    @property
    def ranges(self) -> dict[str, Any]:
        """Key -> its values as they are written."""
        return flattened(self.model_extra or {})


def flattened(table: Mapping[str, Any]) -> dict[str, Any]:
    """ "train.lr" = … and train.lr = …, which TOML reads as nested tables, are the same."""
    found: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, Mapping) and value and not {*value} & {*BOUNDS}:
            found |= {f"{name}.{inner}": values for inner, values in flattened(value).items()}
        else:
            found[name] = value
    return found


def parse_domain(written: Any) -> Domain | str:
    """The values of a key, or what is wrong with them."""
    if isinstance(written, list | tuple):
        return _parse_choice(written)
    if not isinstance(written, Mapping):
        return f"write a list of values, or {{ low = …, high = … }}, not {written!r}"
    if unknown := [name for name in written if name not in BOUNDS]:
        return f"a range has no {unknown[0]!r}. {nearest(unknown[0], BOUNDS)}"
    if missing := [name for name in ("low", "high") if name not in written]:
        return f"the range has no {missing[0]!r}"
    numbers = [written[name] for name in ("low", "high", "step") if name in written]
    if not all(_is_number(number) for number in numbers):
        return f"the bounds of a range are numbers, not {numbers!r}"
    if not isinstance(written.get("log", False), bool):
        return f"log is true or false, not {written['log']!r}"
    domain = Range(written["low"], written["high"], written.get("log", False), written.get("step"))
    return _range_mistake(domain) or domain


def _parse_choice(written: Sequence[Any]) -> Domain | str:
    if not written:
        return "the list of values is empty"
    if not all(isinstance(value, bool | int | float | str) for value in written):
        return "values of a list are numbers, words or true and false"
    repeated = [value for value, count in Counter(map(repr, written)).items() if count > 1]
    return f"{repeated[0]} is there twice" if repeated else Choice(tuple(written))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def _range_mistake(domain: Range) -> str:
    if domain.low >= domain.high:
        return f"low = {domain.low} is not below high = {domain.high}"
    if domain.log and domain.low <= 0:
        return f"a logarithmic range begins above 0, not at low = {domain.low}"
    if domain.step is not None and domain.log:
        return "a logarithmic range has no step"
    if domain.step is not None and not 0 < domain.step <= domain.high - domain.low:
        return f"step = {domain.step} does not fit between low and high"
    return ""


def parse_space(ranges: Mapping[str, Any]) -> dict[str, Domain]:
    """The space of ranges that have been checked."""
    parsed = {key: parse_domain(written) for key, written in ranges.items()}
    return {key: domain for key, domain in parsed.items() if not isinstance(domain, str)}


def search_mistakes(
    search: SearchSettings, own: Mapping[int, Mapping[str, Any]], seeds: Sequence[int]
) -> list[Mistake]:
    """What is wrong with [study.search]; `own` are the ranges of single methods by their place, `seeds` the study's."""
    mistakes: list[Mistake] = []
    if not search.ranges and not any(own.values()):
        hint = 'Write, say, "train.lr" = { low = 0.001, high = 0.1, log = true }.'
        mistakes.append((("search",), "there is nothing to search", hint))
    for key, written in search.ranges.items():
        mistakes += _key_mistakes(("search", key), key, written)
    for number, ranges in own.items():
        for key, written in ranges.items():
            mistakes += _key_mistakes(("method", str(number), "search", key), key, written)
    if both := [seed for seed in search.seeds if seed in seeds]:
        what = f"seed {', '.join(map(str, both))} is one of the study's, which the search must not see"
        mistakes.append((("search", "seeds"), what, f"Take others, say seeds = [{max(seeds) + 1000}]."))
    if repeated := [seed for seed, count in Counter(search.seeds).items() if count > 1]:
        mistakes.append((("search", "seeds"), f"{repeated[0]} is there twice", ""))
    if search.metric is not None and ("." in search.metric or "test" in search.metric.lower()):
        what = f"{search.metric!r} is no metric of validation, and a search sees no test set"
        mistakes.append((("search", "metric"), what, 'Write the metric alone, as "f1"; without it evaluate.select.'))
    return mistakes


def _key_mistakes(at: tuple[str, ...], key: str, written: Any) -> Iterator[Mistake]:
    section = key.split(".")[0]
    if "." not in key:
        known = list(SearchSettings.model_fields)
        yield at, "no such key", f'{nearest(key, known)} A key that is tuned has a dot, as "train.lr".'
    elif section not in TUNED_SECTIONS:
        what = f"{key} is not tuned: it would change what is compared"
        yield at, what, f"Keys of these sections are: {', '.join(TUNED_SECTIONS)}."
    else:
        domain = parse_domain(written)
        if isinstance(domain, str):
            yield at, domain, ""
