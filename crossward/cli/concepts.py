"""The command `concepts`: what a language model makes of the classes of a dataset."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from crossward.cli.options import Json, Overrides
from crossward.cli.output import print_json, print_notes
from crossward.cli.tables import similar_pairs_table, similarity_table
from crossward.errors import ConfigError
from crossward.names import nearest
from crossward.user_folders import cache_folder

if TYPE_CHECKING:
    from rich.table import Table

    from crossward.config.schema import Config
    from crossward.text.concept_distribution import EmbeddedClasses

SHOWN_PROMPTS = 4
MATRIX_CLASSES = 12  # at most; of more classes, the nearest pairs are shown
SHOWN_PAIRS = 15

app = typer.Typer()


@app.command()
def concepts(
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="A known list of classes, or a TOML file.")],
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Show what a language model makes of the classes of a dataset: prompts, similarities, what to look into."""
    from crossward.text.concept_distribution import embed_classes

    config, classes = _config_and_classes(dataset, overrides or [])
    text = embed_classes(classes, **config.text.model_dump(), cache=cache_folder())
    if as_json:
        print_json(_document(text))
        return
    console = Console()
    _print_prompts(console, text)
    console.print(_matrix(text) if len(classes) <= MATRIX_CLASSES else _pairs(text))
    print_notes(text.cautions())


def _config_and_classes(dataset: str, overrides: Sequence[str]) -> tuple[Config, tuple[str, ...]]:
    """The configuration, and the classes of its data or of the lexicon of that name."""
    from crossward.config.reading import config_from, read_config, with_overrides
    from crossward.text.lexicon import LEXICONS

    if dataset in LEXICONS:
        config = config_from(with_overrides({"text": {"lexicon": dataset}}, overrides))
        return config, tuple(LEXICONS[dataset].concepts)
    if not Path(dataset).is_file():
        raise ConfigError(f"there is no file {dataset!r}, and no list of classes", hint=nearest(dataset, LEXICONS))
    config = read_config(Path(dataset), overrides)
    collection, _ = config.data.load()
    return config, collection.classes


def _document(text: EmbeddedClasses) -> dict[str, object]:
    return {
        "classes": text.classes,
        "words": text.words,
        "templates": text.templates,
        "lexicon": text.lexicon,
        "encoder": text.encoder,
        "dim": text.concepts.dim,
        "similarity": text.similarity().tolist(),
        "warnings": text.cautions(),
    }


def _print_prompts(console: Console, text: EmbeddedClasses) -> None:
    from crossward.text.prompts import fill_template

    words = f"in the words of {text.lexicon}" if text.lexicon else "in words of your own"
    count = len(text.templates)
    console.print(
        f"[bold]{len(text.classes)} classes[/] {escape(words)}; encoder [bold]{escape(text.encoder)}[/], "
        f"{text.concepts.dim} numbers; {count} prompt{'s' if count > 1 else ''} a class:",
        highlight=False,
    )
    for template in text.templates[:SHOWN_PROMPTS]:
        console.print(f"  {fill_template(template, text.words[0])}", markup=False, highlight=False)
    if count > SHOWN_PROMPTS:
        console.print(f"  … and {count - SHOWN_PROMPTS} more")


def _matrix(text: EmbeddedClasses) -> Table:
    from crossward.text.concept_distribution import SIMILAR_ABOVE

    words = _words_beside_names(text)
    similarity = text.similarity().tolist()
    return similarity_table(text.classes, [words[name] for name in text.classes], similarity, SIMILAR_ABOVE)


def _pairs(text: EmbeddedClasses) -> Table:
    from crossward.text.concept_distribution import SIMILAR_ABOVE

    words = _words_beside_names(text)
    full_names = {name: f"{name}: {words[name]}" if words[name] else name for name in text.classes}
    pairs = text.most_similar_pairs()
    title = f"Most similar classes; cosines are {pairs[-1][0]:.2f} to {pairs[0][0]:.2f}"
    closest = [(cosine, full_names[one], full_names[other]) for cosine, one, other in pairs[:SHOWN_PAIRS]]
    return similar_pairs_table(closest, title, SIMILAR_ABOVE)


def _words_beside_names(text: EmbeddedClasses) -> dict[str, str]:
    """Each class in words; empty where the words are its name."""
    from crossward.text.lexicon import normalise_name

    words = dict(zip(text.classes, text.words, strict=True))
    return {name: "" if normalise_name(name) == normalise_name(meaning) else meaning for name, meaning in words.items()}
