"""The command `crossward`: its groups of commands, how it reports errors, and its exit codes.

Every module here defines the commands of one group. To add a command, write one function with `@app.command()` in the
module of its group: its signature holds the options, its docstring is the help. To add a group, write a module with a
`typer.Typer` and add one line below. Import torch, and what imports it, inside the functions: `crossward --help` and
the lists must start at once.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from crossward import __version__
from crossward.cli import (
    audit,
    catalogue,
    comparison,
    concepts,
    dashboard,
    data,
    demo,
    hospitals,
    predict,
    report,
    run_list,
    runs,
    study,
    table,
    verify,
)
from crossward.cli.reading_progress import show_reading
from crossward.errors import CrosswardError, StorageError

BROKEN_PIPE = 141  # the exit code of shells: 128 + SIGPIPE

app = typer.Typer(
    help="Federated learning for medical imaging between hospitals that differ.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for group in (runs, demo, catalogue, concepts, predict, comparison, table, report, audit, dashboard, verify):
    app.add_typer(group.app)
app.add_typer(data.app, name="data")
app.add_typer(run_list.app, name="runs")
app.add_typer(study.app, name="study")
app.add_typer(hospitals.federation, name="federation")
app.add_typer(hospitals.coordinator, name="coordinator")
app.add_typer(hospitals.site, name="site")


@app.callback(invoke_without_command=True)
def crossward(version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False) -> None:
    if version:
        typer.echo(f"crossward {__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command. A mistake ends in a message without a traceback, and in an exit code that scripts can use.

    0 done; 1 a defect of crossward; 2 configuration or command; 3 data; 4 the run could not go on; 5 storage;
    6 a receipt is wrong, or a reply against the policy; 130 interrupted.
    """
    try:
        with show_reading():
            app(standalone_mode=True)
    except CrosswardError as error:
        _print_error(error)
        sys.exit(error.exit_code)
    except BrokenPipeError:  # the reader of our output has ended, as `head` does
        sys.exit(BROKEN_PIPE)
    except OSError as error:
        typer.secho(f"Error: {error.filename or 'a file'}: {error.strerror or error}", fg="red", bold=True, err=True)
        sys.exit(StorageError.exit_code)


def _print_error(error: CrosswardError) -> None:
    first, *rest = str(error).split("\n")
    typer.secho(f"Error: {first}", fg="red", bold=True, err=True)
    for line in rest:
        typer.echo(line, err=True)


if __name__ == "__main__":
    main()
