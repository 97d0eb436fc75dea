"""Commands that list what there is to choose from: methods, nets. Torch is imported only to count what nets cost."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Literal

import typer
from rich.console import Console

from crossward.cli.method_privacy import markdown_table, privacy_of_methods
from crossward.cli.options import Json
from crossward.cli.output import print_json, print_line
from crossward.cli.tables import methods_table, net_costs_table, nets_table, options_table, plugins_table
from crossward.config.describe import Description, describe
from crossward.errors import ConfigError
from crossward.methods import METHODS
from crossward.names import nearest
from crossward.nets import NETS
from crossward.plugins import PLUGINS
from crossward.privacy.method_support import CONDITIONS, class_refusal
from crossward.privacy.secure_methods import secure_service

app = typer.Typer()


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(help="One method or plugin, in full.")] = None,
    table: Annotated[
        Literal["privacy"] | None,
        typer.Option(help="A table over all methods, in Markdown: what sites send, and what protects it."),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the methods and plugins, or describe one: citation, options, what it sends."""
    if table is not None:
        _print_privacy_table(name, as_json)
    elif name is None:
        _list_methods(as_json)
    else:
        _show_method(name, as_json)


def _list_methods(as_json: bool) -> None:
    method_descriptions = [describe(name, *location) for name, location in METHODS.items()]
    plugin_descriptions = [describe(name, *location) for name, location in PLUGINS.items()]
    if as_json:
        rows = [{"kind": "method", **description.document()} for description in method_descriptions]
        rows += [{"kind": "plugin", **description.document()} for description in plugin_descriptions]
        print_json(rows, indent=1)
        return
    console = Console()
    console.print(methods_table(method_descriptions))
    console.print(plugins_table(plugin_descriptions))


def _print_privacy_table(name: str | None, as_json: bool) -> None:
    if name is not None:
        raise ConfigError(f"--table is about all methods, not about {name!r} alone", hint="Leave one of them out.")
    rows = privacy_of_methods()
    if as_json:
        print_json([row.document() for row in rows], indent=1)
    else:
        print_line(markdown_table(rows))


def _show_method(name: str, as_json: bool) -> None:
    catalogue = METHODS | PLUGINS
    if name not in catalogue:
        raise ConfigError(f"there is no method or plugin {name!r}", hint=nearest(name, catalogue))
    description = describe(name, *catalogue[name])
    if as_json:
        service = {"secure_aggregation": _secure_words(description)} if name in METHODS else {}
        print_json(description.document() | service, indent=1)
    else:
        _print_description(description, is_method=name in METHODS)


def _print_description(description: Description, *, is_method: bool) -> None:
    console = Console()
    console.print(f"[bold]{description.name}[/]\n")
    console.print(description.docstring, markup=False, highlight=False)
    console.print(options_table(description.options))
    if is_method:
        console.print(f"A site sends: {description.sent_items()}.", highlight=False)
        console.print("\n".join([*description.made_of(), *description.protection()]), highlight=False)
        console.print(_privacy_words(description), highlight=False)
        console.print(_secure_words(description), highlight=False)
    console.print(f"Tasks: {', '.join(description.facts['tasks'])}.", highlight=False)
    recipe = description.facts.get("recipe")
    if recipe:
        settings = ", ".join(f"{key} = {value}" for key, value in recipe.items())
        console.print(f'Its paper trains with (\\[train] recipe = "paper"): {settings}.', highlight=False)


def _privacy_words(description: Description) -> str:
    """Which units differential privacy can protect with this method, and why not the others."""
    path = ".".join(METHODS[description.name]).removeprefix("crossward.")
    steps = description.facts["steps"]
    image = class_refusal(path, description.sent, steps, "image")
    site = class_refusal(path, description.sent, steps, "site")
    condition = f", {CONDITIONS[path]}" if path in CONDITIONS else ""
    by_image = f"Noise can protect images or patients{condition}."
    if image:
        by_image = f"Noise cannot protect images or patients: {image}."
    by_site = f"Noise cannot protect a site as a whole: {site}." if site else "Noise can protect a site as a whole."
    return by_image if image == site else f"{by_image}\n{by_site}"


def _secure_words(description: Description) -> str:
    facts = description.facts
    return secure_service(facts["server_needs"], description.sent, facts["sometimes"])


@app.command()
def nets(
    table: Annotated[bool, typer.Option("--table", help="Count parameters and FLOPs (takes seconds).")] = False,
    size: Annotated[int, typer.Option(min=1, help="Pixels, for --table.")] = 64,
    channels: Annotated[int, typer.Option(min=1, help="For --table.")] = 3,
    classes: Annotated[int | None, typer.Option(min=2, help="For --table; default: 8, in segmentation 2.")] = None,
    as_json: Json = False,
) -> None:
    """List the networks and their options, or with --table what each of them costs."""
    if table:
        _show_costs(channels, classes, size, as_json)
        return
    if not as_json:
        Console().print(nets_table(NETS))
        return
    rows = [
        {"name": name, "task": net.task, "description": net.description, "options": dict(net.options)}
        for name, net in NETS.items()
    ]
    print_json(rows, indent=1)


def _show_costs(channels: int, classes: int | None, size: int, as_json: bool) -> None:
    from crossward.comparison.net_costs import TASKS, net_costs

    sections = [net_costs(task, channels=channels, classes=classes, size=size) for task in TASKS]
    if as_json:
        print_json([asdict(cost) for costs in sections for cost in costs], indent=1)
        return
    console = Console()
    for costs in sections:
        console.print(net_costs_table(costs))
        for cost in costs:
            if cost.refused:
                console.print(f"{cost.name}: {cost.refused}", highlight=False, markup=False)
    console.print("GFLOPs: one image forward; a multiplication and an addition are two, where some papers count one.")
