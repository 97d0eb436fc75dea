"""Pictures of the demo's report for the README: docs/screenshots/*.png, each below 300 kB.

python scripts/screenshots.py runs/demo-1/report.html     needs playwright and Debian's chromium
"""

from __future__ import annotations

import argparse
import io
import shutil
import sys
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

MOST_BYTES = 300_000
COLOURS = 256  # of a palette, which charts and text do not exceed by much
FOLDER = Path(__file__).parents[1] / "docs" / "screenshots"
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu")


def main() -> None:
    parser = argparse.ArgumentParser(description="Take the pictures of the README.")
    parser.add_argument("report", type=Path, help="report.html of `crossward demo`")
    parser.add_argument("--out", type=Path, default=FOLDER)
    options = parser.parse_args()
    program = shutil.which("chromium")
    if program is None:
        sys.exit("There is no chromium: apt-get install -y chromium")
    if not options.report.is_file():
        sys.exit(f"There is no {options.report}: `make demo` prints the address of its report.")
    options.out.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(FLAGS))
        for name, scheme, hash, height in (
            ("demo", "light", "", 860),
            ("demo-dark", "dark", "#few-sites", 900),
            ("demo-situation", "light", "#few-sites", 900),
            ("demo-hospital", "light", "#missing-classes-hospital-hospital-1", 1000),
        ):
            page = _opened(browser, options.report, hash, scheme, height)
            save_picture(page.screenshot(), options.out / f"{name}.png")
            page.close()
        browser.close()


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
