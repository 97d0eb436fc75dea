"""Figures that are no metric of a round: multiples of rounds and parameters (FedCD, Table 2), and what networks cost
(MH-pFLGB, Table 5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from crossward.comparison.net_costs import BYPASSES
from crossward.comparison.papers.our_figures import Filler, OurFigure
from crossward.comparison.papers.settings import EIGHT_NETS, POLYP_NETS, RESOLUTIONS
from crossward.comparison.papers.tables import Column, PaperTable
from crossward.comparison.reach import cost_to_target
from crossward.errors import ConfigError
from crossward.nets import build
from crossward.nets.cost import cost

TIMES = {"rounds relative to FedCD": "times_rounds", "total params relative to FedCD": "times_parameters"}
NETS = {
    **dict(zip(("ResNet17", "ResNet11", "ResNet8", "ResNet5"), (name for name, _ in RESOLUTIONS), strict=True)),
    **dict(
        zip(
            ("ResNet", "ShuffleNetV2", "ResNeXt", "SqueezeNet", "SENet", "MobileNet", "DenseNet", "VGG"),
            EIGHT_NETS,
            strict=True,
        )
    ),
    "Unet++": "unetpp",
    "FCN": "fcn",
    "Unet": "unet",
    "ResUnet": "resunet",
}
IMAGES: Mapping[tuple[str, str], Mapping[str, Any]] = {  # what the networks of a column see
    ("BreaKHis", "resolution 384..48"): {"channels": 3, "classes": 2, "size": 384},
    ("BreaKHis", "label-dist 384x384x3"): {"channels": 3, "classes": 8, "size": 384},
    ("OCT2017", "label-dist 256x256x1"): {"channels": 1, "classes": 4, "size": 256},
    ("Polyp", "segmentation 256x256x3"): {"channels": 3, "classes": 2, "size": 256},
}


def add_multiples(filler: Filler, figures: dict[tuple[str, Column], list[OurFigure]]) -> None:
    """FedProc's rounds and parameters until it reaches the end of FedAvg, as multiples of FedCD's of the same seed."""
    for row, column in filler.table.figures:
        if column.metric not in TIMES:
            continue
        ours = {name: filler.matching(name, column) for name in ("FedAvg", row, "FedCD")}
        for setup in ours[row]:
            by_row = {name: {run.seed: run for run in setups.get(setup, [])} for name, setups in ours.items()}
            seeds = sorted(set.intersection(*({*runs} for runs in by_row.values())))
            if not seeds:
                continue
            runs = [(name, found[seed]) for name, found in by_row.items() for seed in seeds]
            try:
                reached = cost_to_target(
                    [run.folder for _, run in runs],
                    labels=[name for name, _ in runs],
                    reference="FedCD",
                    target="FedAvg",
                    metric="accuracy",
                )
            except ConfigError as error:
                filler.note(f"{row}, {column.metric}: {error.what}")
                continue
            own = next(each for each in reached.costs if each.method == row)
            known = {run.seed: getattr(run, TIMES[column.metric]) for run in own.runs}
            known = {seed: times for seed, times in known.items() if times is not None}
            filler.note(f"{row}: {len(known)} of {len(own.runs)} run(s) reached FedAvg's accuracy, as FedCD's did")
            if known:
                letter = filler.letter(setup, [run for _, run in runs])
                folders = tuple(str(run.folder) for _, run in runs)
                figure = OurFigure(tuple(known.values()), tuple(known), letter, "reach", folders)
                figures.setdefault((row, column), []).append(figure)


def network_costs(table: PaperTable) -> dict[tuple[str, Column], list[OurFigure]]:
    """GFLOPs and millions of parameters of our networks, for the images of each column."""
    counted: dict[tuple[str, str, str], tuple[float, float]] = {}
    figures: dict[tuple[str, Column], list[OurFigure]] = {}
    for row, column in table.figures:
        place = (row, column.dataset, column.setting)
        if place not in counted:
            counted[place] = _count(row, column)
        gflops, millions = counted[place]
        value = gflops if column.metric == "GFLOPS" else millions
        figures[row, column] = [replace(COUNTED, values=(value,))]
    return figures


COUNTED = OurFigure(values=(0.0,), seeds=(), setup="A", when="counted")


def _count(row: str, column: Column) -> tuple[float, float]:
    images = dict(IMAGES[column.dataset, column.setting])
    if row == "Bypass":
        task = "segmentation" if column.dataset == "Polyp" else "classification"
        net = BYPASSES[task](**images)
    else:
        name = NETS[row]
        images["size"] //= dict(RESOLUTIONS).get(name, 1)
        options: Mapping[str, Any] = {net: given for _, net, given in POLYP_NETS}.get(name, {})
        net = build(name, **images, **options)
    costs = cost(net, images["channels"], images["size"])
    return costs.flops / 1e9, costs.parameters / 1e6
