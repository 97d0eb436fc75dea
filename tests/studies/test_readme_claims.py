"""The page "In two minutes" of studies/README.md, and the sentences with figures below it: each figure is recomputed
from studies/results, and each verdict follows from the rule that the page states."""

from __future__ import annotations

import re
from dataclasses import dataclass
from statistics import fmean

import pytest
from readme_figures import README, Difference, difference, figures, markdown_tables, plain, spread, stored_rows
from scipy import stats

F1, BEST_F1 = "last.global.f1", "best.global.f1"
ACCURACY = "last.global.accuracy"
BACC, WORST, BAUC, WORST_BAUC = (f"last.{view}.{m}" for m in ("balanced_accuracy", "auc") for view in ("mean", "worst"))
SITE_F1, DICE = "last.mean.f1", "last.mean.dice"
WORDS = ("reproduced", "contradicted", "not seen", "not testable")
NOT_STORED = ("+0.8 ± 4.9 (1/3)", "-4.8 ± 2.1 (0/3)")  # of a hospital that joined, and of the first study of FedCD
NO_DIFFERENCE = ("it needs fewer rounds", "it sends a hundredth")  # rows whose figures are rounds and bytes


@dataclass(frozen=True)
class Claim:
    begins: str  # the claim's words
    paper: str
    shown: list[Difference]  # in the order of the row


def part(name: str) -> Difference:
    return difference("pbc_fedcd", "fedcd", f"fedcd-{name}", ACCURACY)


BLOOD = ("pbc_fedbm_crop", "pbc_fedbm", "pbc_small")
CLAIMS = [
    Claim("a classifier made of text", "FedCB", [difference(s, "fedcb", "fedavg", F1) for s in BLOOD]),
    Claim("… and above a random", "FedCB", [difference(s, "fedcb", "random-frozen", F1) for s in BLOOD]),
    Claim("the generator lifts", "FedBM", [difference(s, "fedbm", "fedcb", F1) for s in BLOOD]),
    Claim(
        "it is above FedETF as",
        "FedBM",
        [
            *(difference(BLOOD[0], "fedbm", "fedetf", F1, beta) for beta in ("0.05", "0.1")),
            *(difference(s, "fedbm", "fedetf", F1) for s in BLOOD[1:]),
        ],
    ),
    Claim("it is above FedETF with", "FedBM", [difference(s, "fedbm", "fedetf, plain loss", F1) for s in BLOOD[:2]]),
    Claim("NPR lifts", "FedNPR", [difference("pbc_imbalance", "fedrep+npr", "fedrep", BACC)]),
    Claim(
        "FedNPR-Per is above",
        "FedNPR",
        [difference("pbc_imbalance", "fednpr-per", "local", column) for column in (BAUC, WORST, BACC)],
    ),
    Claim("the same", "FedNPR", [difference("ham_hospitals", "fednpr-per", "local", BACC)]),
    Claim(
        "several prototypes",
        "FedNPR",
        [difference("npr_constants", f, "K = 1", BACC) for f in ("pbc_imbalance/fednpr", "K = 8")],
    ),
    Claim(
        "it is above FedAvg",
        "FedCD",
        [difference(s, "fedcd", "fedavg", ACCURACY) for s in ("pbc_fedcd", "cifar_fedcd")],
    ),
    Claim(
        "the same", "FedCD", [difference(s, "fedcd", "fedavg", ACCURACY) for s in ("pbc_decay", "pbc_fedcd_low_rate")]
    ),
    Claim(
        "it is above SCAFFOLD",
        "FedCD",
        [difference("pbc_fedcd_low_rate", "fedcd", rival, ACCURACY) for rival in ("feddyn", "scaffold", "feddc")],
    ),
    Claim("it is above MOON", "FedCD", [difference("pbc_fedcd", "fedcd", "moon", ACCURACY)]),
    Claim(
        "it is above FedProc",
        "FedCD",
        [difference(s, "fedcd", "fedproc", ACCURACY) for s in ("cifar_fedcd", "pbc_fedcd")],
    ),
    Claim("each of its parts", "FedCD", [part(name) for name in ("mu1", "bpr", "dkd", "dcl")]),
    Claim("sites of other resolutions", "MH-pFLGB", [difference("breakhis_resolution", "mh-pflgb", "local", SITE_F1)]),
    Claim("sites with other segmentation", "MH-pFLGB", [difference("polypgen_bypass", "mh-pflgb", "local", DICE)]),
    Claim("… and over FedAvg", "MH-pFLGB", [difference("polypgen_bypass", "mh-pflgb", "fedavg, unet", DICE)]),
    Claim("eight architectures", "MH-pFLGB", [difference("oct_labels", "mh-pflgb", "local", SITE_F1)]),
]
SHOWN = re.compile(r"[+-]?\d+\.\d ± \d+\.\d \(\d/\d\)")


def summary() -> list[dict[str, str]]:
    text = README[README.index("## In two minutes") : README.index("## pbc_fedbm")]
    [(heads, rows)] = markdown_tables(text)
    return [dict(zip(heads, row, strict=True)) for row in rows]


def row_of(claim: Claim) -> dict[str, str]:
    [row] = [row for row in summary() if row["paper"] == claim.paper and row["claim"].startswith(claim.begins)]
    return row


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: f"{claim.paper}: {claim.begins}")
def test_figures_and_verdicts_of_a_claim(claim):
    row = row_of(claim)
    stated = [figure for figure in SHOWN.findall(plain(row["figure"])) if figure not in NOT_STORED]
    assert stated == [plain(str(shown)) for shown in claim.shown]
    verdicts = {shown.verdict for shown in claim.shown}
    said = {word for word in WORDS if word in row["here"]}
    assert said == verdicts or said == {"not testable"}


def test_every_row_has_a_verdict_and_a_link():
    for row in summary():
        assert any(word in row["here"] for word in WORDS), row
        assert "](" in row["study"] or row["study"] in ("same", "PBC", "skin", "pbc_fedbm_crop"), row


def test_every_row_is_checked():
    checked = [row_of(claim) for claim in CLAIMS]
    rest = [row for row in summary() if row not in checked and not row["claim"].startswith(NO_DIFFERENCE)]
    assert [row["claim"] for row in rest] == ["a hospital that joins later gains"]
    assert plain(rest[0]["figure"]).find(NOT_STORED[0]) > 0


def test_the_parts_that_are_not_named_lie_between_those_that_are():
    means = [part(name).mean for name in ("hpc", "dkd", "acla", "dcl")]
    assert (min(means), max(means)) == (part("dkd").mean, part("dcl").mean)


def changes(study: str, column: str) -> tuple[float, float]:
    """The least and the most that NPR adds to a method."""
    with_and_without = [("fednpr", "fedavg"), ("fednpr-per", "personal head")]
    with_and_without += [(f"{m}+npr", m) for m in ("local", "fedprox", "fedbabu", "fedrep", "fedrod")]
    means = [difference(study, first, second, column).mean for first, second in with_and_without]
    return min(means), max(means)


CROP, WHOLE, SMALL = BLOOD
IMBALANCE, HAM, CONSTANTS = "pbc_imbalance", "ham_hospitals", "npr_constants"
BREAKHIS, POLYPS, PARTS = "breakhis_resolution", "polypgen_bypass", "pbc_fedcd"
FULL_RATE, FEDNPR = "mh-pflgb, bypass at the full rate", "pbc_imbalance/fednpr"
BEST_BACC = "best.mean.balanced_accuracy"
SENTENCES = [  # a piece of README, and the differences it states: study, first, second, column, and value of an axis
    ("At 0.05 by {:size} (3/3; 95 %", (CROP, "fedbm", "fedetf", F1, "0.05")),
    ("by {:size} at the round that validation chose; at 0.1", (CROP, "fedbm", "fedetf", BEST_F1, "0.05")),
    ("at 0.1 it is {:size} below it (1/3)", (CROP, "fedbm", "fedetf", F1, "0.1")),
    ("on whole images, lower down: {} and", (WHOLE, "fedbm", "fedetf", F1, "0.05")),
    ("and {}. In both FedBM stands better", (WHOLE, "fedbm", "fedetf", F1, "0.1")),
    ("it does not ({:counted}, and", (SMALL, "fedbm", "fedetf", F1, "0.05")),
    ("and {:counted}). - The balanced", (SMALL, "fedbm", "fedetf", F1, "0.1")),
    ("FedETF is level with FedAvg ({:counted})", (CROP, "fedetf, plain loss", "fedavg", F1)),
    ("with it {:size} above itself (6/6)", (CROP, "fedetf", "fedetf, plain loss", F1)),
    ("is where FedETF is ({:counted})", (CROP, "fedrod", "fedetf", F1)),
    ("FedBM is {:size} above (6/6)", (CROP, "fedbm", "fedetf, plain loss", F1)),
    ("Above FedETF in all six runs of the last rounds ({:signed};", (CROP, "fedbm-balanced", "fedetf", F1)),
    ("above FedBM in four of six ({:signed})", (CROP, "fedbm-balanced", "fedbm", F1)),
    ("at β = 0.1 alone in every seed ({:counted})", (CROP, "fedbm-balanced", "fedbm", F1, "0.1")),
    ("in every single run ({:size} and", (CROP, "fedbm", "fedcb", F1)),
    ("and {:size}). - **FedCB is level", (CROP, "fedbm", "fedavg", F1)),
    ("FedETF is level with FedAvg ({:counted})", (WHOLE, "fedetf, plain loss", "fedavg", F1)),
    ("with it {:size} above itself (6/6)", (WHOLE, "fedetf", "fedetf, plain loss", F1)),
    ("is where FedETF is ({:counted})", (WHOLE, "fedrod", "fedetf", F1)),
    ("FedBM is {:size} above (6/6)", (WHOLE, "fedbm", "fedetf, plain loss", F1)),
    ("FedBM in all six runs of the last rounds ({:signed};", (WHOLE, "fedbm-balanced", "fedbm", F1)),
    ("above FedETF in four of six ({:signed})", (WHOLE, "fedbm-balanced", "fedetf", F1)),
    ("above them ({:counted}, and", (SMALL, "fedcb", "fedavg", F1, "0.1")),
    ("and {:counted}), at β = 0.05", (SMALL, "fedcb", "random-frozen", F1, "0.1")),
    ("below them ({:counted}, and", (SMALL, "fedcb", "fedavg", F1, "0.05")),
    ("and {:counted}), ten-round means", (SMALL, "fedcb", "random-frozen", F1, "0.05")),
    ("by {:size} points worse in the ten-round mean", (SMALL, "fedbm", "fedetf", F1)),
    ("and by {:size} better at the best round", (SMALL, "fedbm", "fedetf", BEST_F1)),
    ("FedRep's {:signed} bACC (four of five;", (IMBALANCE, "fedrep+npr", "fedrep", BACC)),
    ("that validation chose {:signed}, five of five)", (IMBALANCE, "fedrep+npr", "fedrep", BEST_BACC)),
    ("FedProx's {:signed} bAUC at the worst site (none", (IMBALANCE, "fedprox+npr", "fedprox", WORST_BAUC)),
    ("FedNPR's {:signed} bACC at the worst site (one of five)", (IMBALANCE, "fednpr", "fedavg", WORST)),
    ("MOON with it ({:signed} bACC)", (IMBALANCE, "moon", "fedavg", BACC)),
    ("FedRS ({:signed})", (IMBALANCE, "fedrs", "fedavg", BACC)),
    ("FedLC ({:signed})", (IMBALANCE, "fedlc", "fedavg", BACC)),
    ("BalanceFL ({:signed})", (IMBALANCE, "balancefl", "fedavg", BACC)),
    ("CReFF ({:signed})", (IMBALANCE, "creff", "fedavg", BACC)),
    ("FedBABU ({:signed}) are below it in every seed", (IMBALANCE, "fedbabu", "fedavg", BACC)),
    ("above K = 4 by {:size} in 3 of 3 seeds", (CONSTANTS, "K = 1", FEDNPR, BACC)),
    ("above K = 8 by {:size} in 2 of 3", (CONSTANTS, "K = 1", "K = 8", BACC)),
    ("masking is {:size} above (3/3)", (CONSTANTS, "absent masked", FEDNPR, WORST)),
    ("{:size} points of accuracy (3/3)", (PARTS, "fedcd", "fedcd-mu1", ACCURACY)),
    ("{:size} of F1 (2/3) are lost", (PARTS, "fedcd", "fedcd-mu1", F1)),
    ("by {:size} without the contrast (2/3)", (PARTS, "fedcd-hpc", "fedcd", ACCURACY)),
    ("{:size} without the distillation (2/3)", (PARTS, "fedcd-dkd", "fedcd", ACCURACY)),
    ("{:size} without the regularisation, in every seed (3/3;", (PARTS, "fedcd-bpr", "fedcd", ACCURACY)),
    ("in F1 {:size}, 2/3)", (PARTS, "fedcd-bpr", "fedcd", F1)),
    ("aggregation changes nothing ({:size})", (PARTS, "fedcd-acla", "fedcd", ACCURACY)),
    ("fades twice, {:size} below FedAvg (0/3)", ("pbc_decay", "fedcd", "fedavg", ACCURACY)),
    ("({:signed} bACC, no seed of five)", (HAM, "fednpr-per", "local", BACC)),
    ("FedRS {:size} below FedAvg, 0/5)", (HAM, "fedrs", "fedavg", BACC)),
    ("FedNPR-Per was below Local ({:counted})", ("ham_hospitals_28px", "fednpr-per", "local", BACC)),
    ("{:signed} from random weights (1/3)", ("ham_scratch", "fednpr", "fedavg", BACC)),
    ("{:size} points below it in the last rounds (0/3)", (POLYPS, "mh-pflgb", "local", DICE)),
    ("and {:size} below FedAvg with one network (0/3)", (POLYPS, "mh-pflgb", "fedavg, unet", DICE)),
    ("C4 varies too much to tell ({:signed})", (POLYPS, "mh-pflgb", "local", "site:C4")),
    ("loses in every seed ({:counted})", (POLYPS, "mh-pflgb", "local", "site:C6")),
    ("C6 was {:size} below training alone (0/3)", (POLYPS, "mh-pflgb", "local", "site:C6")),
    ("by {:size} in the last rounds", (BREAKHIS, "mh-pflgb", "local", SITE_F1)),
    ("most at 48 px ({:mean})", (BREAKHIS, "mh-pflgb", "local", "site:site-2")),
    ("at 12 px ({:mean})", (BREAKHIS, "mh-pflgb", "local", "site:site-4")),
    ("above FedAvg with one network by {:size} (3/3)", (BREAKHIS, "mh-pflgb", "fedavg, resnet17", SITE_F1)),
    ("gone in the last rounds ({:counted})", (BREAKHIS, FULL_RATE, "local", SITE_F1)),
    ("that validation chose ({:counted})", (BREAKHIS, FULL_RATE, "local", "best.mean.f1")),
    ("MH-pFLGB is {:size} above training alone, in one seed", ("oct_labels", "mh-pflgb", "local", SITE_F1)),
]


@pytest.mark.parametrize(("words", "which"), SENTENCES, ids=[words for words, _ in SENTENCES])
def test_a_sentence_states_what_the_stored_figures_make(words, which):
    assert plain(words.format(difference(*which))) in plain(README)


RANGES = [
    ("It changes bACC by {:+.1f} (the personal head) to {:+.1f} (Local)", IMBALANCE, BACC),
    ("worst site by {:+.1f} to {:+.1f}: all within the noise floor", IMBALANCE, WORST),
    ("bACC {:+.1f} to {:+.1f} on PBC", IMBALANCE, BACC),
    ("It changes bACC by {:+.1f} to {:+.1f}", HAM, BACC),
    ("and bAUC by {:+.1f} to {:+.1f}, never by more than its deviation", HAM, BAUC),
    ("and {:+.1f} to {:+.1f} on skin", HAM, BACC),
    ("NPR changed bACC by {:+.1f} to {:+.1f}", "ham_hospitals_28px", BACC),
]


@pytest.mark.parametrize(("words", "study", "column"), RANGES)
def test_what_npr_changes(words, study, column):
    assert plain(words.format(*changes(study, column))) in plain(README)


def test_ranges_over_methods_and_runs():
    text = plain(README)
    rivals = ("fedavg", "fedprox", "random-frozen", "fednh", "fedcb")
    means = [difference(SMALL, "fedbm", rival, F1, beta).mean for rival in rivals for beta in ("0.05", "0.1")]
    assert f"by {min(means):.0f} to {max(means):.0f} points in the ten-round mean" in text
    runs = [value for rival in rivals for value in difference(SMALL, "fedbm", rival, F1).values]
    assert f"and by {int(min(runs))} at least in every single run" in text
    methods = ("local", "fedavg", "fednpr", "fedprox", "fedbabu", "fedrep", "fedrod", "fedrs", "fedlc", "fednpr-per")
    methods += ("personal head", *(f"{m}+npr" for m in ("local", "fedprox", "fedbabu", "fedrep", "fedrod")))
    tiny = {c: [fmean(figures("ham_hospitals_28px", m, c).values()) for m in methods] for c in (BACC, BAUC)}
    for column, name in ((BACC, "bACC"), (BAUC, "bAUC")):
        assert f"{name} between {min(tiny[column]):.0f} and {max(tiny[column]):.0f}" in text
    gains = [difference(HAM, method, "fedavg", BACC).mean for method in methods if method != "fedavg"]
    start = difference("ham_scratch", "ham_hospitals/fedavg", "fedavg", BACC).mean
    assert (
        f"is worth {start:.1f} points of bACC to FedAvg, more than any method gains over it ({max(gains):.1f})" in text
    )


def test_the_interval_at_one_beta():
    gains = difference(CROP, "fedbm", "fedetf", F1, "0.05")
    half = stats.t.ppf(0.975, 2) * gains.deviation / 3**0.5
    assert f"interval of the mean {gains.mean - half:+.1f} to {gains.mean + half:+.1f}, not adjusted" in plain(README)


def test_what_the_crop_is_worth():
    text = plain(README)
    methods = sorted({method for method, *_ in stored_rows(CROP)})
    gains = {method: difference(CROP, method, f"{WHOLE}/{method}", F1) for method in methods}
    runs = [value for gain in gains.values() for value in gain.values]
    assert f"worth {fmean(runs):.1f} points of F1" in text
    assert f"(from {min(runs):+.1f} to {max(runs):+.1f}; above" in text
    assert f"images in {sum(run > 0 for run in runs)} of {len(runs)} runs" in text
    assert f"FedBM gains most by it, {gains.pop('fedbm'):size} (6/6)" in text
    assert min(gains, key=lambda method: gains[method].mean) == "scaffold"
    assert max(gains, key=lambda method: gains[method].mean) == "fedrod"
    assert f"from {gains['scaffold'].mean:.1f} (SCAFFOLD) to {gains['fedrod'].mean:.1f} (FedRoD)" in text
    least = min(run for rival in ("fedcb", "fedavg") for run in difference(CROP, "fedbm", rival, F1).values)
    assert f"by {int(least)} points at least in every single run (27" in text


def test_what_was_not_stored_is_consistent_in_itself():
    """Figures of the newcomer, seed by seed, make its means."""
    [(_, rows)] = [table for table in markdown_tables(README) if table[0][0] == "C6"]
    seeds = {row[0]: [float(number) for number in plain(row[3]).split(", ")] for row in rows}
    assert rows[0][2] == spread(seeds["alone"])
    assert rows[1][2] == spread(seeds["joined"])
    gain = Difference([joined - alone for alone, joined in zip(seeds["alone"], seeds["joined"], strict=True)])
    assert plain(rows[2][2]) == plain(str(gain))
