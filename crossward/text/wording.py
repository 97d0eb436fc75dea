"""Wording: the classes of a dataset in words, and the prompts made of them; every mistake is told before a model is
loaded."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from crossward.errors import ConfigError, DataError
from crossward.names import nearest
from crossward.text.lexicon import LEXICONS, PICTURES, Lexicon, fitting, known, plain, spaced
from crossward.text.prompts import checked_nouns, checked_templates, filled, framed, subset


@dataclass(frozen=True)
class Wording:
    classes: tuple[str, ...]
    words: tuple[str, ...]  # of each class
    templates: tuple[str, ...]
    lexicon: str | None  # which was used

    @property
    def prompts(self) -> tuple[tuple[str, ...], ...]:
        """For each class, every template with its words."""
        return tuple(tuple(filled(template, words) for template in self.templates) for words in self.words)


def worded(
    classes: Sequence[str],
    *,
    lexicon: str | None = None,
    concepts: Mapping[str, str] | None = None,
    nouns: Sequence[str] = (),
    templates: Sequence[str] = (),
    fraction: float = 1.0,
    seed: int = 0,
) -> Wording:
    """Words of each class from `concepts`, else from the lexicon; prompts from the templates, else frames x nouns."""
    if same := _alike(classes, map(repr, classes)):
        raise DataError("classes cannot be told apart by their names:", details=same)
    given = _given(classes, concepts or {})
    used = _lexicon(classes, lexicon, given)
    words = _words(classes, used, given)
    if same := _alike(words, (f"{name} = {said!r}" for name, said in zip(classes, words, strict=True))):
        raise ConfigError("classes have the same words:", details=same, hint="Tell them apart in [text.concepts].")
    if nouns and templates:
        raise ConfigError("text.nouns has no effect beside text.templates", hint="Leave one of them out.")
    every = checked_templates(templates) if templates else _framed(used, checked_nouns(nouns))
    return Wording(tuple(classes), words, subset(every, fraction, seed), used.name if used else None)


def _framed(lexicon: Lexicon | None, nouns: tuple[str, ...]) -> tuple[str, ...]:
    if nouns or lexicon is None:
        return framed(nouns or PICTURES)
    return framed(lexicon.nouns, lexicon.leading)


def _given(classes: Sequence[str], concepts: Mapping[str, str]) -> dict[str, str]:
    """The words that the configuration gives, by the class's own name."""
    by_plain = {plain(name): name for name in classes}
    wrong = [
        f"text.concepts.{key}: there is no such class. {nearest(key, classes)}"
        for key in concepts
        if plain(key) not in by_plain
    ]
    wrong += [f"text.concepts.{key}: no words" for key, words in concepts.items() if not spaced(words)]
    wrong += [f"{same}: one class" for same in _alike(concepts, (f"text.concepts.{key}" for key in concepts))]
    if wrong:
        raise ConfigError("the words of the classes are not valid:", details=wrong)
    return {by_plain[plain(key)]: spaced(words) for key, words in concepts.items()}


def _lexicon(classes: Sequence[str], name: str | None, given: Mapping[str, str]) -> Lexicon | None:
    if name is None:
        return fitting(classes, given)
    if name not in LEXICONS:
        raise ConfigError(f"text.lexicon: there is no list of classes {name!r}", hint=nearest(name, LEXICONS))
    return LEXICONS[name]


def _words(classes: Sequence[str], lexicon: Lexicon | None, given: Mapping[str, str]) -> tuple[str, ...]:
    found = {name: given.get(name) or (lexicon.words(name) if lexicon else None) for name in classes}
    if missing := [name for name, words in found.items() if words is None]:
        raise _wordless(classes, missing, lexicon or _near(classes, missing))
    return tuple(words for words in found.values() if words is not None)


def _near(classes: Sequence[str], missing: Sequence[str]) -> Lexicon | None:
    """A lexicon that was not taken, but has words for all that is missing, or at least for much of what there is."""
    for lexicon in LEXICONS.values():
        if known(lexicon, missing) == len(missing):
            return lexicon
    much = [x for x in LEXICONS.values() if 2 * known(x, classes) >= max(len(classes), len(x.concepts))]
    return max(much, key=lambda lexicon: known(lexicon, classes), default=None)


def _wordless(classes: Sequence[str], missing: Sequence[str], near: Lexicon | None) -> ConfigError:
    unknown = [name for name in missing if near is None or near.words(name) is None]
    if near is not None and not unknown:
        return ConfigError(
            f"the classes {', '.join(missing)} are known from {near.name!r}, but may mean something else here",
            hint=f"If not, set text.lexicon = {json.dumps(near.name)}; else say in [text.concepts] what they are.",
        )
    count = f"{len(unknown)} of {len(classes)} classes"
    return ConfigError(
        (f"{near.name!r} has no words for {count}" if near else f"{count} have no words") + ". Say what they are:",
        details=["[text.concepts]", *(f"{_quoted(name)} = {_quoted(_guess(name))}" for name in unknown)],
        hint=f"Or name one of the known lists in text.lexicon: {', '.join(LEXICONS)}."
        + (" Numbers can be given names in data.classes." if all(map(str.isdecimal, unknown)) else ""),
    )


def _guess(name: str) -> str:
    """The name itself where it seems to be words; else nothing, which is refused until it is filled in."""
    return spaced(name) if re.search(r"[^\W\d_]{5}", name) else ""


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _alike(names: Iterable[str], told: Iterable[str]) -> list[str]:
    """What is told of names that are the same but for case, blanks and the like: a line for each group of them."""
    groups: dict[str, list[str]] = {}
    for name, line in zip(names, told, strict=True):
        groups.setdefault(plain(name), []).append(line)
    return [" and ".join(lines) for lines in groups.values() if len(lines) > 1]
