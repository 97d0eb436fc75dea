"""What the report costs: 30 runs of 100 rounds at 12 hospitals, made into a page and opened in a browser.

    python benchmarks/report.py [--seeds 5] [--rounds 100] [--sites 12] [--classes 8] [--images 150] [--smoke]

It draws run directories (six methods) into a temporary folder. `seconds` is the time that passed, `process` what this
process spent on processors, which other work on the machine disturbs less; `again` is a second report, which finds
tables and the chart library in the cache. The browser is Debian's chromium, if it is there: `visible` is from the start
of navigation until every chart on the first screen is drawn, `all` until every chart of the page is. The bars are 20 s
to make it, 2 MB, and 2 s to open it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "tests" / "report"))
from drawn_runs import Drawn, draw_runs, many

from crossward.report.assembly import make_page
from crossward.report.render import render_page
from crossward.report.source import read_report_source

METHODS = ("local", "fedavg", "fedprox", "fedrep", "fedbm", "fedcb")
DISTINCT = 8  # rounds that are drawn; later ones repeat them
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu")
WATCH = """
window.drawnAt = {};
const look = () => {
  const plots = [...document.querySelectorAll("figure[data-chart] .plot")];
  const seen = plots.filter((plot) => {
    const box = plot.getBoundingClientRect();
    return box.width && box.top < innerHeight && box.bottom > 0;
  });
  const done = seen.length && seen.every((plot) => plot.querySelector("svg"));
  if (!drawnAt.visible && done) drawnAt.visible = performance.now();
  if (document.documentElement.dataset.charts) drawnAt.all = performance.now();
  else requestAnimationFrame(look);
};
addEventListener("load", () => { drawnAt.load = performance.now(); look(); });
"""


def make_report(folder: Path) -> tuple[str, dict[str, float]]:
    clock, processor = time.perf_counter(), time.process_time()
    html = render_page(make_page(read_report_source([folder])))
    return html, {"seconds": time.perf_counter() - clock, "process": time.process_time() - processor}


def open_report(file: Path) -> dict[str, float] | None:
    """Seconds until the page is loaded, its first screen drawn, and all of it drawn; None without a browser."""
    program = shutil.which("chromium")
    if program is None:
        return None
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(FLAGS))
        page = browser.new_page(viewport={"width": 1200, "height": 900})
        page.add_init_script(WATCH)
        page.goto(file.as_uri())
        page.wait_for_selector("html[data-charts=drawn]", state="attached", timeout=120_000)
        page.wait_for_timeout(100)
        drawn: dict[str, float] = page.evaluate("drawnAt")
        browser.close()
    return {name: milliseconds / 1000 for name, milliseconds in drawn.items()}


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("seeds", 5), ("rounds", 100), ("sites", 12), ("classes", 8), ("images", 150)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--smoke", action="store_true", help="next to no work, to see that it runs")
    options = parser.parse_args(arguments)
    if options.smoke:
        options.seeds, options.rounds, options.sites, options.classes, options.images = 2, 2, 2, 3, 20
    drawn = Drawn(
        METHODS[: 2 if options.smoke else None],
        tuple(range(options.seeds)),
        rounds=options.rounds,
        sites=tuple(many("hospital", options.sites)),
        classes=tuple(many("class", options.classes)),
        images=options.images,
        distinct=DISTINCT,
    )
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        os.environ["CROSSWARD_CACHE"] = str(root / "cache")
        draw_runs(root / "runs", drawn)
        html, first = make_report(root / "runs")
        _, again = make_report(root / "runs")
        (root / "report.html").write_text(html, encoding="utf-8")
        figures = {
            "runs": len(drawn.methods) * len(drawn.seeds),
            "first": first,
            "again": again,
            "megabytes": len(html.encode()) / 1e6,
            "opened": open_report(root / "report.html"),
        }
    print(json.dumps(figures))
    return figures


if __name__ == "__main__":
    main()
