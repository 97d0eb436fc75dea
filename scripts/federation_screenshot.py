"""A picture of the federation's page for docs/hospitals.md, taken while `crossward federation try` runs.

python scripts/federation_screenshot.py     needs playwright, Debian's chromium and the extras deploy and dashboard
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright
from screenshots import FLAGS, FOLDER, save_picture

ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+/run/\w{16}/federation\?token=\S+")
COMMAND = (sys.executable, "-m", "crossward", "federation", "try", "--rounds", "10", "--no-open", "--no-stay")
TIMEOUT = 600.0  # seconds until the round that is waited for


def main() -> None:
    parser = argparse.ArgumentParser(description="Take the picture of docs/hospitals.md.")
    parser.add_argument("--out", type=Path, default=FOLDER)
    parser.add_argument("--round", type=int, default=3, help="In which round the picture is taken.")
    options = parser.parse_args()
    program = shutil.which("chromium")
    if program is None:
        sys.exit("There is no chromium: apt-get install -y chromium")
    with subprocess.Popen(COMMAND, stdout=subprocess.PIPE, text=True) as trial:
        try:
            address = _address(trial)
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=program, args=list(FLAGS))
                page = browser.new_page(viewport={"width": 1200, "height": 860}, device_scale_factor=1)
                page.goto(address)
                _wait_for_training(page, options.round)
                save_picture(page.screenshot(), options.out / "federation.png")
                browser.close()
        finally:
            trial.terminate()


def _address(trial: subprocess.Popen[str]) -> str:
    assert trial.stdout is not None
    for line in trial.stdout:
        if found := ADDRESS.search(line):
            return found[0]
    sys.exit("`crossward federation try` ended before it had a page")


def _wait_for_training(page: Any, round: int) -> None:
    """Until some hospital trains, in this round or a later one."""
    end = time.monotonic() + TIMEOUT
    while time.monotonic() < end:
        found = re.search(r"Round (\d+) of", page.locator("#lead").inner_text())
        if found and int(found[1]) >= round and "training" in page.locator("#sites").inner_text():
            return
        page.wait_for_timeout(50)
    sys.exit(f"nobody trained in round {round} within {TIMEOUT:.0f} s")


if __name__ == "__main__":
    main()
