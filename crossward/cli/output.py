"""What commands print besides tables: JSON, notes, and lines that a program may read."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.markup import escape


def print_json(document: Any, indent: int | None = None) -> None:
    print_line(json.dumps(document, indent=indent))


def print_line(text: str) -> None:
    """The text as it is: not wrapped, without markup."""
    Console().out(text, highlight=False)


def print_notes(notes: Iterable[str], console: Console | None = None) -> None:
    console = console or Console()
    for note in notes:
        console.print(f"[yellow]note:[/] {escape(note)}", highlight=False)
