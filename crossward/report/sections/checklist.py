"""Checklist and model card: what the runs know of the items of CLAIM 2024 and TRIPOD+AI, and what authors must supply.

A fact is stated only if a run directory says it. Everything else reads "the authors must supply".
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from crossward.report.content import (
    Block,
    Cell,
    Column,
    DataTable,
    Details,
    Figure,
    Link,
    MethodName,
    Prose,
    Section,
    Tab,
    Tabs,
    Text,
    Verdict,
    shown,
)
from crossward.report.reporting_items import CLAIM, CLAIM_ADDRESS, TRIPOD, TRIPOD_ADDRESS, Item
from crossward.report.source import ReportRun, ReportSource
from crossward.report.wording import counted, listed, metric_name
from crossward.runs.protection import run_protection

SUPPLY = "the authors must supply"
KNOWN = "from the runs"
FEW_IMAGES = 100  # test images below which a hospital's figures are called unsure
FEW_SEEDS = 3
MOST_NAMED = 6


def checklist_section(source: ReportSource) -> Section:
    facts = run_facts(source)
    tabs = (
        Tab("Model card", tuple(_model_card(source, facts))),
        Tab("CLAIM 2024", tuple(_checklist("claim", "CLAIM 2024", CLAIM_ADDRESS, CLAIM, facts))),
        Tab("TRIPOD+AI", tuple(_checklist("tripod", "TRIPOD+AI", TRIPOD_ADDRESS, TRIPOD, facts))),
    )
    lead = "What the runs know is filled in; the rest is for the authors. Nothing here is invented."
    return Section(
        "checklist", "Checklist and model card", (Tabs("checklists", "Checklist", tabs),), (lead,), "Checklist"
    )


def _checklist(id: str, name: str, address: str, items: Sequence[Item], facts: dict[str, str]) -> list[Block]:
    rows: list[tuple[Cell, ...]] = []
    for item in items:
        fact = facts.get(item.fact, "")
        rows.append((item.number, item.part, item.name, Verdict(KNOWN) if fact else Verdict(SUPPLY), fact or "–"))
    known = sum(bool(facts.get(item.fact)) for item in items)
    columns = (
        Column("item"),
        Column("part", wide_only=True),
        Column("what"),
        Column("who answers", "verdict"),
        Column("answer"),
    )
    foot = f"{known} of {len(items)} items can be answered in part or whole from the runs. Short names are ours."
    text: Text = ("The guideline: ", Link(name, address), ".")
    return [Prose(text), DataTable(id, columns, tuple(rows), footnote=foot, sortable=False)]


# what runs know -------------------------------------------------------------------------------------------------------
def run_facts(source: ReportSource) -> dict[str, str]:
    """Fact -> a sentence that run directories bear. A fact that they do not bear is not there."""
    run = next((run for run in source.runs if not run.about.get("pooled")), source.runs[0])
    facts = _data_facts(run) | _model_facts(source, run) | _evaluation_facts(source, run)
    return {name: words for name, words in facts.items() if words}


def _data_facts(run: ReportRun) -> dict[str, str]:
    config = run.result.config
    data, partition = config["data"], config.get("partition", {})
    recipe = run.partition.get("recipe", {})
    sites = run.partition["sites"]
    sizes = {part: sum(len(parts.get(part, ())) for parts in sites.values()) for part in ("train", "val", "test")}
    size = " × ".join(map(str, run.about.get("images", {}).get("size", ())))
    prepared = [f"resized to {size} pixels"] if size else []
    prepared += [f"prepared by {', '.join(map(str, data['prepare']))}"] if data.get("prepare") else []
    prepared += [f"normalised by {data['normalise']}"] if data.get("normalise") else []
    augment = data.get("augment") or []
    prepared.append(f"augmented by {', '.join(map(str, augment))}" if augment else "not augmented")
    left = (run.result.folder / "quarantine.json").is_file()
    grouped = recipe.get("group_aware")
    return {
        "sources": shown(f"{run.partition['collection']['name']} (source {data['source']})", 200)
        + f", fingerprint {str(run.partition['collection']['fingerprint'])[:12]}",
        "centres": f"{counted(len(sites), 'site')}; their locations {SUPPLY}",
        "preprocessing": shown("; ".join(prepared), 300),
        "predictors": shown(f"the pixels of an image, {size}", 100) if size else "",
        "subsets": f"training was limited to {partition['limit']} images" if partition.get("limit") else "",
        "missing": _unread(run, left),
        "partitions": shown(f"{recipe.get('partition', partition.get('kind'))} among {len(sites)} sites", 100)
        + f": {sizes['train']:,} training, {sizes['val']:,} validation, {sizes['test']:,} test images",
        "disjoint": {
            True: "patients, where the data name them, otherwise images; checked by the leakage audit",
            False: "images: patients may be on both sides (group_aware = false)",
        }.get(grouped, ""),
        "included": f"{sum(sizes.values()):,} images at {counted(len(sites), 'site')}; excluded before: {SUPPLY}",
    }


def _unread(run: ReportRun, left_out: bool) -> str:
    if left_out:
        return "files that could not be read were left out (see Data)"
    return "" if run.result.across_hospitals else "every file could be read"


def _model_facts(source: ReportSource, run: ReportRun) -> dict[str, str]:
    config = run.result.config
    train = config["train"]
    nets = sorted({str(net.get("name")) for each in source.runs for net in _nets(each)})
    started = any(net.get("options", {}).get("start") for each in source.runs for net in _nets(each))
    rate = f"{train['optimizer']}, learning rate {train['lr']:g}, batches of {train['batch_size']}"
    select = config["evaluate"].get("select") or run.about["task"]["main"]
    labels = list(source.labels)
    return {
        "model": shown(f"{listed(nets, MOST_NAMED)}, by {listed(labels, MOST_NAMED)}", 300) + " (see Method)",
        "software": f"Crossward {shown(run.about.get('crossward', ''), 20)}; versions of all packages under Reproduce",
        "initial": "from pretrained weights, see the configuration" if started else "random, drawn from the run's seed",
        "training": f"{config['run']['rounds']} rounds of {counted(int(train['epochs']), 'epoch')}, {rate}; "
        f"{counted(len({each.seed for each in source.runs}), 'seed')}",
        "selection": shown(f"the round with the best {select} on validation images", 200),
        "predictions": "by the network of the round that validation chose, on test images that chose nothing",
        "output": "probabilities of classes; sensitivity by threshold under Classes; a threshold for use: " + SUPPLY
        if source.task != "segmentation"
        else "a class for each pixel",
    }


def _nets(run: ReportRun) -> list[dict[str, Any]]:
    return list((run.about.get("nets") or {}).values()) or [run.about.get("net") or {}]


def _evaluation_facts(source: ReportSource, run: ReportRun) -> dict[str, str]:
    seeds = len({each.seed for each in source.runs})
    metrics = listed([metric_name(column.metric) for column in _distinct_metrics(source)], MOST_NAMED)
    level = 100 * source.spec.level
    plugins = sorted({name for each in source.runs for name in each.about.get("plugins") or ()})
    shown_classes = source.task != "segmentation"
    failures = {
        "classification": "confusion matrices under Classes; images of mistakes only with --images",
        "multi-label": "recall and precision of each label under Classes",
    }
    return {
        "metrics": f"{metrics}, by hospital and over all",
        "uncertainty": f"{level:g} % intervals over {counted(seeds, 'seed')} and test images; verdicts by Holm",
        "robustness": f"each hospital apart; {counted(seeds, 'seed')}",
        "internal": "on each hospital's own test images, which no training saw",
        "external": "",
        "performance": "see Verdict, Comparison and Hospitals",
        "accuracy": "sensitivity, specificity and intervals under Classes" if shown_classes else "",
        "failures": failures.get(source.task, ""),
        "heterogeneity": "each hospital's figures, the worst and the spread under Hospitals; class mixes under Data",
        "imbalance": f"plugin {', '.join(plugins)}" if {"bsm", "npr"} & set(plugins) else "",
        "differences": "test images come from the same collection and hospitals as training images",
        "protocol": "configurations and hashes under Reproduce",
        "availability": "weights are in the run directories, the software is Crossward; sharing them: " + SUPPLY,
        "poor": "",
        "privacy": shown("; ".join(f"{label}: {words}" for label, words in _protections(source).items()), 600),
    }  # fmt: skip


def _protections(source: ReportSource) -> dict[str, str]:
    """What bounds what left the hospitals, by method; methods that are alike in it share a line."""
    found: dict[str, list[str]] = {}
    for label in source.labels:
        for run in source.of(label):
            found.setdefault(run_protection(run.result.folder).words(), []).append(label)
    return {listed(list(dict.fromkeys(labels)), MOST_NAMED): words for words, labels in found.items()}


def _distinct_metrics(source: ReportSource) -> list[Any]:
    found = {column.metric: column for column in source.spec.parsed()}
    return list(found.values())


# the card -------------------------------------------------------------------------------------------------------------
def _model_card(source: ReportSource, facts: dict[str, str]) -> list[Block]:
    rows: list[tuple[Cell, ...]] = [
        ("Intended use", Verdict(SUPPLY), "what for, by whom, for which patients"),
        ("Uses it is not meant for", Verdict(SUPPLY), "–"),
        ("Model", Verdict(KNOWN), facts.get("model", "–")),
        ("Training", Verdict(KNOWN), facts.get("training", "–")),
        ("Data", Verdict(KNOWN), facts.get("sources", "–")),
        ("Partition", Verdict(KNOWN), facts.get("partitions", "–")),
        ("Chosen by", Verdict(KNOWN), facts.get("selection", "–")),
        ("Privacy of what left the hospitals", Verdict(KNOWN), facts.get("privacy", "–")),
        ("Ethics, consent, de-identification", Verdict(SUPPLY), "–"),
        ("Performance in subgroups (age, sex, device)", Verdict(SUPPLY), "–"),
        ("Contact, licence, version", Verdict(SUPPLY), "–"),
    ]
    columns = (Column("what"), Column("who answers", "verdict"), Column("answer"))
    blocks: list[Block] = [DataTable("model-card", columns, tuple(rows), "Model card", sortable=False)]
    limits = limitations(source)
    table: list[tuple[Cell, ...]] = [(line,) for line in limits] or [("The numbers show none; others: " + SUPPLY,)]
    title = "Limitations that the numbers show"
    blocks.append(DataTable("limitations", (Column("limitation"),), tuple(table), title, sortable=False))
    by_site = _site_table(source)
    if by_site is not None:
        blocks.append(Details("Each hospital's figures under each method", (by_site,)))
    return blocks


def limitations(source: ReportSource) -> list[str]:
    """Sentences that the runs' own numbers bear."""
    lines = []
    seeds = {run.seed for run in source.runs}
    if len(seeds) < FEW_SEEDS:
        lines.append(
            f"There {'is' if len(seeds) == 1 else 'are'} {counted(len(seeds), 'seed')}: another may give others."
        )
    if any(run.about["status"] != "finished" for run in source.runs):
        lines.append("Some runs have not finished: their figures may change.")
    sites = _site_sizes(source)
    small = [shown(site, 40) for site, n in sites.items() if n < FEW_IMAGES]
    if small:
        verb = "has" if len(small) == 1 else "have"
        lines.append(
            f"{listed(small, MOST_NAMED)} {verb} fewer than {FEW_IMAGES} test images: figures there are unsure."
        )
    lines += _spread_lines(source)
    if any(not run_protection(run.result.folder).unit for run in source.runs):
        lines.append("Runs without differential privacy: nothing bounds what their weights tell of patients.")
    if "phantom" in str(source.runs[0].result.config["data"].get("source")):
        lines.append("The images are drawn by a program (a phantom): the figures say nothing of patients.")
    lines.append("Test images come from the hospitals that trained: how it does elsewhere is not known.")
    failed = sum(len(names) for run in source.runs for names in run.rounds.failures.values())
    if failed:
        lines.append(f"Hospitals were left out of a round {failed} times over all runs.")
    return lines


def _site_sizes(source: ReportSource) -> dict[str, int]:
    sites = source.runs[0].partition["sites"]
    return {str(site): len(parts.get("test", ())) for site, parts in sites.items()}


def _spread_lines(source: ReportSource) -> list[str]:
    """How far the worst hospital is from the best, under the method with the best mean."""
    metric = str(source.runs[0].about["task"]["main"])
    by_method = {label: _by_site(source, label, metric) for label in source.labels}
    means = {label: fmean(values.values()) for label, values in by_method.items() if values}
    if not means:
        return []
    best = max(means, key=lambda label: means[label])
    values = by_method[best]
    worst, top = min(values, key=lambda s: values[s]), max(values, key=lambda s: values[s])
    if values[worst] == values[top]:
        return []
    words = f"Under {best}, {metric_name(metric)} ranges from {100 * values[worst]:.1f} % at {shown(worst, 40)}"
    return [f"{words} to {100 * values[top]:.1f} % at {shown(top, 40)}."]


def _by_site(source: ReportSource, label: str, metric: str) -> dict[str, float]:
    """Each hospital's figure on its own test images, mean over seeds."""
    found: dict[str, list[float]] = {}
    for run in source.of(label):
        for site, metrics in run.rounds.site_metrics().items():
            value = metrics.get(metric) if isinstance(metrics, dict) else None
            if isinstance(value, float):
                found.setdefault(str(site), []).append(value)
    return {site: fmean(values) for site, values in found.items()}


def _site_table(source: ReportSource) -> DataTable | None:
    metric = str(source.runs[0].about["task"]["main"])
    by_method = {label: _by_site(source, label, metric) for label in source.labels}
    sites = list(dict.fromkeys(site for values in by_method.values() for site in values))
    if not sites:
        return None
    tests = _site_sizes(source)
    rows: list[tuple[Cell, ...]] = [
        (
            MethodName(label, source.order.colour(label)),
            *(
                Figure(100 * v if (v := values.get(site)) is not None else None, runs=source.run_ids(label))
                for site in sites
            ),
        )
        for label, values in by_method.items()
        if values
    ]
    columns = tuple(Column(shown(site, 40), "number", f"{tests.get(site, 0)} test images") for site in sites)
    foot = f"{metric_name(metric)} in percent on the hospital's own test images, mean over seeds; intervals: Hospitals."
    return DataTable("card-sites", (Column("method"), *columns), tuple(rows), footnote=foot)
