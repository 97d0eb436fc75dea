"""The commands across real hospitals. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Annotated, Any

import typer

federation = typer.Typer(help="A federation of real hospitals: set it up, run methods across it.", no_args_is_help=True)
coordinator = typer.Typer(help="The machine between the hospitals.", no_args_is_help=True)
site = typer.Typer(help="A hospital.", no_args_is_help=True)

Dir = Annotated[Path, typer.Argument(metavar="DIR")]
Center = Annotated[Path, typer.Option("--coordinator", metavar="DIR", help="The coordinator's folder.")]
Insecure = Annotated[bool, typer.Option("--insecure", help="Without TLS and keys: on one machine only, for trying.")]
Sets = Annotated[list[str] | None, typer.Option("--set", metavar="A.B=C", help="Override a setting; may be repeated.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


@federation.command()
def init(
    folder: Dir,
    name: Annotated[str, typer.Option(help="Of the federation.")],
    sites: Annotated[list[str], typer.Option("--site", help="A hospital; repeated for each.")],
    host: Annotated[str, typer.Option(help="Name or address by which the hospitals reach the coordinator.")],
    port: Annotated[int, typer.Option(help="Of the coordinator.")] = 9092,
    days: Annotated[int, typer.Option(help="That the coordinator's certificate is valid.")] = 365,
    encrypt_memory: Annotated[bool, typer.Option(help="What sites remember between rounds is encrypted.")] = False,
) -> None:
    """Make keys, certificates and a folder for each hospital and for the coordinator."""
    from crossward.hospitals import kit

    made = kit.init(folder, name=name, sites=sites, host=host, port=port, days=days, encrypt_memory=encrypt_memory)
    typer.echo(f"{made.coordinator}: carry it to the coordinator, README.md says how to go on")
    for each in sites:
        typer.echo(f"{made.site(each)}: carry it to {each}, and to nobody else")
    typer.echo(f"{made.authority}: lock it away; it is needed only to renew the certificate")


@federation.command("add-site")
def add_site(folder: Dir, name: str, encrypt_memory: bool = False) -> None:
    """A further hospital: its folder, and its key for the coordinator."""
    from crossward.hospitals import kit

    made = kit.add_site(folder, name, encrypt_memory=encrypt_memory)
    typer.echo(f"{made.site(name)}: carry it to {name}; and {made.coordinator} to the coordinator, and start that anew")


@federation.command()
def renew(folder: Dir, days: int = 365) -> None:
    """A new certificate for the coordinator, from the same authority: sites need nothing."""
    from crossward.hospitals import certificates, kit

    made = kit.read_kit(folder)
    typer.echo(str(certificates.renew(made.coordinator, made.authority, days)))


@federation.command()
def run(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A configuration in TOML, as for any run.")],
    center: Center,
    sets: Sets = None,
    name: Annotated[str | None, typer.Option(help="Of the run.")] = None,
    deadline: Annotated[float, typer.Option(min=1, help="Seconds for a step at a site.")] = 3600.0,
    patience: Annotated[float, typer.Option(min=0, help="Seconds for a site that has gone to come back.")] = 120.0,
    wait: Annotated[float, typer.Option(min=0, help="Seconds for the sites to come before round 1.")] = 600.0,
    least: Annotated[int | None, typer.Option(help="Sites without which it does not begin; all, if not given.")] = None,
    own_data: Annotated[bool, typer.Option(help="The images of [data] that no site owns are here.")] = False,
    public: Annotated[
        Path | None, typer.Option(help="Images that everybody may see, for methods that want some.")
    ] = None,
    detach: Annotated[bool, typer.Option(help="Do not wait for its end.")] = False,
    insecure: Insecure = False,
) -> None:
    """Run a configuration across the hospitals; Ctrl-C stops watching, not the run."""
    from crossward.hospitals.flower.federation_runs import Asked, begin, follow

    asked = Asked(name, deadline, patience, wait, least, own_data, public, insecure)
    started = begin(file, center, sets or [], asked)
    if not detach:
        try:
            follow(started, typer.echo)
        except KeyboardInterrupt:
            typer.echo(f"It goes on; see `crossward federation status --coordinator {center}`.", err=True)
            raise SystemExit(130) from None
    typer.echo(str(started))


@federation.command()
def status(center: Center, insecure: Insecure = False, as_json: Json = False) -> None:
    """Who is connected, and how every run stands."""
    from crossward.hospitals.flower import federation_runs as runs

    told = runs.overview(center, insecure=insecure)
    if as_json:
        typer.echo(json.dumps(told))
        return
    online = "the coordinator is not up" if told["online"] is None else f"{told['online']} connected"
    typer.echo(f"{told['federation']}: {len(told['sites'])} sites ({', '.join(told['sites'])}), {online}")
    for each in told["runs"]:
        typer.echo(f"  {each['run']}: {each['status']}, {each['rounds']} rounds, {each['faults']} faults")
        if each["last_fault"]:
            typer.echo(f"    {each['last_fault']}")


@federation.command()
def stop(name: str, center: Center, insecure: Insecure = False) -> None:
    """End a run for good; what it has computed stays."""
    from crossward.hospitals.flower import federation_runs as runs

    typer.echo(str(runs.stop(center, name, insecure=insecure)))


@coordinator.command("up")
def coordinator_up(folder: Dir, insecure: Insecure = False) -> None:
    """Start the coordinator; runs that were cut off go on. Ctrl-C ends it."""
    from crossward.hospitals.flower import coordinator_up as up
    from crossward.hospitals.flower.processes import look_after

    _warn(insecure)
    _end_by_signal()
    with up.coordinator_up(folder, insecure=insecure, say=typer.echo) as look:
        typer.echo("the coordinator is up")
        look_after(look)


@site.command("up")
def site_up(
    folder: Dir,
    data: Annotated[Path | None, typer.Option(help="A folder of images by class, a .csv or an .npz file.")] = None,
    check_only: Annotated[bool, typer.Option("--check", help="Look at the images and stop.")] = False,
    insecure: Insecure = False,
) -> None:
    """Look at this hospital's images, then take part in the federation. Ctrl-C ends it."""
    from crossward.hospitals.flower import site_up as up
    from crossward.hospitals.flower.processes import look_after
    from crossward.hospitals.kit import read_site

    own = up.own_settings(read_site(folder), data)
    seen = up.checked_data(own)
    typer.echo(f"{seen.images} images: {', '.join(f'{c} {n}' for c, n in zip(seen.classes, seen.counts, strict=True))}")
    for file in seen.left_out:
        typer.echo(f"left out: {file}")
    if check_only:
        return
    _warn(insecure)
    _end_by_signal()
    with up.site_up(folder, own, insecure=insecure, say=typer.echo) as look:
        typer.echo("the site is up")
        look_after(look)


def _warn(insecure: bool) -> None:
    if insecure:
        typer.echo("WARNING: without TLS and keys, whoever reaches this port can read and join.", err=True)


def _end_by_signal() -> None:
    """SIGTERM, as systemd and docker send it, ends a command as Ctrl-C does: everything it started is stopped."""

    def end(number: int, frame: Any) -> None:
        raise SystemExit(0)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
