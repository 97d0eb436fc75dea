"""Cells: the runs of a study, each with its checked configuration and the folder that is its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from crossward.config.reading import config_from
from crossward.config.schema import Config
from crossward.config.toml_lines import Key, Where, place
from crossward.errors import ConfigError
from crossward.studies.grid import GridCell, grid, setting_name
from crossward.studies.identity import DIGITS, Collections, run_digest
from crossward.studies.study_file import ENSEMBLE, LOCAL, NOT_VALID, StudyFile


@dataclass(frozen=True)
class Cell:
    """One run of a study."""

    label: str
    setting: Mapping[str, Any]  # axis -> its value; of an axis of tables, the label of the value
    seed: int
    repeat: int  # above 0: the same again with another order of batches, for the noise floor
    config: Config  # of the ensemble: that of the local run it is made of
    folder: Path
    key: str  # digest of what it computes: the resolved configuration and the data
    written_key: str  # of the configuration as the file has it
    fingerprint: str = ""  # of the images; "" if they are drawn from settings
    members: Path | None = None  # of the ensemble: the folder of the local run

    @property
    def setting_name(self) -> str:
        return setting_name(self.setting)

    @property
    def former_folder(self) -> Path:
        """Where studies kept this run before folders ended in a digest."""
        return self.folder.with_name(self.folder.name[: -DIGITS - 1])


def study_folder(study: StudyFile, out: Path) -> Path:
    """The folder of the study's run directories."""
    return out / study.name


def resolve_cells(study: StudyFile, out: Path, collections: Collections | None = None) -> list[Cell]:
    """Every cell with its checked configuration; all mistakes in any of them are reported at once.

    `collections` may be shared between calls, so that images are read once. Reading them finds missing data now.
    """
    folder = study_folder(study, out)
    checked = _check(study, list(grid(study)))
    collections = collections or Collections()
    cells: dict[Path, Cell] = {}
    local: dict[tuple[str, int], Path] = {}
    for written, config in checked:
        config = _with_all_predictions(config) if ENSEMBLE in study.settings.baselines else config
        cell = make_cell(written, config, folder, collections.fingerprint(config.data))
        if written.derived:
            cell = replace(cell, members=local[cell.setting_name, cell.seed])
        elif config.method.name == "local" and not cell.repeat:
            local[cell.setting_name, cell.seed] = cell.folder
        if cell.folder in cells:
            raise ConfigError(
                f"two cells of {study.file} are the same run",
                details=[f"{each.label}, {each.setting_name}, seed {each.seed}" for each in (cells[cell.folder], cell)],
                hint="Remove one of them, or let them differ.",
            )
        cells[cell.folder] = cell
    _check_settings_differ(study, list(cells.values()))
    return list(cells.values())


def _with_all_predictions(config: Config) -> Config:
    """An ensemble is made of what local networks predicted in each round."""
    if config.method.name != LOCAL or config.evaluate.keep_predictions != "best":
        return config
    return config.model_copy(update={"evaluate": config.evaluate.model_copy(update={"keep_predictions": "all"})})


def make_cell(written: GridCell, config: Config, folder: Path, fingerprint: str) -> Cell:
    """The cell of a checked configuration; `folder` is that of the study, `fingerprint` that of the images."""
    key = run_digest(config, f"ensemble {fingerprint}" if written.derived else fingerprint)
    name = f"{written.name}-{key[:DIGITS]}"
    run = config.run.model_copy(update={"name": name, "out": folder})
    return Cell(
        written.label,
        written.setting,
        written.seed,
        written.repeat,
        config.model_copy(update={"run": run}),
        folder / name,
        key,
        written.written_key,
        fingerprint,
    )


def run_task(cell: Cell) -> dict[str, Any]:
    """What a worker is sent to run the cell."""
    config = cell.config.canonical()
    config["engine"]["name"] = "local"  # cells run side by side, each in one process
    return {"task": "run", "folder": str(cell.folder), "config": config}


def _check(study: StudyFile, written: Iterable[GridCell]) -> list[tuple[GridCell, Config]]:
    """Each method is checked once in each setting; seeds and orders of batches change nothing that could be wrong."""
    known: dict[tuple[str, str], Config | None] = {}
    mistakes: dict[str, dict[str, None]] = {}  # mistake -> labels
    checked = []
    for cell in written:
        at = (str(cell.method), cell.setting_name)
        if at not in known:
            try:
                known[at] = config_from(cell.document, _places(study, cell))
            except ConfigError as error:
                known[at] = None
                for line in error.details or [str(error)]:
                    mistakes.setdefault(line, {})[cell.label] = None
        config = known[at]
        if config is not None:
            order = cell.document["run"].get("batch_order", 0)
            run = config.run.model_copy(update={"seed": cell.seed, "batch_order": order})
            checked.append((cell, config.model_copy(update={"run": run})))
    if mistakes:
        raise ConfigError(NOT_VALID, details=[*_by_label(mistakes, len(study.settings.methods()))])
    return checked


def _by_label(mistakes: Mapping[str, Iterable[str]], methods: int) -> Iterator[str]:
    """What is wrong in all methods is wrong in the shared configuration."""
    for line, labels in mistakes.items():
        names = list(labels)
        yield line if len(names) == methods and methods > 1 else f"{', '.join(names)}: {line}"


def _places(study: StudyFile, cell: GridCell) -> Where:
    """The lines of the cell's keys: of its method's table and of the axes as well as of the shared sections."""
    places: dict[Key, str] = {key: line for key, line in study.where.items() if key[0] != "study"}
    for key, line in study.where.items():
        match key:
            case ("study", "method", number, ("plugin" | "net" | "site") as section, *rest):
                if number == str(cell.method):
                    places[(section, *rest)] = line
            case ("study", "method", number, *rest) if number == str(cell.method):
                places[("method", *rest)] = line
    entries = study.settings.method
    if cell.method >= len(entries) and (written := place(("study", "baselines"), study.where)):
        places[("method",)] = written.strip(" ()")
    for axis in cell.setting:
        source = ("study", "axes", axis) if axis in study.settings.axes else ("study", "vary", "key")
        if written := place(source, study.where):
            places[tuple(axis.split("."))] = written.strip(" ()")
    return places


def _check_settings_differ(study: StudyFile, cells: Iterable[Cell]) -> None:
    """An axis that a method does not follow would give the same run several names."""
    seen: dict[tuple[str, str], Cell] = {}
    for cell in cells:
        first = seen.setdefault((cell.label, cell.key), cell)
        if first is not cell:
            raise ConfigError(
                f"{cell.label} is the same run with {first.setting_name} and with {cell.setting_name}",
                details=[f"axis {axis}{_axis_place(study, axis)}" for axis in cell.setting],
                hint="Its own table may have a net or site that takes the place of what the axis sets; "
                "leave these cells out by study.exclude.",
            )


def _axis_place(study: StudyFile, axis: str) -> str:
    return place(("study", "axes", axis) if axis in study.settings.axes else ("study", "vary"), study.where)
