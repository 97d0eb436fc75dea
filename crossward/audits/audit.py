"""Audit a run: carry out attacks on it one after another, and keep what each of them found in audit.json."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from crossward.audits.audit_file import write_findings
from crossward.audits.audited_run import AuditedRun, AuditOptions
from crossward.audits.catalogue import ATTACKS
from crossward.audits.finding import DoesNotApply, Finding, NotMeasured
from crossward.errors import ConfigError, CrosswardError
from crossward.names import nearest
from crossward.runs.result import load

OnStart = Callable[[str], None]  # told the title of each attack before it begins


def audit(
    folder: str | Path,
    attacks: Sequence[str] = (),
    options: AuditOptions | None = None,
    on_start: OnStart = lambda title: None,
) -> list[Finding]:
    """Carry out these attacks, or all, on a finished run. What cannot be attacked is said in the finding."""
    if unknown := [f"{name!r}: {nearest(name, ATTACKS)}" for name in attacks if name not in ATTACKS]:
        raise ConfigError("there are no such attacks", details=unknown)
    run = AuditedRun(load(folder), options or AuditOptions())
    findings = []
    for name in dict.fromkeys(attacks or ATTACKS):
        on_start(ATTACKS[name].title)
        findings.append(carry_out(name, run))
    write_findings(run.rundir, findings)
    return findings


def carry_out(name: str, run: AuditedRun) -> Finding:
    """One attack; where it cannot be carried out, a finding that says why."""
    entry = ATTACKS[name]
    began = time.perf_counter()
    try:
        attack: Callable[[AuditedRun], Finding] = getattr(
            import_module(f"crossward.audits.{entry.module}"), name.replace("-", "_")
        )
        finding = attack(run)
    except DoesNotApply as reason:
        finding = Finding(name, entry.title, "does not apply", str(reason))
    except NotMeasured as reason:
        finding = Finding(name, entry.title, "not measured", str(reason))
    except CrosswardError as error:
        finding = Finding(name, entry.title, "not measured", _reason(error))
    return replace(finding, attack=name, title=entry.title, seconds=round(time.perf_counter() - began, 2))


def _reason(error: CrosswardError) -> str:
    """Without the details, which may name images."""
    first = error.what.splitlines()[0]
    return f"{first}. {error.hint}" if error.hint else f"{first}."
