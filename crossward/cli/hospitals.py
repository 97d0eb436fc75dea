"""The commands for federations of real hospitals. Commands import what they need themselves, so that help is quick."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crossward.cli.federation_try import try_federation
from crossward.cli.options import Overrides
from crossward.cli.signals import exit_on_signals
from crossward.cli.verify import site_receipts

if TYPE_CHECKING:
    from crossward.hospitals.folder_report import Finding
    from crossward.hospitals.site_images import ImageCheck

federation = typer.Typer(help="A federation of real hospitals: set it up, run methods across it.", no_args_is_help=True)
coordinator = typer.Typer(help="The machine between the hospitals.", no_args_is_help=True)
site = typer.Typer(help="A hospital.", no_args_is_help=True)

federation.command("try")(try_federation)
site.command("receipts")(site_receipts)

Folder = Annotated[Path, typer.Argument(metavar="DIR")]
CoordinatorFolder = Annotated[Path, typer.Option("--coordinator", metavar="DIR", help="The coordinator's folder.")]
Insecure = Annotated[bool, typer.Option("--insecure", help="Without TLS and keys: on one machine only, for trying.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


@federation.command()
def init(
    folder: Folder,
    name: Annotated[str, typer.Option(help="Name of the federation.")],
    sites: Annotated[list[str], typer.Option("--site", help="Name of a hospital; repeat for each.")],
    host: Annotated[str, typer.Option(help="Name or address by which the hospitals reach the coordinator.")],
    port: Annotated[int, typer.Option(help="Port of the coordinator.")] = 9092,
    days: Annotated[int, typer.Option(help="Days that the coordinator's certificate is valid.")] = 365,
    encrypt_memory: Annotated[bool, typer.Option(help="Encrypt what sites remember between rounds.")] = False,
) -> None:
    """Make keys, certificates and a folder for each hospital and for the coordinator."""
    from crossward.hospitals.kit import create_federation

    kit = create_federation(
        folder, name=name, sites=sites, host=host, port=port, days=days, encrypt_memory=encrypt_memory
    )
    typer.echo(f"{kit.coordinator}: carry it to the coordinator, README.md says how to go on")
    for site_name in sites:
        typer.echo(f"{kit.site(site_name)}: carry it to {site_name}, and to nobody else")
    typer.echo(f"{kit.authority}: lock it away; it is needed only to renew the certificate")


@federation.command("add-site")
def add_site(folder: Folder, name: str, encrypt_memory: bool = False) -> None:
    """Add a hospital: make its folder, and its key for the coordinator."""
    from crossward.hospitals import kit as kits

    kit = kits.add_site(folder, name, encrypt_memory=encrypt_memory)
    typer.echo(f"{kit.site(name)}: carry it to {name}; and {kit.coordinator} to the coordinator, and start that anew")
    typer.echo(f"{kit.folder / 'peers.txt'}: send it to the other sites, which sum securely only with sites in theirs")


@federation.command()
def renew(folder: Folder, days: int = 365) -> None:
    """Make new certificates for the coordinator and for each site, from the same authority."""
    from crossward.hospitals.kit import renew_certificates

    for file in renew_certificates(folder, days):
        typer.echo(str(file))


@federation.command()
def run(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A configuration in TOML, as for any run.")],
    coordinator_folder: CoordinatorFolder,
    overrides: Overrides = None,
    name: Annotated[str | None, typer.Option(help="Name of the run.")] = None,
    deadline: Annotated[float, typer.Option(min=1, help="Seconds for a step at a site.")] = 3600.0,
    patience: Annotated[float, typer.Option(min=0, help="Seconds for a disconnected site to come back.")] = 120.0,
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait for the sites before round 1.")] = 600.0,
    least: Annotated[int | None, typer.Option(help="Sites that must have joined before round 1; default: all.")] = None,
    own_data: Annotated[bool, typer.Option(help="The images of [data] that belong to no site are here.")] = False,
    public: Annotated[
        Path | None, typer.Option(help="Images that everyone may see, for methods that need a public set.")
    ] = None,
    detach: Annotated[bool, typer.Option(help="Do not wait until the run ends.")] = False,
    insecure: Insecure = False,
) -> None:
    """Run a configuration across the hospitals; Ctrl-C stops watching, not the run."""
    from crossward.hospitals.flower.federation_runs import RunOptions, follow_run, start_run

    options = RunOptions(
        name=name,
        deadline=deadline,
        patience=patience,
        wait=wait,
        least=least,
        own_data=own_data,
        public=public,
        insecure=insecure,
    )
    run_folder = start_run(file, coordinator_folder, overrides or [], options)
    if not detach:
        try:
            follow_run(run_folder, typer.echo)
        except KeyboardInterrupt:
            command = f"crossward federation status --coordinator {coordinator_folder}"
            typer.echo(f"It goes on; see `{command}`.", err=True)
            raise SystemExit(130) from None
    typer.echo(str(run_folder))


@federation.command()
def status(
    coordinator_folder: CoordinatorFolder,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on showing what happens, until Ctrl-C.")] = False,
    insecure: Insecure = False,
    as_json: Json = False,
) -> None:
    """Show whether the coordinator is up, which sites are connected, and how every run stands: who does what since
    when, who is waited for, who was left out and why."""
    from crossward.hospitals.flower.federation_status import federation_status, follow_federation, status_lines

    overview = federation_status(coordinator_folder)
    if as_json:
        typer.echo(json.dumps(overview))
        return
    for line in status_lines(overview, coordinator_folder):
        typer.echo(line)
    if follow:
        with suppress(KeyboardInterrupt):
            follow_federation(coordinator_folder, typer.echo, time.sleep)


@federation.command()
def stop(name: str, coordinator_folder: CoordinatorFolder, insecure: Insecure = False) -> None:
    """End a run for good; what it has computed stays."""
    from crossward.hospitals.flower.federation_runs import stop_run

    typer.echo(str(stop_run(coordinator_folder, name, insecure=insecure)))


@coordinator.command("up")
def coordinator_up(folder: Folder, insecure: Insecure = False) -> None:
    """Start the coordinator and resume interrupted runs. Ctrl-C ends it."""
    from crossward.hospitals.flower.coordinator_up import running_coordinator
    from crossward.hospitals.flower.processes import supervise

    _warn_if_insecure(insecure)
    exit_on_signals()
    with running_coordinator(folder, insecure=insecure, say=typer.echo) as check:
        typer.echo("the coordinator is up")
        supervise(check)


@coordinator.command("check")
def coordinator_check(folder: Folder, as_json: Json = False) -> None:
    """Show what listens where, keys, certificates, file modes and limits. Exit code 2 if anything is not in order."""
    from crossward.hospitals.folder_report import coordinator_report

    _print_report(coordinator_report(folder), as_json)


@site.command("check")
def site_check(folder: Folder, as_json: Json = False) -> None:
    """Show what listens where, keys, certificates, file modes, limits, what may leave, and whether the log of what left
    is whole. Exit code 2 if anything is not in order. (`site up --check` looks at the images.)"""
    from crossward.hospitals.folder_report import site_report

    _print_report(site_report(folder), as_json)


@site.command("verify")
def site_verify(
    folder: Folder,
    receipt: Annotated[
        str | None, typer.Option(metavar="TAG", help="A tag that the coordinator has of this log: is it there?")
    ] = None,
    as_json: Json = False,
) -> None:
    """Check that the log of all that left this hospital is as it was written. Exit code 2, and the first bad line, if
    it is not."""
    from crossward.hospitals.disclosure_log import LOG_FILE, DisclosureLog
    from crossward.hospitals.kit import read_site

    log = DisclosureLog(read_site(folder).folder / LOG_FILE)
    problems = log.verify()
    if receipt is not None and not log.has_tag(receipt):
        problems.append("the end: the line of which the coordinator has this tag is not in the log")
    if as_json:
        typer.echo(json.dumps({"in_order": not problems, "problems": problems}))
    elif problems:
        typer.echo("\n".join(problems))
    else:
        typer.echo(f"{log.file}: every line is as it was written")
    if problems:
        raise typer.Exit(2)


@site.command("up")
def site_up(
    folder: Folder,
    data: Annotated[Path | None, typer.Option(help="A folder of images by class, a .csv or an .npz file.")] = None,
    check_only: Annotated[bool, typer.Option("--check", help="Check the images and stop.")] = False,
    insecure: Insecure = False,
) -> None:
    """Check this hospital's images, then take part in the federation. Ctrl-C ends it."""
    from crossward.hospitals.flower.processes import supervise
    from crossward.hospitals.flower.site_up import run_check, running_site
    from crossward.hospitals.kit import read_site
    from crossward.hospitals.site_images import check_images, site_settings

    if check_only:
        _print_images(check_images(site_settings(read_site(folder), data)))
        return
    exit_code = run_check(folder, data)  # it prints what is wrong
    if exit_code:
        raise typer.Exit(exit_code)
    settings = site_settings(read_site(folder, with_rules=False), data)
    _warn_if_insecure(insecure)
    exit_on_signals()
    with running_site(folder, settings, insecure=insecure, say=typer.echo) as check:
        typer.echo("the site is up")
        supervise(check)


def _print_images(images: ImageCheck) -> None:
    counts = ", ".join(f"{name} {count}" for name, count in zip(images.classes, images.counts, strict=True))
    typer.echo(f"{images.images} images: {counts}")
    for file in images.left_out:
        typer.echo(f"left out: {file}")
    for note in images.notes:
        typer.echo(f"note: {note}")


def _print_report(report: Sequence[Finding], as_json: bool) -> None:
    """Print a report, as text or JSON; exit code 2 if anything in it is not in order."""
    in_order = all(finding.in_order for finding in report)
    if as_json:
        findings = [vars(finding) for finding in report]
        typer.echo(json.dumps({"in_order": in_order, "findings": findings}))
    else:
        for subject in dict.fromkeys(finding.subject for finding in report):
            typer.echo(subject)
            for finding in report:
                if finding.subject == subject:
                    mark = "ok" if finding.in_order else "NOT IN ORDER"
                    typer.secho(f"  {mark}: {finding.text}", fg=None if finding.in_order else "red")
        typer.echo("all in order" if in_order else "not in order: see above")
    if not in_order:
        raise typer.Exit(2)


def _warn_if_insecure(insecure: bool) -> None:
    if insecure:
        typer.echo("WARNING: without TLS and keys, whoever reaches this port can read and join.", err=True)
