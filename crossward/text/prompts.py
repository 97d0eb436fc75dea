"""Prompt templates: sentences with one `{}` for the words of a class."""

from __future__ import annotations

import random
from collections.abc import Sequence
from math import ceil

from crossward.errors import ConfigError

SLOT = "{}"
FRAMES = (
    "<a noun> of {}.",
    "this is <a noun> of {}.",
    "{} presented in <noun>.",
    "the <noun> shows {}.",
    "the <noun> shows the presence of {}.",
    "the presence of {} in <noun>.",
)


def frame_templates(nouns: Sequence[str], leading: Sequence[str] = ()) -> tuple[str, ...]:
    """Every frame with every noun; the first frame only with the leading nouns, if there are any."""
    first, *others = FRAMES
    pairs = [(first, noun) for noun in leading or nouns] + [(frame, noun) for frame in others for noun in nouns]
    return tuple(_put_noun(frame, noun) for frame, noun in pairs)


def fill_template(template: str, words: str) -> str:
    return template.replace(SLOT, words)


def validate_nouns(nouns: Sequence[str]) -> tuple[str, ...]:
    """The nouns with single spaces, if all are valid."""
    problems = [f"text.nouns[{n}]: {noun!r}" for n, noun in enumerate(nouns) if not noun.strip() or SLOT in noun]
    problems += _duplicates("text.nouns", nouns)
    if problems:
        raise ConfigError("text.nouns are not valid:", details=problems, hint='Such as ["CT scan"].')
    return tuple(" ".join(noun.split()) for noun in nouns)


def validate_templates(templates: Sequence[str]) -> tuple[str, ...]:
    """The templates, if all are valid."""
    problems = [
        f"text.templates[{n}]: {template!r} has {template.count(SLOT)} of them"
        for n, template in enumerate(templates)
        if template.count(SLOT) != 1
    ]
    problems += _duplicates("text.templates", templates)
    if problems:
        hint = f'Such as ["an image of {SLOT}.", "the image shows {SLOT}."].'
        raise ConfigError(f"every template holds {SLOT} once, for the words of a class:", details=problems, hint=hint)
    return tuple(templates)


def choose_templates(templates: Sequence[str], fraction: float, seed: int) -> tuple[str, ...]:
    """A random fraction, rounded up, in the original order; with one seed a larger fraction contains a smaller one."""
    if not 0 < fraction <= 1:
        raise ConfigError(f"text.fraction = {fraction}", hint="It is above 0 and at most 1.")
    order = list(range(len(templates)))
    random.Random(seed).shuffle(order)
    count = ceil(fraction * len(templates) - 1e-9)  # 0.1 * 30 is 3.0000000000000004
    return tuple(templates[index] for index in sorted(order[:count]))


def _put_noun(frame: str, noun: str) -> str:
    """The noun may bring its own article."""
    article, _, rest = noun.partition(" ")
    if article in ("a", "an") and rest:
        with_article, bare = noun, rest
    else:
        with_article, bare = f"{_article(noun)} {noun}", noun
    return frame.replace("<a noun>", with_article).replace("<noun>", bare)


def _article(noun: str) -> str:
    """By sound: an image, a photo, an OCT scan, a CT scan, an MRI scan, an X-ray."""
    return "an" if noun[0] in ("AEFHILMNORSX" if noun[:2].isupper() else "aeiouAEIOU") else "a"


def _duplicates(key: str, items: Sequence[str]) -> list[str]:
    return [f"{key}[{n}]: {item!r} is there already" for n, item in enumerate(items) if item in items[:n]]
