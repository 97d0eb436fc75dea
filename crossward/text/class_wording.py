"""The classes of a dataset in words, and the prompts with these words; checked before a model is loaded."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from crossward.errors import ConfigError, DataError
from crossward.names import nearest
from crossward.text.lexicon import (
    LEXICONS,
    PICTURES,
    Lexicon,
    count_known,
    find_lexicon,
    normalise_name,
    normalise_spaces,
)
from crossward.text.prompts import (
    choose_templates,
    fill_template,
    frame_templates,
    validate_nouns,
    validate_templates,
)


@dataclass(frozen=True)
class ClassWording:
    classes: tuple[str, ...]
    words: tuple[str, ...]  # of each class
    templates: tuple[str, ...]
    lexicon: str | None  # the one that was used

    @property
    def prompts(self) -> tuple[tuple[str, ...], ...]:
        """For each class, every template filled with its words."""
        return tuple(tuple(fill_template(template, words) for template in self.templates) for words in self.words)


def word_classes(
    classes: Sequence[str],
    *,
    lexicon: str | None = None,
    concepts: Mapping[str, str] | None = None,
    nouns: Sequence[str] = (),
    templates: Sequence[str] = (),
    fraction: float = 1.0,
    seed: int = 0,
) -> ClassWording:
    """Words of each class from `concepts`, else from the lexicon; prompts from the templates, else frames x nouns."""
    duplicates = _duplicates(classes, map(repr, classes))
    if duplicates:
        raise DataError("classes cannot be told apart by their names:", details=duplicates)
    configured = _configured_words(classes, concepts or {})
    chosen = _choose_lexicon(classes, lexicon, configured)
    words = _words(classes, chosen, configured)
    duplicates = _duplicates(words, (f"{name} = {text!r}" for name, text in zip(classes, words, strict=True)))
    if duplicates:
        raise ConfigError(
            "classes have the same words:", details=duplicates, hint="Tell them apart in [text.concepts]."
        )
    every_template = _templates(chosen, nouns, templates)
    return ClassWording(
        classes=tuple(classes),
        words=words,
        templates=choose_templates(every_template, fraction, seed),
        lexicon=chosen.name if chosen else None,
    )


def _templates(lexicon: Lexicon | None, nouns: Sequence[str], templates: Sequence[str]) -> tuple[str, ...]:
    if nouns and templates:
        raise ConfigError("text.nouns has no effect beside text.templates", hint="Leave one of them out.")
    if templates:
        return validate_templates(templates)
    if nouns or lexicon is None:
        return frame_templates(validate_nouns(nouns) or PICTURES)
    return frame_templates(lexicon.nouns, lexicon.leading)


def _configured_words(classes: Sequence[str], concepts: Mapping[str, str]) -> dict[str, str]:
    """The words of [text.concepts], by the class's own name."""
    class_names = {normalise_name(name): name for name in classes}
    problems = [
        f"text.concepts.{key}: there is no such class. {nearest(key, classes)}"
        for key in concepts
        if normalise_name(key) not in class_names
    ]
    problems += [f"text.concepts.{key}: no words" for key, words in concepts.items() if not normalise_spaces(words)]
    problems += [f"{keys}: one class" for keys in _duplicates(concepts, (f"text.concepts.{key}" for key in concepts))]
    if problems:
        raise ConfigError("the words of the classes are not valid:", details=problems)
    return {class_names[normalise_name(key)]: normalise_spaces(words) for key, words in concepts.items()}


def _choose_lexicon(classes: Sequence[str], name: str | None, configured: Mapping[str, str]) -> Lexicon | None:
    if name is None:
        return find_lexicon(classes, configured)
    if name not in LEXICONS:
        raise ConfigError(f"text.lexicon: there is no list of classes {name!r}", hint=nearest(name, LEXICONS))
    return LEXICONS[name]


def _words(classes: Sequence[str], lexicon: Lexicon | None, configured: Mapping[str, str]) -> tuple[str, ...]:
    words = {name: configured.get(name) or (lexicon.words(name) if lexicon else None) for name in classes}
    missing = [name for name, text in words.items() if text is None]
    if missing:
        raise _missing_words(classes, missing, lexicon or _related_lexicon(classes, missing))
    return tuple(text for text in words.values() if text is not None)


def _related_lexicon(classes: Sequence[str], missing: Sequence[str]) -> Lexicon | None:
    """A lexicon with words for all that is missing, or at least for half of the classes and half of its own."""
    for lexicon in LEXICONS.values():
        if count_known(lexicon, missing) == len(missing):
            return lexicon
    related = [
        lexicon
        for lexicon in LEXICONS.values()
        if 2 * count_known(lexicon, classes) >= max(len(classes), len(lexicon.concepts))
    ]
    return max(related, key=lambda lexicon: count_known(lexicon, classes), default=None)


def _missing_words(classes: Sequence[str], missing: Sequence[str], related: Lexicon | None) -> ConfigError:
    unknown = [name for name in missing if related is None or related.words(name) is None]
    if related is not None and not unknown:
        return ConfigError(
            f"the classes {', '.join(missing)} are known from {related.name!r}, but may mean something else here",
            hint=f"If not, set text.lexicon = {json.dumps(related.name)}; else say in [text.concepts] what they are.",
        )
    count = f"{len(unknown)} of {len(classes)} classes"
    what = f"{related.name!r} has no words for {count}" if related else f"{count} have no words"
    hint = f"Or name one of the known lists in text.lexicon: {', '.join(LEXICONS)}."
    if all(map(str.isdecimal, unknown)):
        hint += " Numbers can be given names in data.classes."
    return ConfigError(
        f"{what}. Say what they are:",
        details=["[text.concepts]", *(f"{_quoted(name)} = {_quoted(_guess(name))}" for name in unknown)],
        hint=hint,
    )


def _guess(name: str) -> str:
    """The name itself where it looks like words; else nothing, which is refused until the user fills it in."""
    return normalise_spaces(name) if re.search(r"[^\W\d_]{5}", name) else ""


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _duplicates(names: Iterable[str], labels: Iterable[str]) -> list[str]:
    """The labels of names that are equal when normalised: a line for each group of them."""
    groups: dict[str, list[str]] = {}
    for name, label in zip(names, labels, strict=True):
        groups.setdefault(normalise_name(name), []).append(label)
    return [" and ".join(group) for group in groups.values() if len(group) > 1]
