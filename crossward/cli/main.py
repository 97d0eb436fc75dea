"""The command line. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from crossward import __version__
from crossward.cli import hospitals
from crossward.errors import CrosswardError, StorageError

app = typer.Typer(
    help="Federated learning for medical imaging between hospitals that differ.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(help="Look at data and share it out among sites.", no_args_is_help=True)
app.add_typer(data_app, name="data")
app.add_typer(hospitals.federation, name="federation")
app.add_typer(hospitals.coordinator, name="coordinator")
app.add_typer(hospitals.site, name="site")

Sets = Annotated[list[str] | None, typer.Option("--set", metavar="A.B=C", help="Override a setting; may be repeated.")]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Print nothing but errors and the result's folder.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON lines, for programs.")]
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="A run directory.")]
File = Annotated[Path, typer.Argument(metavar="FILE", help="A configuration in TOML.")]


@app.callback(invoke_without_command=True)
def crossward(version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False) -> None:
    if version:
        typer.echo(f"crossward {__version__}")
        raise typer.Exit


@app.command()
def run(
    file: File,
    sets: Sets = None,
    engine: Annotated[str | None, typer.Option(help="local, pool, or flower-sim: Flower's simulation on Ray.")] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run a configuration."""
    from crossward.cli.runs import run_file

    run_file(file, sets or [], quiet=quiet, as_json=as_json, engine=engine)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where the run directories go.")] = Path("runs"),
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds of each method.")] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Compare the methods on the embedded phantom hospitals, in a few minutes."""
    from crossward.cli.demo import show

    show(out, rounds, quiet=quiet, as_json=as_json)


@app.command()
def resume(folder: Folder, sets: Sets = None, quiet: Quiet = False, as_json: Json = False) -> None:
    """Go on with an interrupted run, to the same result as if nothing had happened."""
    from crossward.cli.runs import resume_folder

    resume_folder(folder, sets or [], quiet=quiet, as_json=as_json)


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(help="One method or plugin, in full.")] = None, as_json: Json = False
) -> None:
    """List the methods and plugins, or describe one: citation, options, what it sends."""
    from crossward.cli.catalogues import list_methods, show_method

    if name is None:
        list_methods(as_json)
    else:
        show_method(name, as_json)


@app.command()
def nets(
    table: Annotated[bool, typer.Option("--table", help="Count parameters and FLOPs (takes seconds).")] = False,
    size: Annotated[int, typer.Option(min=1, help="Pixels, for --table.")] = 64,
    channels: Annotated[int, typer.Option(min=1, help="For --table.")] = 3,
    classes: Annotated[int | None, typer.Option(min=2, help="For --table; default: 8, in segmentation 2.")] = None,
    as_json: Json = False,
) -> None:
    """List the networks and their options, or with --table what each of them costs."""
    from crossward.cli.catalogues import list_nets, price_nets

    if table:
        price_nets(channels, classes, size, as_json)
    else:
        list_nets(as_json)


@app.command()
def concepts(
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="A known list of classes, or a TOML file.")],
    sets: Sets = None,
    as_json: Json = False,
) -> None:
    """Show what a language model makes of the classes of a dataset: prompts, similarities, what to look into."""
    from crossward.cli.concepts import show

    show(dataset, sets or [], as_json=as_json)


@data_app.command("list")
def data_list(as_json: Json = False) -> None:
    """List the sources of images, and the partitions stored by name."""
    from crossward.cli.catalogues import list_data

    list_data(as_json)


@data_app.command("inspect")
def data_inspect(file: File, sets: Sets = None, as_json: Json = False) -> None:
    """Show who holds what: images of each class at each site, and what deserves a second look."""
    from crossward.cli.runs import inspect

    inspect(file, sets or [], as_json=as_json)


@data_app.command("split")
def data_split(
    file: File,
    out: Annotated[Path, typer.Option("--out", "-o", help="The manifest to write, for partition.file.")],
    sets: Sets = None,
) -> None:
    """Share the configured images out among sites and store that as a manifest."""
    from crossward.cli.runs import split

    split(file, out, sets or [])


Site = Annotated[str | None, typer.Option(help="Whose network, when each site has its own.")]
Which = Annotated[str, typer.Option(help="'best' on validation, or 'last'.")]


@app.command()
def predict(
    folder: Folder,
    images: Annotated[list[Path], typer.Argument(metavar="IMAGES…", help="Image files, or folders of them.")],
    site: Site = None,
    which: Which = "best",
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The CSV to write; default: standard output.")] = None,
    masks: Annotated[Path | None, typer.Option(help="Segmentation: a folder for the masks, as PNG.")] = None,
) -> None:
    """Predict images with a trained network: a CSV of probabilities."""
    from crossward.cli.runs import predict_images

    predict_images(folder, images, site, which, out, masks)


@app.command()
def reach(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN…", help="Run directories, of several seeds if any.")],
    reference: Annotated[str, typer.Option(help="The method that the others are compared with.")],
    target: Annotated[
        str | None, typer.Option(help="0.66, or the method whose end is the target; default: the reference's end.")
    ] = None,
    metric: Annotated[str | None, typer.Option(help="Default: the task's main metric.")] = None,
    view: Annotated[str, typer.Option(help="'global', one set for all, or 'local', the sites' own.")] = "global",
    split: Annotated[str, typer.Option(help="'test' or 'val'.")] = "test",
    window: Annotated[int, typer.Option(min=1, help="Take means over so many evaluated rounds.")] = 1,
    last: Annotated[int | None, typer.Option(min=1, help="Rounds that are a method's end; default: --window.")] = None,
    as_json: Json = False,
) -> None:
    """Compare the rounds and the parameters that methods need to reach a target."""
    from crossward.cli.runs import compare_reach

    asked = {"reference": reference, "target": target, "metric": metric, "view": view, "split": split}
    compare_reach(folders, asked | {"window": window, "last": last}, as_json=as_json)


@app.command()
def join(
    folder: Folder,
    site: Annotated[str, typer.Option(help="A site that the run left out, or the TOML file of a newcomer.")],
    sets: Sets = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Let a new hospital join a finished federation: what it gains over training alone."""
    from crossward.cli.runs import join_run

    join_run(folder, site, sets or [], quiet=quiet, as_json=as_json)


@app.command()
def export(
    folder: Folder,
    to: Annotated[str, typer.Option("--to", help="The format: onnx.")] = "onnx",
    site: Site = None,
    which: Which = "best",
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The file to write.")] = None,
) -> None:
    """Write a trained network in a format that other programs run."""
    from crossward.runs.export import export_network

    export_network(folder, to, site, which, out)


def main() -> None:
    """Errors for people: no traceback for a mistake, and an exit code that scripts can use.

    0 done; 1 a defect of crossward; 2 configuration or command; 3 data; 4 the run could not go on; 5 storage;
    130 interrupted.
    """
    try:
        app(standalone_mode=True)
    except CrosswardError as error:
        _complain(error)
        sys.exit(error.exit_code)
    except BrokenPipeError:  # whoever read our output has gone, as `head` does
        sys.exit(141)
    except OSError as error:
        typer.secho(f"Error: {error.filename or 'a file'}: {error.strerror or error}", fg="red", bold=True, err=True)
        sys.exit(StorageError.exit_code)


def _complain(error: CrosswardError) -> None:
    first, *rest = str(error).split("\n")
    typer.secho(f"Error: {first}", fg="red", bold=True, err=True)
    for line in rest:
        typer.echo(line, err=True)


if __name__ == "__main__":
    main()
