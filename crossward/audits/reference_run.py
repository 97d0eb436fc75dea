"""The reference network of RMIA: trained by the same configuration on images that leave out those under attack."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from crossward.audits.audited_run import AuditedRun
from crossward.audits.finding import NotMeasured
from crossward.config.reading import config_from
from crossward.core.seeds import derive
from crossward.data.federation import Federation
from crossward.errors import ConfigError
from crossward.runs.build import assemble
from crossward.runs.deployed import Deployed
from crossward.runs.lifecycle import start
from crossward.runs.result import Result, load
from crossward.runs.run_directory import RunDir

FOLDER = "audit/reference"  # within the run directory


@dataclass(frozen=True)
class Reference:
    """A run whose networks judge images that it has not seen."""

    name: str
    result: Result
    trained: Tensor  # rows of the audited run's collection that it was trained on
    which: str

    def network(self, site: str) -> Deployed:
        return self.result.deployed(site if self.result.about["personal"] else None, self.which)


def open_reference(run: AuditedRun) -> tuple[Reference | None, str]:
    """The reference network, or why there is none."""
    options = run.options
    own = run.result.folder / FOLDER
    if options.reference is not None:
        return _checked(run, load(options.reference)), ""
    if (own / "run.json").exists() and load(own).about["status"] == "finished":
        return _checked(run, load(own)), ""
    if options.train_reference:
        return _checked(run, train_reference(run)), ""
    return None, f"there is no reference network. Name another run of these images by --reference, or {expense(run)}"


def expense(run: AuditedRun) -> str:
    """What training a reference costs, in words."""
    seconds = float(run.result.summary["seconds"])
    return f"train one by --train-reference, which takes about half as long as the run did ({seconds / 2:.0f} s)."


def _checked(run: AuditedRun, reference: Result) -> Reference:
    mine, theirs = (result.partition["collection"] for result in (run.result, reference))
    if mine["fingerprint"] != theirs["fingerprint"]:
        raise ConfigError(
            f"{reference.folder} was trained on other images than {run.result.folder}",
            hint="Name a run of the same data with another seed, or let one be trained by --train-reference.",
        )
    lacking = [split.name for split in run.training_sites() if split.name not in reference.about["sites"]]
    if lacking and reference.about["personal"]:
        raise ConfigError(f"{reference.folder} has no network of {', '.join(lacking[:5])}")
    rows = {name: row for row, name in enumerate(run.federation.collection.ids)}
    trained = [rows[name] for part in reference.partition["sites"].values() for name in part["train"]]
    return Reference(reference.folder.name, reference, torch.tensor(trained, dtype=torch.int64), run.options.which)


def train_reference(run: AuditedRun) -> Result:
    """Train it in a folder of the run directory, on half of each site's training images, from another seed."""
    folder: Path = run.result.folder / FOLDER
    if (folder / "run.json").exists():
        raise NotMeasured(f"{folder} holds a reference network that was not finished: remove it, and audit again.")
    settings = run.config.canonical()
    settings["run"] |= {"seed": (run.config.run.seed + 1) % 2**31, "name": None, "out": str(folder.parent)}
    federation = halved(run.federation, run.rng("reference"))
    return start(RunDir.create(folder), assemble(config_from(settings), federation))


def halved(federation: Federation, rng: torch.Generator) -> Federation:
    """Each site trains on half of its images; all images of a patient are in the same half."""
    groups = federation.collection.groups
    sites = []
    for split in federation.sites:
        rows = split.train.tolist()
        names = [groups[row] if groups and groups[row] else f"image {row}" for row in rows]
        units = list(dict.fromkeys(names))
        order = torch.randperm(len(units), generator=rng).tolist()
        chosen = {units[i] for i in order[: -(-len(units) // 2)]}
        kept = [row for row, name in zip(rows, names, strict=True) if name in chosen]
        sites.append(replace(split, train=torch.tensor(kept, dtype=torch.int64)))
    recipe = federation.recipe | {"half_for_audit": derive(rng.initial_seed(), "half")}
    return replace(federation, sites=tuple(sites), recipe=recipe)
