"""Running the demo: the studies of its situations one after the other, in the same worker processes, and its page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from crossward.demo.page import SituationReport, demo_page, report_situation
from crossward.demo.situations import Situation
from crossward.disk import write_atomically
from crossward.errors import RunError
from crossward.report.assets import vl_convert
from crossward.report.render import render_page
from crossward.studies.progress import StudyProgress
from crossward.studies.scheduler import Execute, Job, Listener, on_this_machine
from crossward.studies.states import BLOCKED, FAILED
from crossward.studies.study import Study, workers_to_use

PAGE = "report.html"


@dataclass(frozen=True)
class DemoOutcome:
    reports: tuple[SituationReport, ...]
    page: Path
    title: str


def run_demo(
    situations: Sequence[Situation],
    folder: Path,
    view: StudyProgress,
    on_situation: Callable[[Situation], None] = lambda situation: None,
) -> DemoOutcome:
    """Run every situation in this folder and write its page. `view` is notified of the runs, `on_situation` of each
    situation as it begins."""
    vl_convert()  # raises now if the page could not be made in the end
    folder.mkdir(parents=True)
    studies = {situation: Study(situation.write_study(folder), folder) for situation in situations}
    for study in studies.values():
        _ = study.cells  # mistakes are found before anything runs
    pending: list[Future[SituationReport]] = []
    with ThreadPoolExecutor(1) as reader, on_this_machine(workers_to_use(None), {}) as execute:
        for situation, study in studies.items():
            on_situation(situation)
            _run(study, view, longest_first(execute, study.file.settings.labels()))
            # a study is read while the next one runs
            pending.append(reader.submit(report_situation, situation, study.file.file, folder))
    reports = tuple(each.result() for each in pending)
    page = demo_page(reports, folder)
    write_atomically(folder / PAGE, render_page(page).encode(), durable=False)
    return DemoOutcome(reports, folder / PAGE, page.title)


def longest_first(execute: Execute, labels: Sequence[str]) -> Execute:
    """Run jobs in the order of these methods, all seeds of the first before the second: the demo's studies name the
    method that takes longest first, so that no worker is left alone with a long run at the end."""

    def ordered(jobs: Sequence[Job], listener: Listener) -> None:
        execute(sorted(jobs, key=lambda job: labels.index(job.label)), listener)

    return ordered


def _run(study: Study, view: StudyProgress, execute: Execute) -> None:
    outcome = study.run(view=view, execute=execute, prune=True)
    failed = outcome.in_state(FAILED, BLOCKED)
    if failed:
        raise RunError(
            f"{len(failed)} of {len(outcome.cells)} runs of {study.file.name} have no result",
            details=[f"{each.cell.folder.name}: {each.reason}" for each in failed],
            hint=f"Mend the cause, then: crossward study run {study.file.file} --out {study.out} --retry-failed",
        )
