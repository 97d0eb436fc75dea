"""Prompts: the sentences that a class is put into, as templates with one `{}` for its words."""

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


def framed(nouns: Sequence[str], leading: Sequence[str] = ()) -> tuple[str, ...]:
    """Every frame with every noun; the first only with the leading ones, if any."""
    first, *others = FRAMES
    pairs = [(first, noun) for noun in leading or nouns] + [(frame, noun) for frame in others for noun in nouns]
    return tuple(_filled(frame, noun) for frame, noun in pairs)


def filled(template: str, words: str) -> str:
    return template.replace(SLOT, words)


def checked_nouns(nouns: Sequence[str]) -> tuple[str, ...]:
    wrong = [f"text.nouns[{n}]: {noun!r}" for n, noun in enumerate(nouns) if not noun.strip() or SLOT in noun]
    wrong += _twice("text.nouns", nouns)
    if wrong:
        raise ConfigError("what the pictures are called is not valid:", details=wrong, hint='Such as ["CT scan"].')
    return tuple(" ".join(noun.split()) for noun in nouns)


def checked_templates(templates: Sequence[str]) -> tuple[str, ...]:
    wrong = [
        f"text.templates[{n}]: {template!r} has {template.count(SLOT)} of them"
        for n, template in enumerate(templates)
        if template.count(SLOT) != 1
    ]
    wrong += _twice("text.templates", templates)
    if wrong:
        hint = f'Such as ["an image of {SLOT}.", "the image shows {SLOT}."].'
        raise ConfigError(f"every template holds {SLOT} once, for the words of a class:", details=wrong, hint=hint)
    return tuple(templates)


def subset(templates: Sequence[str], fraction: float, seed: int) -> tuple[str, ...]:
    """A random share, rounded up, in the order they had; what a seed chooses grows with the fraction."""
    if not 0 < fraction <= 1:
        raise ConfigError(f"text.fraction = {fraction}", hint="It is above 0 and at most 1.")
    order = list(range(len(templates)))
    random.Random(seed).shuffle(order)
    count = ceil(fraction * len(templates) - 1e-9)  # 0.1 * 30 is 3, whatever floating point says
    return tuple(templates[place] for place in sorted(order[:count]))


def _filled(frame: str, noun: str) -> str:
    article, _, rest = noun.partition(" ")
    bare = rest if article in ("a", "an") and rest else noun
    phrase = noun if bare != noun else f"{_article(noun)} {noun}"
    return frame.replace("<a noun>", phrase).replace("<noun>", bare)


def _article(noun: str) -> str:
    """By sound: an image, a photo, an OCT scan, a CT scan, an MRI scan, an X-ray."""
    return "an" if noun[0] in ("AEFHILMNORSX" if noun[:2].isupper() else "aeiouAEIOU") else "a"


def _twice(key: str, items: Sequence[str]) -> list[str]:
    return [f"{key}[{n}]: {item!r} is there already" for n, item in enumerate(items) if item in items[:n]]
