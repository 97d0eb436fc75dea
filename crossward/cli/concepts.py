"""The command `concepts`: what a language model makes of the classes of a dataset."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from crossward.config.reading import checked, overridden, read
from crossward.config.schema import Config
from crossward.data.sources.collect import collect
from crossward.errors import ConfigError
from crossward.names import nearest
from crossward.text.distribution import ALIKE, Embedded, embedded
from crossward.text.lexicon import LEXICONS, plain
from crossward.text.prompts import filled
from crossward.user_folders import cache_folder

PROMPTS = 4  # shown
MATRIX = 12  # classes at most; of more, the nearest pairs are shown
PAIRS = 15


def show(dataset: str, sets: Sequence[str], *, as_json: bool) -> None:
    config, classes = _asked(dataset, sets)
    found = embedded(classes, **config.text.model_dump(), cache=cache_folder())
    console = Console()
    if as_json:
        console.out(json.dumps(_told(found)), highlight=False)
        return
    _print_prompts(console, found)
    console.print(_matrix(found) if len(classes) <= MATRIX else _pairs(found))
    for text in found.cautions():
        console.print(f"[yellow]note:[/] {escape(text)}", highlight=False)


def _asked(dataset: str, sets: Sequence[str]) -> tuple[Config, tuple[str, ...]]:
    """The configuration, and the classes of its data or of the lexicon that is named."""
    if dataset in LEXICONS:
        config = checked(overridden({"text": {"lexicon": dataset}}, sets))
        return config, tuple(LEXICONS[dataset].concepts)
    if not Path(dataset).is_file():
        raise ConfigError(f"there is no file {dataset!r}, and no list of classes", hint=nearest(dataset, LEXICONS))
    config = read(Path(dataset), sets)
    return config, collect(config)[0].classes


def _told(found: Embedded) -> dict[str, object]:
    return {
        "classes": found.classes,
        "words": found.texts,
        "templates": found.templates,
        "lexicon": found.lexicon,
        "encoder": found.encoder,
        "dim": found.concepts.dim,
        "similarity": found.similarity().tolist(),
        "warnings": found.cautions(),
    }


def _print_prompts(console: Console, found: Embedded) -> None:
    words = f"in the words of {found.lexicon}" if found.lexicon else "in words of your own"
    count = len(found.templates)
    console.print(
        f"[bold]{len(found.classes)} classes[/] {escape(words)}; encoder [bold]{escape(found.encoder)}[/], "
        f"{found.concepts.dim} numbers; {count} prompt{'s' if count > 1 else ''} a class:",
        highlight=False,
    )
    for template in found.templates[:PROMPTS]:
        console.print(f"  {filled(template, found.texts[0])}", markup=False, highlight=False)
    if count > PROMPTS:
        console.print(f"  … and {count - PROMPTS} more")


def _matrix(found: Embedded) -> Table:
    made = _table("Cosine of the class means")
    made.add_column("", justify="right", style="dim")
    made.add_column("class", style="bold", overflow="fold")
    said = [words if plain(name) != plain(words) else "" for name, words in zip(found.classes, found.texts)]
    if any(said):
        made.add_column("in words", overflow="fold")
    for number in range(1, len(found.classes) + 1):
        made.add_column(str(number), justify="right", no_wrap=True, min_width=4)
    for number, row in enumerate(found.similarity().tolist()):
        cells = [_cell(cosine) if other != number else "·" for other, cosine in enumerate(row)]
        words = [escape(said[number])] if any(said) else []
        made.add_row(str(number + 1), escape(found.classes[number]), *words, *cells)
    return made


def _pairs(found: Embedded) -> Table:
    every = found.closest()
    made = _table(f"Most similar classes; cosines are {every[-1][0]:.2f} to {every[0][0]:.2f}")
    for column in ("class", "class"):
        made.add_column(column, style="bold")
    made.add_column("cosine", justify="right")
    full = {
        name: name if plain(name) == plain(words) else f"{name}: {words}"
        for name, words in zip(found.classes, found.texts, strict=True)
    }
    for cosine, one, other in every[:PAIRS]:
        made.add_row(escape(full[one]), escape(full[other]), _cell(cosine))
    return made


def _table(title: str) -> Table:
    return Table(title=f"\n{title}", title_justify="left", box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)


def _cell(cosine: float) -> str:
    return f"[yellow]{cosine:.2f}[/]" if cosine > ALIKE else f"{cosine:.2f}"
