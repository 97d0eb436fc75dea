"""What a page of the report consists of, as plain data: sections of blocks, without a word of HTML.

Sections are functions that return these; `render.py` makes HTML of them, `figures.py` files for a paper, and `document`
JSON for tests and for the dashboard. All text is plain text: the renderer escapes it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from hashlib import blake2b
from typing import Any

from crossward.foreign import MAX_NAME, printable

BETTER = "better"
WORSE = "worse"
NOT_DISTINGUISHABLE = "not distinguishable"
REFERENCE = "reference"
MAX_ID = 48  # characters of an address within the page


# text -----------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Strong:
    text: str


@dataclass(frozen=True)
class Code:
    text: str


@dataclass(frozen=True)
class Link:
    """To a place in the page ("#hospital-north"), or to a paper ("https://doi.org/…"); no other address is a link."""

    text: str
    target: str

    def __post_init__(self) -> None:
        if not self.target.startswith(("#", "https://")):
            raise ValueError(f"a page links within itself or to https, not to {self.target!r}")


Inline = str | Strong | Code | Link
Text = tuple[Inline, ...]


# cells of a table -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Figure:
    """A number as people read it: with its deviation or its interval, and the runs it comes from."""

    value: float | None  # None: undefined, shown as a dash
    deviation: float | None = None
    low: float | None = None
    high: float | None = None
    digits: int = 1
    signed: bool = False
    unit: str = ""
    note: str = ""  # shown on hover: from what it was computed
    runs: tuple[str, ...] = ()  # ids of the page's sources


@dataclass(frozen=True)
class Verdict:
    """A tag: better, worse, not distinguishable, reference, or other short words."""

    word: str
    note: str = ""


@dataclass(frozen=True)
class MethodName:
    """A method's name beside its colour."""

    name: str
    colour: str = ""  # a token of theme.py


Cell = str | int | float | None | Figure | Verdict | MethodName | Link | Code


@dataclass(frozen=True)
class Column:
    title: str
    kind: str = "text"  # text | number | verdict: numbers stand right
    help: str = ""  # what the column means, shown on hover
    wide_only: bool = False  # left out on narrow screens


# blocks ---------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Fact:
    label: str
    value: str
    note: str = ""
    code: bool = False  # a hash or a command: in the fixed-width font


@dataclass(frozen=True)
class Facts:
    items: tuple[Fact, ...]


@dataclass(frozen=True)
class Prose:
    text: Text
    muted: bool = False


@dataclass(frozen=True)
class Note:
    """What a reader should know before believing the page."""

    text: str


@dataclass(frozen=True)
class Listing:
    """A list of lines."""

    items: tuple[Text, ...]


@dataclass(frozen=True)
class CodeBlock:
    """A command or a file, to be copied."""

    text: str
    title: str = ""


@dataclass(frozen=True)
class Chart:
    """A figure: a Vega-Lite specification with its data inside, which people also get as CSV or as a table.

    Colours in the specification are tokens of theme.py ("token:better"), so that one specification serves light and
    dark. `width: "container"` fits the card; a chart with `min_width` scrolls within its card on narrower screens.
    """

    id: str
    title: str  # a sentence
    spec: Mapping[str, Any]
    alt: str  # what the figure shows, for people who do not see it
    caption: str = ""
    min_width: int = 0  # pixels
    columns: tuple[str, ...] = ()  # of the CSV; empty: it is the data of the specification
    rows: tuple[tuple[Any, ...], ...] = ()


@dataclass(frozen=True)
class DataTable:
    id: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    title: str = ""
    caption: str = ""
    footnote: str = ""
    sortable: bool = True


@dataclass(frozen=True)
class Picture:
    """An image that the page carries; only on request, because it may show a patient."""

    id: str
    title: str
    png: str  # base64
    alt: str
    caption: str = ""
    width: int = 0
    height: int = 0
    scrolls: bool = False  # on narrow screens, instead of becoming too small to be looked at
    names: str = ""  # base64: dark writing that lies over it, and is turned where the page is dark


@dataclass(frozen=True)
class Option:
    value: str
    label: str
    colour: str = ""  # a token


@dataclass(frozen=True)
class Picker:
    """Check boxes; what is chosen is the parameter `param` (a list) of every chart of the section that has it."""

    param: str
    label: str
    options: tuple[Option, ...]
    chosen: tuple[str, ...]
    most: int = 6


@dataclass(frozen=True)
class Chooser:
    """One of several, as a list to choose from; sets `param` (a text) of every chart of the section that has it."""

    param: str
    label: str
    options: tuple[Option, ...]
    chosen: str


@dataclass(frozen=True)
class Slider:
    """A number between two others; sets `param` of every chart of the section that has it."""

    param: str
    label: str
    low: float
    high: float
    step: float
    value: float
    unit: str = ""


@dataclass(frozen=True)
class Row:
    """Blocks beside each other on wide screens, below each other on narrow ones."""

    blocks: tuple[Block, ...]
    widths: tuple[int, ...] = ()  # relative; empty: equal


@dataclass(frozen=True)
class Tab:
    label: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Tabs:
    id: str
    label: str  # what is chosen, for screen readers
    tabs: tuple[Tab, ...]


@dataclass(frozen=True)
class Details:
    """Blocks that are folded until somebody asks for them."""

    summary: str
    blocks: tuple[Block, ...]


Block = (
    Facts | Prose | Note | Listing | CodeBlock | Chart | DataTable | Picture | Picker | Chooser | Slider | Row | Tabs
    | Details
)  # fmt: skip


# the page -------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Section:
    id: str
    title: str
    blocks: tuple[Block, ...]
    lead: Text = ()
    nav: str = ""  # the word in the navigation; the title if empty


@dataclass(frozen=True)
class HospitalPage:
    """What one hospital is handed: a sheet of its own."""

    id: str  # "hospital-north"
    name: str
    title: str
    lead: Text
    facts: tuple[Fact, ...]
    blocks: tuple[Block, ...]
    back: str = "hospitals"  # the section that it belongs to


@dataclass(frozen=True)
class RunSource:
    """A run directory that numbers come from."""

    id: str  # "r3"
    name: str
    folder: str
    status: str


@dataclass(frozen=True)
class Page:
    kicker: str  # above the title: what this is
    title: str  # the verdict
    lead: Text
    facts: tuple[Fact, ...]
    sections: tuple[Section, ...]
    hospitals: tuple[HospitalPage, ...] = ()
    sources: tuple[RunSource, ...] = ()
    notes: tuple[str, ...] = ()
    made: str = ""  # when and by which version
    images: bool = False  # whether it carries pictures of patients


# walks ----------------------------------------------------------------------------------------------------------------
def document(part: Any) -> Any:
    """Any part of a page as JSON types; every dataclass says its type."""
    if is_dataclass(part) and not isinstance(part, type):
        return {"type": type(part).__name__} | {each.name: document(getattr(part, each.name)) for each in fields(part)}
    if isinstance(part, Mapping):
        return {str(key): document(value) for key, value in part.items()}
    if isinstance(part, list | tuple):
        return [document(value) for value in part]
    return part


def blocks_of(part: Page | Section | HospitalPage | Block) -> Iterator[Block]:
    """Every block of a page or a part of it, the outer before the inner."""
    if isinstance(part, Page):
        for whole in (part.sections, part.hospitals):
            for each in whole:
                yield from blocks_of(each)
        return
    if not isinstance(part, Section | HospitalPage):
        yield part
    for block in _inner_blocks(part):
        yield from blocks_of(block)


def _inner_blocks(part: Section | HospitalPage | Block) -> tuple[Block, ...]:
    match part:
        case Section() | HospitalPage() | Row() | Details():
            return part.blocks
        case Tabs():
            return tuple(block for tab in part.tabs for block in tab.blocks)
    return ()


def charts_of(part: Page | Section | HospitalPage) -> list[Chart]:
    return [block for block in blocks_of(part) if isinstance(block, Chart)]


# names from outside ---------------------------------------------------------------------------------------------------
def shown(name: object, most: int = MAX_NAME) -> str:
    """A class, site, method or folder as the page shows it: one line, bounded, nothing that turns the writing."""
    return printable(str(name), most)


def page_id(prefix: str, name: object) -> str:
    """An address within the page: letters, digits and dashes. Names that would come out alike differ by a hash."""
    text = str(name)
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    if plain != text.lower() or len(plain) > MAX_ID:
        plain = f"{plain[:MAX_ID].strip('-')}-{blake2b(text.encode(errors='replace'), digest_size=3).hexdigest()}"
    return f"{prefix}-{plain.strip('-')}"
