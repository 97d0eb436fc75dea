"""Method and disclosure: what each method is and how it departs from its paper, and what has left the hospitals."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from crossward.config.describe import Description, describe
from crossward.core.disclosure import HOLDS_WEIGHTS, Disclosure
from crossward.errors import CrosswardError
from crossward.methods import METHODS, method_class
from crossward.plugins import PLUGINS
from crossward.report.content import (
    Block,
    Cell,
    Column,
    DataTable,
    Details,
    Figure,
    Link,
    MethodName,
    Note,
    Prose,
    Section,
    Text,
    shown,
)
from crossward.report.source import ReportRun, ReportSource
from crossward.runs.protection import run_protection
from crossward.runs.result import Result

ADDRESS = re.compile(r"https://[^\s,;)]+")
DEPARTURES = re.compile(r"^Departures:(.*?)(?=\n\n(?! )|\Z)", re.DOTALL | re.MULTILINE)
KILOBYTE = 1e3
MOST_TEXT = 6000  # characters of the departures of a method
BUFFERS = {
    "average": "averaged with the weights",
    "local": "kept by each hospital",
    "server": "measured at the server",
}
SENT_WORDS = "What left a hospital, by item: bytes that one hospital sent in a round in which it took part."


def method_section(source: ReportSource) -> Section:
    blocks: list[Block] = [*_sent_blocks(source), _settings_table(source), *_descriptions(source)]
    lead = "What the methods are, in which settings they differ from their papers, and what has left the hospitals."
    return Section("method", "Method and disclosure", tuple(blocks), (lead,), nav="Method & disclosure")


# what left the hospitals ----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class SentItem:
    """One item of replies, over all rounds of a run."""

    item: str
    direction: str
    bytes: int
    clients: int  # answers that held it, summed over rounds and steps
    rounds: int


def sent_items(result: Result) -> list[SentItem]:
    """traffic.jsonl by direction and item, in the order in which they first occur."""
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for line in result.traffic:
        found.setdefault((str(line["direction"]), str(line["item"])), []).append(line)
    return [
        SentItem(
            item,
            direction,
            sum(int(line["bytes"]) for line in lines),
            sum(int(line["clients"]) for line in lines),
            len({line["round"] for line in lines}),
        )
        for (direction, item), lines in found.items()
    ]


def _sent_blocks(source: ReportSource) -> Iterator[Block]:
    rows: list[tuple[Cell, ...]] = []
    silent = []
    for label in source.labels:
        run = source.of(label)[0] if source.of(label) else None
        if run is None:
            continue
        try:
            sent = [item for item in sent_items(run.result) if item.direction == "up"]
        except (CrosswardError, KeyError, TypeError, ValueError):
            yield Note(f"{run.name}: traffic.jsonl cannot be read, so what left the hospitals is not known")
            continue
        if not sent:
            silent.append(label)
        rows += [_sent_row(source, run, item) for item in sent]
    if rows:
        yield DataTable(
            "disclosure",
            (
                Column("method"),
                Column("item"),
                Column("what it is"),
                Column("kind", help="What a hospital's policy allows or forbids."),
                Column("kB a round", "number", SENT_WORDS),
                Column("rounds", "number", wide_only=True),
                Column("MB in all", "number", "Over all hospitals and rounds."),
            ),
            tuple(rows),
            "What left the hospitals",
            footnote="One run of each method. No item holds an image of a patient unless its kind is images. "
            "Tensors count by their data, scalars by their JSON; evaluation is not counted.",
        )
    if silent:
        yield Prose((f"Nothing left a hospital under {', '.join(silent)}.",), muted=True)


def _sent_row(source: ReportSource, run: ReportRun, sent: SentItem) -> tuple[Cell, ...]:
    disclosure = _disclosures(run).get(sent.item)
    stored = run.about.get("discloses", {}).get(sent.item)
    each = sent.bytes / max(sent.clients, 1) / KILOBYTE
    return (
        MethodName(run.label, source.order.colour(run.label)),
        shown(sent.item),
        shown(stored or (disclosure.what if disclosure else "not declared")),
        str(disclosure.kind) if disclosure else "not known",
        Figure(each, digits=1 if each >= 0.1 else 3, note=SENT_WORDS, runs=(run.id,)),
        sent.rounds,
        Figure(sent.bytes / 1e6, digits=2, note=f"{sent.bytes:,} bytes", runs=(run.id,)),
    )


def _disclosures(run: ReportRun) -> Mapping[str, Disclosure]:
    """What the method declares, if this version has the method."""
    name = base_name(run)
    return method_class(name).discloses if name in METHODS else {}


def base_name(run: ReportRun) -> str:
    """The method's name without its plugins."""
    return str(run.about["method"]["name"]).split("+")[0]


# settings -------------------------------------------------------------------------------------------------------------
def _settings_table(source: ReportSource) -> DataTable:
    rows: list[tuple[Cell, ...]] = []
    for label in source.labels:
        runs = source.of(label)
        if runs:
            run = runs[0]
            changed = "; ".join(changed_options(run)) or "none"
            rows.append(
                (
                    MethodName(label, source.order.colour(label)),
                    shown(changed, 400),
                    _buffers(run),
                    _robust(run),
                    run_protection(run.result.folder).short(),
                    _networks(run),
                )
            )
    columns = (
        Column("method"),
        Column("options that differ from the paper's"),
        Column("BatchNorm statistics"),
        Column("robust rule"),
        Column("privacy", help="What noise protects; without noise, nothing bounds what the weights tell."),
        Column("networks"),
    )
    foot = (
        "The defaults of options are those of the papers, or of their authors' code; settings of training are common "
    )
    foot += "to all methods and stand under Reproduce."
    return DataTable("method-settings", columns, tuple(rows), "Settings of the methods", footnote=foot, sortable=False)


def changed_options(run: ReportRun) -> list[str]:
    """ "mu = 0.1 (paper: 0.01)" for every option of the method and its plugins that is not at its default."""
    parts = [(base_name(run), METHODS, run.about["method"], "")]
    parts += [(name, PLUGINS, options, f"{name}.") for name, options in (run.about.get("plugins") or {}).items()]
    lines = []
    for name, catalogue, values, prefix in parts:
        if name not in catalogue:
            lines.append(f"{name} is not known to this version")
            continue
        for option in describe(name, *catalogue[name]).options:
            default = _literal(option.default)
            value = values.get(option.name, default) if isinstance(values, Mapping) else default
            if option.name != "buffers" and _plain(value) != _plain(default):
                lines.append(f"{prefix}{option.name} = {value} (paper: {option.default})")
    return lines


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _plain(value: Any) -> Any:
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def _buffers(run: ReportRun) -> str:
    if not any(disclosure.kind in HOLDS_WEIGHTS for disclosure in _disclosures(run).values()):
        return BUFFERS["local"]
    policy = run.about["method"].get("buffers")
    return BUFFERS.get(str(policy), "not known" if policy is None else shown(policy))


def _robust(run: ReportRun) -> str:
    robust = run.result.config.get("robust", {})
    rule = str(robust.get("rule", "none"))
    if rule == "auto":
        return "clip to the median norm" if run.result.across_hospitals else "none"
    if rule == "clip":
        return f"clip at {robust.get('clip')} × the median norm"
    return f"trimmed mean, {robust.get('trim')} at each end" if rule == "trimmed-mean" else shown(rule)


def _networks(run: ReportRun) -> str:
    own = "each hospital its own" if run.about["personal"] else "one for all"
    names = {str(net.get("name")) for net in (run.about.get("nets") or {}).values()} or {
        str(run.about.get("net", {}).get("name", "not known"))
    }
    return shown(f"{own}: {', '.join(sorted(names))}")


# descriptions ---------------------------------------------------------------------------------------------------------
def _descriptions(source: ReportSource) -> Iterator[Block]:
    names: dict[str, None] = {}
    for run in source.runs:
        names |= dict.fromkeys([base_name(run), *map(str, run.about.get("plugins") or ())])
    catalogue = METHODS | PLUGINS
    for name in names:
        if name in catalogue:
            description = describe(name, *catalogue[name])
            departures = departures_of(description)
            word = "Plugin" if name in PLUGINS else "Method"
            blocks: list[Block] = [Prose(_citation(description))]
            blocks += [Prose(("Departures from the paper. ", text)) for text in departures[:1]]
            blocks += [Prose((text,)) for text in departures[1:]]
            yield Details(f"{word} {name}: citation and departures", tuple(blocks))
        else:
            yield Note(f"{shown(name)} is not a method of this version: its citation is not known here")


def _citation(description: Description) -> Text:
    """The paragraph at the top of the method's file, with its addresses as links."""
    text = " ".join(description.docstring.split("\n\n")[0].split())
    parts: list[str | Link] = []
    end = 0
    for found in ADDRESS.finditer(text):
        address = found[0].rstrip(".")
        parts += [text[end : found.start()], Link(address, address)]
        end = found.start() + len(address)
    return tuple(part for part in [*parts, text[end:]] if part)


def departures_of(description: Description) -> list[str]:
    """What stands behind "Departures:" in the method's file, item by item; empty if it names none."""
    found = DEPARTURES.search(description.docstring)
    if not found:
        return []
    items = re.split(r"\n- ", "\n" + found[1].strip())
    lines = [" ".join(item.removeprefix("- ").split()) for item in items]
    return [line[:MOST_TEXT] for line in lines if line]
