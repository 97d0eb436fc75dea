"""The study files that would fill a table of a paper, at its full settings or in about an hour of two cores.

A study varies one key beside its methods and seeds. So a table has a study for each dataset, and for each setting where
the authors tune their method to it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tomli_w

from crossward.comparison.papers.row_methods import RowMethod, row_method
from crossward.comparison.papers.settings import DataSetting, data_setting
from crossward.comparison.papers.tables import Column, PaperTable

WORKERS = 2
MINUTES = 55  # of the hour, for all studies of a table together
MOST_ROUNDS = 30
ENOUGH_ROUNDS = 10  # fewer than these, and one seed in place of two
EVALUATIONS = 3  # of a small run that has a validation set to choose a round by
PERSONAL = ("fedrep", "fedproto")  # each site's network predicts the one test set of all
MANY_SITES = 35  # FEMNIST's writers
CROWD = 20  # sites beyond which a small study limits images by the site
WORK = {  # how many times FedAvg's time a method takes, measured in studies/
    "fedbm": 3.0, "fedcd": 3.5, "moon": 2.5, "creff": 2.5, "fedmd": 2.0, "feddf": 2.0, "pfeddf": 2.0, "ds-pfl": 2.0,
    "kt-pfl": 2.0, "central": 2.0, "fedrep": 2.0, "fedbabu": 2.0, "ditto": 2.0, "apfl": 2.5, "fedsm": 3.0,
    "lc-fed": 2.0, "mh-pflgb": 1.5, "fednh": 1.4, "fedcb": 1.4, "fedproto": 1.4, "balancefl": 2.0, "feddc": 1.5,
    "fedproc": 1.5,
}  # fmt: skip
SMALL_OPTIONS: Mapping[str, Mapping[str, Any]] = {  # of methods whose own networks or budgets are large
    "fedbm": {"generator_width": 0.25, "synthetic": 16},
    "fedmd": {"start_epochs": 4},
    "moon": {"projection": 0},
    "fedproc": {"projection": 0},
    "fedcd": {"projection": 0},
}
WITHOUT_PROJECTION = ("Fed-ISIC2019", "RSNA-ICH")  # whose small network has none of its own
VARIED = {"fedbm": "partition.beta", "fedcb": "partition.beta", "fedcd": "partition.beta"}
OWN_ROWS = ("FedBM", "FedCB", "FedCB (Embedding distribution)", "FedCD", "FedNPR-Per", "MH-pFLGB")
SPREAD_ARRAY = re.compile(r"\[\n([^\[\]{}]*?)\n\s*\]")
METRICS = {
    "Accuracy": "accuracy", "F1": "f1", "bACC": "balanced_accuracy", "bAUC": "auc", "ACC": "accuracy", "MF1": "f1",
    "Dice": "dice",
}  # fmt: skip


@dataclass(frozen=True)
class PaperStudy:
    """A study file: its name, what it holds, and what it cannot say."""

    name: str  # without .toml
    document: Mapping[str, Any]
    comments: tuple[str, ...]
    minutes: float | None = None  # that a small one is expected to take on two cores

    def text(self, file: str = "") -> str:
        """The file, with its comments; `file` is what it is called."""
        run = f"# crossward study run {file or f'{self.name}.toml'}"
        lines = [*(f"# {comment}" for comment in self.comments), run, ""]
        return "\n".join(lines) + SPREAD_ARRAY.sub(_on_one_line, tomli_w.dumps(self.document))


def _on_one_line(array: re.Match[str]) -> str:
    """[1, 2] for an array that is written with a line for each element."""
    return f"[{', '.join(line.strip().rstrip(',') for line in array[1].splitlines())}]"


@dataclass(frozen=True)
class _Cell:
    """A row of the table in one setting of a dataset."""

    row: str
    method: RowMethod
    data: DataSetting
    dataset: str
    sections: tuple[tuple[str, Any], ...]  # what setting and row change of the shared configuration


def setting_sections(paper: str, setting: str) -> dict[str, Any]:
    """What a column's setting says of the configuration: beta=0.05 is partition.beta."""
    sections: dict[str, Any] = {}
    for key, value in re.findall(r"(beta|clients|ratio|rounds)=([\d.]+)", setting):
        name = {"beta": "partition.beta", "clients": "partition.sites", "ratio": "run.participation"}.get(key)
        sections[name or "run.rounds"] = float(value) if key in ("beta", "ratio") else int(value)
    if setting == "iid":
        sections["partition.kind"] = "iid"
    return sections if paper != "mh-pflgb" else {}


def table_studies(table: PaperTable, *, small: bool = False) -> list[PaperStudy]:
    """The studies whose cells are those of the table."""
    groups = _grouped(table, list(_cells(table)))
    seeds, rounds = _budget(groups) if small else (0, 0)
    return [_study(table, name, cells, vary, seeds, rounds) for name, cells, vary in groups]


def _cells(table: PaperTable) -> Iterator[_Cell]:
    """Every row in every setting, once for all metrics and sites; methods that a reference needs come along."""
    seen = set()
    for dataset, setting in dict.fromkeys((column.dataset, column.setting) for column in table.columns):
        data = data_setting(table.key, table.number, dataset, setting)
        for row in _rows_of(table, dataset, setting):
            method = row_method(table.key, row, dataset, setting)
            if not method.name:
                continue
            sections = {**setting_sections(table.key, setting), **method.sections}
            cell = _Cell(method.label or row, method, data, dataset, tuple(sorted(sections.items())))
            mark = (cell.row, data.slug, cell.sections)
            if mark not in seen:
                seen.add(mark)
                yield cell


def _rows_of(table: PaperTable, dataset: str, setting: str) -> list[str]:
    if table.name == "fedcd-2":  # the reference of its multiples has no row of its own
        return ["FedAvg", "FedProc", "FedCD"]
    return [row for row in table.rows if any(
        key[0] == row and key[1].dataset == dataset and key[1].setting == setting for key in table.figures
    )]  # fmt: skip


def _grouped(table: PaperTable, cells: Sequence[_Cell]) -> list[tuple[str, list[_Cell], str]]:
    """Name of a study, its cells, and the key that it varies, if one does."""
    key = next((key for cell in cells for key in cell.method.sections), VARIED.get(table.key, ""))
    key = "run.rounds" if table.name == "fedcd-3" else key
    by_rest: dict[tuple[str, Any], list[_Cell]] = {}
    for cell in cells:
        rest = tuple(item for item in cell.sections if item[0] != key)
        by_rest.setdefault((cell.data.slug, rest), []).append(cell)
    groups: list[tuple[tuple[str, Any], list[_Cell], str]] = []
    for (slug, rest), members in by_rest.items():
        values = list(dict.fromkeys(dict(cell.sections).get(key) for cell in members))
        by_value = {value: [cell for cell in members if dict(cell.sections).get(key) == value] for value in values}
        entries = {json.dumps([_entry(cell, small=False) for cell in mine]) for mine in by_value.values()}
        if len(values) > 1 and len(entries) == 1:
            groups.append(((slug, rest), members, key))
        else:
            groups += [((slug, (*rest, (key, value))), mine, "") for value, mine in by_value.items()]
    return [(_name(table, at, [each for each, _, _ in groups]), members, vary) for at, members, vary in groups]


def _name(table: PaperTable, at: tuple[str, Any], others: Sequence[tuple[str, Any]]) -> str:
    """fedbm-6-kvasir-v2-beta0.1: the parts in which the studies of the table differ."""
    slug, sections = at
    parts = [slug] if len({each[0] for each in others}) > 1 else []
    siblings = [dict(each[1]) for each in others if each[0] == slug]
    for key, value in sections:
        if value is not None and any(each.get(key) != value for each in siblings):
            leaf = key.rpartition(".")[2]
            parts.append(str(value) if leaf == "kind" else f"{leaf}{value}")
    return "-".join([table.name, *parts])


def _entry(cell: _Cell, *, small: bool) -> dict[str, Any]:
    """The method's table in the study."""
    method = cell.method
    options = dict(method.options)
    if small:
        shrunk = {**SMALL_OPTIONS.get(method.name.split("+")[0], {})}
        if cell.dataset in WITHOUT_PROJECTION:
            shrunk.pop("projection", None)
        options |= shrunk
    entry: dict[str, Any] = {"name": method.name, "label": cell.row, **options}
    if method.plugins:
        entry["plugin"] = {name: dict(given) for name, given in method.plugins.items()}
    if method.alike:
        entry |= cell.data.alike_small if small else cell.data.alike
    return entry


def _study(table: PaperTable, name: str, cells: Sequence[_Cell], vary: str, seeds: int, rounds: int) -> PaperStudy:
    """`rounds` above 0: a small study of so many rounds and seeds."""
    small = rounds > 0
    data = cells[0].data
    shared = data.sections(small=small)
    for key, value in cells[0].sections:
        if key != vary:
            section, leaf = key.split(".")
            shared.setdefault(section, {})[leaf] = value
    values = list(dict.fromkeys(dict(cell.sections)[vary] for cell in cells)) if vary else []
    if small:
        shared["run"]["rounds"] = rounds
        if shared["partition"].get("sites", 0) > CROWD:
            shared["partition"] |= {"limit": 50 * shared["partition"]["sites"], "min_size": 2}
        if vary == "run.rounds":
            values = [max(1, rounds * value // max(values)) for value in values]
        shared["evaluate"]["every"] = max(1, -(-rounds // EVALUATIONS)) if data.validated else rounds
        _shrink_schedule(shared, rounds)
    methods = list({cell.row: _entry(cell, small=small) for cell in cells}.values())
    when = "best" if data.validated else "last"
    view = "global" if shared["evaluate"]["view"] == "global" else "mean"
    study: dict[str, Any] = {
        "seeds": list(data.seeds)[: seeds or None],
        "columns": [f"{when}.{view}.{metric}" for metric in _metrics(table, cells[0].dataset)],
        "last": 1,
        "pairs": _pairs([method["label"] for method in methods]),
    }
    if vary:
        study["vary"] = {"key": vary, "values": values}
    if table.name == "fedcd-2":
        study["reach"] = {"target": "FedAvg", "reference": "FedCD", "metric": "accuracy"}
    study["method"] = methods
    document = _plain({"study": study, **shared})
    minutes = _core_minutes(cells, len(study["seeds"]), rounds) / WORKERS if small else None
    return PaperStudy(name, document, _comments(table, cells[0], minutes), minutes)


def _shrink_schedule(shared: dict[str, Any], rounds: int) -> None:
    """Milestones at the same share of the rounds as in the paper."""
    train = shared["train"]
    if "milestones" in train:
        train["milestones"] = sorted({max(1, rounds * round_ // 80) for round_ in train["milestones"]})


def _metrics(table: PaperTable, dataset: str) -> list[str]:
    names = [
        METRICS[column.metric] for column in table.columns if column.dataset == dataset and column.metric in METRICS
    ]
    return list(dict.fromkeys(names)) or ["accuracy"]


def _pairs(labels: Sequence[str]) -> list[list[str]]:
    """The paper's own method against every other row."""
    own = next((label for label in OWN_ROWS if label in labels), None)
    return [[own, label] for label in labels if label != own] if own else []


def _comments(table: PaperTable, cell: _Cell, minutes: float | None) -> tuple[str, ...]:
    lost = [row for row in table.rows if not row_method(table.key, row, cell.dataset, "").name]
    comments = [f"Table {table.number} of {table.paper}: {table.title}."]
    if minutes is not None:
        comments.append(f"In small: about {minutes:.0f} minutes on two cores. Its figures are no replication.")
    if table.number == 5 and table.key == "mh-pflgb":
        comments.append(
            "This table needs no training: crossward table mh-pflgb-5 --runs counts the networks themselves."
        )
    comments += [f"Note: {line}." for line in cell.data.unsaid]
    comments += [f"Left out: {row}: {row_method(table.key, row, cell.dataset, '').reason}." for row in lost]
    return tuple(comments)


def _core_minutes(cells: Sequence[_Cell], seeds: int, rounds: int) -> float:
    """Training, and predictions at a third of the cost; networks of single sites each predict a common test set."""
    total = 0.0
    for cell in cells:
        sections = cell.data.sections(small=True)
        trained = cell.data.images * sections["train"].get("epochs", 1) * rounds
        base = cell.method.name.split("+")[0]
        common = sections["evaluate"]["view"] == "global" and base in PERSONAL
        networks = sections["partition"].get("sites", MANY_SITES) if common else 1
        evaluations = EVALUATIONS if cell.data.validated else 1
        work = WORK.get(base, 1.2) * trained + evaluations * cell.data.tested * networks / 3
        total += seeds * work / cell.data.rate / 60
    return total


def _budget(groups: Sequence[tuple[str, list[_Cell], str]]) -> tuple[int, int]:
    """Seeds and rounds with which all studies of the table fit into the hour."""
    cells = [cell for _, members, _ in groups for cell in members]
    for seeds in (2, 1):
        fixed = _core_minutes(cells, seeds, 0)
        rounds = int((MINUTES * WORKERS - fixed) / (_core_minutes(cells, seeds, 1) - fixed))
        if rounds >= ENOUGH_ROUNDS:
            break
    return seeds, min(max(1, rounds), MOST_ROUNDS)


def _plain(value: Any) -> Any:
    """As TOML has it: lists for tuples, nothing for None."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value


def column_metric(column: Column) -> str | None:
    """The metric of ours that a column shows; None if it is no metric of a round."""
    return METRICS.get(column.metric)


def small_rounds(table: PaperTable, setting: str) -> int | None:
    """The rounds that stand for a setting of so many rounds in the small study of a table."""
    asked = setting_sections(table.key, setting)
    for study in table_studies(table, small=True):
        vary = study.document["study"].get("vary", {})
        if vary.get("key") == "run.rounds" and study.document["partition"]["sites"] == asked["partition.sites"]:
            others = [setting_sections(table.key, column.setting) for column in table.columns]
            all_rounds = [each["run.rounds"] for each in others if each["partition.sites"] == asked["partition.sites"]]
            rounds: int = vary["values"][sorted(all_rounds).index(asked["run.rounds"])]
            return rounds
    return None
