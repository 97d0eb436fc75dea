"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ConfigFile = Annotated[Path, typer.Argument(metavar="FILE", help="A configuration in TOML.")]
RunFolder = Annotated[Path, typer.Argument(metavar="DIR", help="A run directory.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="A.B=C", help="Override a setting; may be repeated.")
]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Print nothing but errors and the result's folder.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON lines, for programs.")]
