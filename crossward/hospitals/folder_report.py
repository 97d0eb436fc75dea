"""`crossward site check` and `crossward coordinator check`: what listens where, which keys and certificates are in
force and when they end, file modes, limits and policy; each in order, or with the reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from crossward.errors import ConfigError, CrosswardError
from crossward.hospitals import pem
from crossward.hospitals.certificates import CA_FILE, SERVER_FILE, SERVER_KEY_FILE, WARN_BEFORE_EXPIRY
from crossward.hospitals.disclosure_log import HEAD_FILE, KEY_FILE, LOG_FILE, DisclosureLog
from crossward.hospitals.kit import MEMORY_KEY_FILE, CoordinatorKit, SiteKit, read_coordinator, read_site
from crossward.hospitals.kit_files import FEDERATION_FILE, SITE_FILE
from crossward.hospitals.limits_key import LIMITS_KEY_FILE
from crossward.hospitals.listeners import Listener, can_look, listeners, processes
from crossward.hospitals.peers import PEERS_FILE, fingerprint, read_peers
from crossward.hospitals.policy import Policy
from crossward.hospitals.secure_demand import SecureDemand
from crossward.hospitals.site_limits import USAGE_FILE, SiteLimits
from crossward.hospitals.site_notes import NOTES_FILE, SUSPICIOUS
from crossward.hospitals.site_privacy import read_budget
from crossward.hospitals.site_split import SPLIT_FILE

SITE_PRIVATE = (
    *(MEMORY_KEY_FILE, KEY_FILE, LIMITS_KEY_FILE, "sums.key"),
    *(LOG_FILE, HEAD_FILE, NOTES_FILE, USAGE_FILE, SPLIT_FILE, "memory", "weights", "flower"),
)
COORDINATOR_PRIVATE = (SERVER_KEY_FILE, "superlink.db", "flower", "runs")
INSECURE_FILE = "insecure"  # in Flower's folder: the coordinator runs without TLS and keys
SHOWN_NOTES = 3
NO_SHARED_IMAGE = ":        0 of the"  # in a line of notes
SHARED_WARNING = (
    "the public set of the last run holds images of this site. If they are in its test set, its results are better "
    "than they should be: tell the people of the coordinator so, by telephone. The site itself answers as if it had "
    "none: a different answer would tell anybody who has an image whether it is of a patient here"
)
NO_NOISE = "update_noise = 0: who sends crafted weights can read images out of the answers"
NEVER = "nothing of this folder is running"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    subject: str
    text: str
    in_order: bool = True


def site_report(folder: Path, *, now: datetime | None = None) -> list[Finding]:
    """Everything that a site's security officer may want to see in one place."""
    kit: SiteKit | None = None
    try:
        kit = read_site(folder, now=now)
        report = [Finding("folder", f"{folder}: {kit.name}, of the coordinator at {kit.address}")]
    except ConfigError as error:
        report = [Finding("folder", line, False) for line in error.details or [error.what]]
    names = [CA_FILE] if kit is None else [CA_FILE, kit.certificate.name]
    report += [_certificate(folder / name, now) for name in names]
    private = SITE_PRIVATE if kit is None else (kit.key.name, *SITE_PRIVATE)
    if kit is not None:
        report += [_fingerprint(kit.public_key), *_peers(folder / PEERS_FILE)]
    report += _modes(folder, private)
    report += _site_listeners(folder)
    report += _site_rules(folder / SITE_FILE)
    report += _log(folder)
    return report


def coordinator_report(folder: Path, *, now: datetime | None = None) -> list[Finding]:
    """The same of a coordinator."""
    kit: CoordinatorKit | None = None
    try:
        kit = read_coordinator(folder, now=now)
        report = [Finding("folder", f"{folder}: the coordinator of {kit.name} at {kit.address}")]
    except ConfigError as error:
        report = [Finding("folder", line, False) for line in error.details or [error.what]]
    report += [_certificate(folder / name, now) for name in (CA_FILE, SERVER_FILE)]
    report += [_fingerprint(file) for file in sorted((folder / "sites").glob("*.pub"))]
    report += _modes(folder, COORDINATOR_PRIVATE)
    authority_key = folder / "ca.key"
    if authority_key.exists():
        report.append(Finding("keys", f"{authority_key.name} is here: keep the authority's key offline", False))
    report += _coordinator_listeners(folder, kit.port if kit else 0)
    if kit is not None:
        allowed = ", ".join(kit.net) or "none"
        report.append(Finding("policy", f"{FEDERATION_FILE}: networks from outside the catalogue: {allowed}"))
        report.append(Finding("limits", f"reply_megabytes = {kit.reply_megabytes}"))
    return report


# keys and certificates ------------------------------------------------------------------------------------------------
def _certificate(file: Path, now: datetime | None) -> Finding:
    """Until when a certificate is valid. What else is wrong with it, reading the folder has told."""
    problems: list[str] = []
    certificate = pem.load_or_report(file, pem.load_certificate, problems)
    if certificate is None:
        return Finding("certificates", problems[0], False)
    moment = now or datetime.now(UTC)
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    days = (end - moment).days
    text = f"{file.name} is valid until {pem.format_time(end)}, {days} days"
    if moment < begin:
        return Finding("certificates", f"{file.name} is not valid before {pem.format_time(begin)}", False)
    if moment > end:
        return Finding("certificates", f"{file.name} expired on {pem.format_time(end)}", False)
    if end - moment < WARN_BEFORE_EXPIRY:
        return Finding("certificates", f"{text}: renew it now", False)
    return Finding("certificates", text)


def _fingerprint(file: Path) -> Finding:
    """The fingerprint of a public key, as `ssh-keygen -l` shows it."""
    problems: list[str] = []
    key = pem.load_or_report(file, pem.load_site_public_key, problems)
    return Finding("keys", problems[0], False) if key is None else Finding("keys", f"{file.name}: {fingerprint(key)}")


def _peers(file: Path) -> list[Finding]:
    """Whom the site sums securely with."""
    pinned = read_peers(file)
    if pinned is None:
        text = f"there is no {PEERS_FILE}: in secure sums, every site with a certificate of the authority is believed"
        return [Finding("secure sums", text)]
    return [Finding("secure sums", f"{name}: {print_of_key}") for name, print_of_key in pinned.items()]


def _modes(folder: Path, names: Sequence[str]) -> list[Finding]:
    """Who else may enter the folder, or read what is private in it."""
    findings = []
    for path in (folder, *(folder / name for name in names)):
        if not path.exists():
            continue
        mode = path.stat().st_mode & 0o777
        place = "the folder" if path == folder else path.name
        if mode & 0o077:
            wanted = "700" if path.is_dir() else "600"
            text = f"{place} is open to other users (mode {mode:04o}): chmod {wanted} {path}"
            findings.append(Finding("file modes", text, False))
        else:
            findings.append(Finding("file modes", f"{place}: {mode:04o}"))
    return findings


# listening ------------------------------------------------------------------------------------------------------------
def _site_listeners(folder: Path) -> list[Finding]:
    """A site fetches its work: no port of it is open, not even to other users of its machine."""
    found = listeners(folder)
    findings = [
        Finding("listens", f"{place.address} (process {place.process}): a site has no open port", False)
        for place in found
        if place.kind == "tcp"
    ]
    findings += _unix_findings(found)
    return findings or [_nothing_listens(folder, "a site listens at Unix sockets of its own user only")]


def _coordinator_listeners(folder: Path, port: int) -> list[Finding]:
    found = listeners(folder)
    findings = []
    for place in found:
        if place.kind != "tcp":
            continue
        is_door = place.port == port
        text = f"{place.address} (process {place.process})"
        what = "for hospitals, with certificates of this federation" if is_door else "which no part of Crossward needs"
        findings.append(Finding("listens", f"{text}: {what}", is_door))
    findings += _unix_findings(found)
    if processes(folder) and (folder / "flower" / INSECURE_FILE).exists():
        findings.append(Finding("listens", "it runs with --insecure: without TLS and keys", False))
    return findings or [_nothing_listens(folder, f"it would listen at 0.0.0.0:{port}, for hospitals")]


def _unix_findings(found: Sequence[Listener]) -> list[Finding]:
    findings = []
    for place in found:
        path = Path(place.address)
        if place.kind != "unix":
            continue
        mode = path.stat().st_mode & 0o777 if path.exists() else 0
        is_private = not mode & 0o077 or not path.parent.stat().st_mode & 0o077
        who = "its own user only" if is_private else f"other users, too (mode {mode:04o})"
        findings.append(Finding("listens", f"{place.address} (process {place.process}): {who}", is_private))
    return findings


def _nothing_listens(folder: Path, would: str) -> Finding:
    if not can_look():
        return Finding("listens", f"this system does not say where processes listen; {would}")
    return Finding("listens", f"{'nowhere yet' if processes(folder) else NEVER}; {would}")


# rules of a site ------------------------------------------------------------------------------------------------------
def _site_rules(file: Path) -> list[Finding]:
    findings = []
    try:
        policy = Policy.read(file)
        findings.append(Finding("policy", f"may leave: {', '.join(policy.allow) or 'nothing'}"))
        small = policy.min_class_count > 1
        hidden = f"min_class_count = {policy.min_class_count}"
        told = hidden if small else f"{hidden}: classes of a few patients are told; 5 would hide them"
        findings.append(Finding("policy", told, small))
        findings.append(Finding("policy", f"min_public_images = {policy.min_public_images}"))
        demand = SecureDemand.read(file)
        sums = f"secure_aggregation is {demand.secure_aggregation}, among {demand.secure_min_sites} sites or more"
        findings.append(Finding("secure sums", sums))
        limits = SiteLimits.read(file)
    except ConfigError as error:
        return [*findings, *(Finding("policy", line, False) for line in error.details or [error.what])]
    findings += [Finding("limits", f"{key} = {_toml(value)}") for key, value in limits.model_dump().items()]
    if not limits.check_weights:
        findings.append(Finding("limits", "check_weights = false: crafted weights are not noticed", False))
    if not limits.update_noise and read_budget(file) is None:
        findings.append(Finding("limits", NO_NOISE, False))
    return findings


def _toml(value: float) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}"


def _log(folder: Path) -> list[Finding]:
    """Whether the log of what left is whole; and what the site noted for its own people."""
    log = DisclosureLog(folder / LOG_FILE)
    try:
        problems = log.verify()
    except CrosswardError as error:
        problems = [error.what]
    findings = [Finding("log", f"{LOG_FILE}: {problem}", False) for problem in problems]
    if not findings:
        lines = log.file.read_bytes().count(b"\n") if log.file.exists() else 0
        findings.append(Finding("log", f"{LOG_FILE}: {lines} lines, all as they were written"))
    notes = folder / NOTES_FILE
    if notes.exists():
        all_lines = notes.read_text().splitlines()
        alarms = [line for line in all_lines if SUSPICIOUS in line]
        findings += [Finding("weights", f"{NOTES_FILE}: {line}", False) for line in alarms[-SHOWN_NOTES:]]
        lines_of_notes = [line for line in all_lines if line not in alarms]
        shared = [line for line in lines_of_notes if NO_SHARED_IMAGE not in line]
        findings += [Finding("public set", f"{NOTES_FILE}: {line}") for line in shared[-SHOWN_NOTES:]]
        if lines_of_notes and lines_of_notes[-1] in shared:
            findings.append(Finding("public set", SHARED_WARNING, False))
    return findings
