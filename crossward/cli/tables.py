"""The tables that commands print. They show what they are given and compute nothing but the wording of a cell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from crossward.core.metric_sum import summed_metrics

if TYPE_CHECKING:
    from crossward.comparison.net_costs import NetCost
    from crossward.comparison.reach import CostToTarget, MethodCost
    from crossward.config.describe import Description, Option
    from crossward.data.federation import Federation
    from crossward.nets.catalogue import CatalogueNet

NOTHING = "—"
METRIC_NAMES = {
    "accuracy": "acc",
    "balanced_accuracy": "bACC",
    "auc": "bAUC",
    "precision": "prec",
    "f1": "F1",
    "dice": "Dice",
    "dice_positive": "Dice+",
    "false_positive_rate": "FP-",
    "iou": "IoU",
    "hd95": "HD95",
    "hd95_penalised": "HD95",
}


def results_table(rows: Sequence[Mapping[str, Any]], title: str) -> Table:
    """Rows of crossward.comparison.rows: test metrics, the worst site, the best round, traffic and time."""
    metrics = list(rows[0]["global"])
    main = rows[0]["main"]
    caption = (
        "Test sets, at the round that validation chose. Global: one set for all; local: the mean of the sites' own."
    )
    if "dice_positive" in metrics:
        caption += (
            " Dice+: of images with the class; FP-: images without it where some is predicted; HD95: in pixels, a class"
            " that is missed or invented costs the image's diagonal."
        )
    table = Table(
        title=title,
        title_justify="left",
        caption=caption,
        caption_justify="left",
        box=SIMPLE_HEAD,
        padding=0,
    )
    table.add_column("method", style="bold", no_wrap=True)
    for view in ("global", "local"):
        for name in metrics:
            table.add_column(f"{view}\n{METRIC_NAMES[name]}", justify="right")
    for heading in (f"worst\n{_short_name(main)}", "best\nround", "traffic", "time"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            row["method"],
            *(_metric(name, row[view][name]) for view in ("global", "local") for name in metrics),
            _metric(main, row["worst"]),
            str(row["best_round"] or NOTHING),
            "images" if row["pooled"] else _megabytes(row["bytes"]),
            f"{row['seconds']:.0f} s",
        )
    return table


def signed_change(name: str, change: float) -> str:
    """A change of a metric in the unit of the results table: F1 +1.3."""
    return f"{METRIC_NAMES[name]} {_scale(name) * change:+.1f}"


def _short_name(metric: str) -> str:
    return "+".join(METRIC_NAMES.get(part, part) for part in summed_metrics(metric))


def _metric(name: str, value: float | None) -> str:
    return NOTHING if value is None else f"{_scale(name) * value:.1f}"


def _scale(name: str) -> int:
    """Metrics are shown in percent, distances in pixels."""
    return 1 if name.startswith("hd95") else 100


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count else NOTHING


def cost_to_target_table(result: CostToTarget) -> Table:
    from crossward.comparison.reach import UNBOUNDED

    spec = result.spec
    scale = 1 if spec.metric in UNBOUNDED else 100
    target = _spread([scale * target for target in result.targets], digits=2)
    end = f", the end of {result.target_of}" if result.target_of else ""
    title = f"Until {spec.metric} on {spec.split} ({spec.view} view) reached {target}{end}"
    caption = (
        "Sent by the server and all clients until then; M: millions of parameters, 4 bytes each. "
        f"×: multiples of {result.reference}, by runs of the same seed. Means are over the runs that reached it. "
        "Chosen: the metric in the round that validation chose."
    )
    table = Table(
        title=escape(title),
        title_justify="left",
        caption=escape(caption),
        caption_justify="left",
        box=SIMPLE_HEAD,
        padding=0,
    )
    table.add_column("method", style="bold", overflow="fold", min_width=10)
    for heading in ("reached", "rounds", "×", "M up", "M down", "M sent", "MiB", "×", "chosen"):
        table.add_column(heading, justify="right")
    for cost in result.costs:
        table.add_row(*_cost_cells(cost, scale))
    return table


def _cost_cells(cost: MethodCost, scale: int) -> list[str]:
    numbers = cost.numbers()
    rounds = _spread(numbers["rounds"], digits=1 if len(numbers["rounds"]) > 1 else 0)
    millions = {name: [count / 1e6 for count in numbers[name]] for name in ("up", "down", "parameters")}
    return [
        escape(cost.method),
        f"{cost.reached}/{len(cost.runs)}",
        rounds if cost.reached else "not reached",
        _spread(numbers["times_rounds"]),
        _spread(millions["up"]),
        _spread(millions["down"]),
        _spread(millions["parameters"]),
        _spread(numbers["mib"]),
        _spread(numbers["times_parameters"]),
        _spread([scale * value for value in numbers["best"]]),
    ]


def _spread(numbers: Sequence[float], digits: int | None = None) -> str:
    """Mean and deviation; by default, the larger the mean the fewer digits."""
    from crossward.comparison.reach import spread

    result = spread(numbers)
    if result is None:
        return NOTHING
    if digits is None:
        digits = _digits(result.mean)
    mean = f"{result.mean:.{digits}f}"
    return mean if result.std is None else f"{mean} ±{result.std:.{digits}f}"


def _digits(mean: float) -> int:
    if mean < 10:
        return 2
    return 1 if mean < 100 else 0


def methods_table(methods: Iterable[Description]) -> Table:
    table = _catalogue_table("Methods (more: crossward methods NAME)", "name", "what it is", "a site sends")
    for method in methods:
        table.add_row(method.name, method.title, method.sent_items())
    return table


def plugins_table(plugins: Iterable[Description]) -> Table:
    table = _catalogue_table("Plugins, as in method.name = 'fedavg+ft'", "name", "what it is", "options")
    for plugin in plugins:
        options = ", ".join(f"{option.name}={option.default}" for option in plugin.options)
        table.add_row(plugin.name, plugin.title, options)
    return table


def options_table(options: Iterable[Option]) -> Table:
    table = Table(title="\nOptions", title_justify="left")
    for heading in ("option", "kind", "default", "meaning"):
        table.add_column(heading, overflow="fold")
    for option in options:
        table.add_row(option.name, option.type, option.default, option.meaning)
    return table


def nets_table(nets: Mapping[str, CatalogueNet]) -> Table:
    table = _catalogue_table("Nets", "name", "task", "what it is", "options")
    for name, net in nets.items():
        options = ", ".join(f"{key}={value}" for key, value in net.options.items())
        table.add_row(name, net.task, net.description, options)
    return table


def net_costs_table(costs: Sequence[NetCost]) -> Table:
    """The costs of nets of one task, for images of one shape."""
    first = costs[0]
    title = f"{first.task.capitalize()}, {first.size} px, {first.channels} channels, {first.classes} classes"
    table = _catalogue_table(title, "net")
    for heading in ("parameters (M)", "GFLOPs"):
        table.add_column(heading, justify="right")
    for cost in costs:
        table.add_row(cost.name, _scaled(cost.parameters, 1e6), _scaled(cost.flops, 1e9))
    return table


def _scaled(count: int | None, unit: float) -> str:
    return "–" if count is None else f"{count / unit:.3f}"


def _catalogue_table(title: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        table.add_column(heading)
    return table


def sources_table(sources: Iterable[tuple[Sequence[str], str]]) -> Table:
    """Each row: the names of a source, and what it is."""
    table = Table(title="Sources, for data.source", title_justify="left")
    for heading in ("source", "what it is"):
        table.add_column(heading)
    for names, description in sources:
        table.add_row("\n".join(names), description)
    return table


def federation_table(federation: Federation) -> Table:
    """Images of each split at each site, and of its training images how many there are of each class."""
    collection = federation.collection
    height, width = collection.size
    unit = "pixels" if federation.task == "segmentation" else "images"
    title = f"{collection.name}: {len(collection)} images of {height}x{width}, training {unit} by class"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=0)
    table.add_column("site", style="bold", no_wrap=True)
    for heading in ("train", "val", "test", *federation.classes):  # a narrow screen cuts off on the right
        table.add_column(heading, justify="right", overflow="fold", min_width=5)
    sites = list(federation.sites)
    counts = federation.counts().tolist()
    if len(federation.server.test):
        sites.append(federation.server)
        counts.append([0] * federation.num_classes)
    for site, row in zip(sites, counts, strict=True):
        cells = [len(site.train), len(site.val), len(site.test), *row]
        table.add_row(site.name, *(str(count or "·") for count in cells))
    return table


def similarity_table(
    classes: Sequence[str], words: Sequence[str], similarity: Sequence[Sequence[float]], alike: float
) -> Table:
    """Cosines of each two classes; those above `alike` are marked. `words` are empty where the name says it all."""
    table = _cosine_table("Cosine of the class means")
    table.add_column("", justify="right", style="dim")
    table.add_column("class", style="bold", overflow="fold")
    if any(words):
        table.add_column("in words", overflow="fold")
    for number in range(1, len(classes) + 1):
        table.add_column(str(number), justify="right", no_wrap=True, min_width=4)
    for number, row in enumerate(similarity):
        names = [classes[number], words[number]] if any(words) else [classes[number]]
        cells = [_cosine(value, alike) for value in row]
        cells[number] = "·"
        table.add_row(str(number + 1), *map(escape, names), *cells)
    return table


def similar_pairs_table(pairs: Iterable[tuple[float, str, str]], title: str, alike: float) -> Table:
    """Cosine, class, class; cosines above `alike` are marked."""
    table = _cosine_table(title)
    for heading in ("class", "class"):
        table.add_column(heading, style="bold")
    table.add_column("cosine", justify="right")
    for cosine, one, other in pairs:
        table.add_row(escape(one), escape(other), _cosine(cosine, alike))
    return table


def _cosine_table(title: str) -> Table:
    return Table(title=f"\n{title}", title_justify="left", box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)


def _cosine(value: float, alike: float) -> str:
    return f"[yellow]{value:.2f}[/]" if value > alike else f"{value:.2f}"
