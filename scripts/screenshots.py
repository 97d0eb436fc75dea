"""Pictures for the README and docs/: docs/screenshots/*.png, each below 300 kB.

python scripts/screenshots.py runs/demo-1/report.html     the demo's report; needs playwright and Debian's chromium
python scripts/screenshots.py --dashboard runs            the dashboard over these runs, one of which is running
"""

from __future__ import annotations

import argparse
import io
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

MOST_BYTES = 300_000
COLOURS = 256  # of a palette, which charts and text do not exceed by much
FOLDER = Path(__file__).parents[1] / "docs" / "screenshots"
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu")


def main() -> None:
    parser = argparse.ArgumentParser(description="Take the pictures of the README and of docs/.")
    parser.add_argument("report", type=Path, nargs="?", help="report.html of `crossward demo`")
    parser.add_argument("--dashboard", type=Path, metavar="DIR", help="a folder of runs, one of them running")
    parser.add_argument("--out", type=Path, default=FOLDER)
    options = parser.parse_args()
    program = shutil.which("chromium")
    if program is None:
        sys.exit("There is no chromium: apt-get install -y chromium")
    if options.report is None and options.dashboard is None:
        parser.error("name a report, or a folder of runs by --dashboard")
    if options.report is not None and not options.report.is_file():
        sys.exit(f"There is no {options.report}: `make demo` prints the address of its report.")
    options.out.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(FLAGS))
        if options.report is not None:
            _take_report(browser, options.report, options.out)
        if options.dashboard is not None:
            _take_dashboard(browser, options.dashboard, options.out)
        browser.close()


def _take_report(browser: Any, report: Path, out: Path) -> None:
    for name, scheme, hash, height in (
        ("demo", "light", "", 860),
        ("demo-dark", "dark", "#few-sites", 900),
        ("demo-situation", "light", "#few-sites", 900),
        ("demo-hospital", "light", "#missing-classes-hospital-hospital-1", 1000),
    ):
        page = _opened(browser, report, hash, scheme, height)
        save_picture(page.screenshot(), out / f"{name}.png")
        page.close()


def _take_dashboard(browser: Any, folder: Path, out: Path) -> None:
    """The list, and the page of the first run that is under way."""
    with _dashboard(folder) as address:
        page = browser.new_page(viewport={"width": 1200, "height": 860}, color_scheme="light", device_scale_factor=1)
        page.goto(address)
        page.wait_for_selector("table tbody tr", timeout=60_000)
        page.wait_for_timeout(1500)  # sparklines are drawn when the first news arrives
        save_picture(page.screenshot(), out / "dashboard.png")
        page.locator("main a[href*='run/']").first.click()
        page.wait_for_selector("figure[data-chart] .plot svg", timeout=60_000)
        page.wait_for_timeout(1500)
        save_picture(page.screenshot(), out / "dashboard-run.png")
        page.close()


@contextmanager
def _dashboard(folder: Path) -> Iterator[str]:
    """The command in a process of its own; gives its address."""
    command = [sys.executable, "-m", "crossward", "dashboard", str(folder), "--no-open"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        address = next((line.strip() for line in process.stdout if "http://" in line), "")
        if not address:
            sys.exit(f"The dashboard of {folder} did not start.")
        yield address
    finally:
        process.terminate()
        process.communicate()


def _opened(browser: Any, report: Path, hash: str, scheme: str, height: int) -> Any:
    page = browser.new_page(viewport={"width": 1200, "height": height}, color_scheme=scheme, device_scale_factor=1)
    page.goto(f"{report.resolve().as_uri()}{hash}")
    page.wait_for_selector("html[data-charts=drawn]", state="attached", timeout=120_000)
    page.wait_for_timeout(300)
    return page


def save_picture(png: bytes, file: Path) -> None:
    """The picture with a palette; refused if it is still too large for a repository."""
    image = Image.open(io.BytesIO(png)).convert("RGB").quantize(COLOURS)
    image.save(file, optimize=True)
    size = file.stat().st_size
    if size > MOST_BYTES:
        sys.exit(f"{file} has {size:,} bytes, {MOST_BYTES:,} are allowed")
    sys.stdout.write(f"{file}  {image.width} x {image.height}, {size / 1e3:.0f} kB\n")


if __name__ == "__main__":
    main()
