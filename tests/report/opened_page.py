"""The browser that looks at pages, and what is asked of every page: no complaint, no request, no serious violation."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

AXE = Path(__file__).parents[2] / ".venv" / "npm" / "node_modules" / "axe-core" / "axe.min.js"
SERIOUS = {"serious", "critical"}


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    """Debian's chromium without a window; tests that need it are skipped where it is not installed."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("no browser: apt-get install -y chromium")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
             "--disable-component-update", "--disable-sync"]  # fmt: skip
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=flags)
        yield started
        started.close()


@contextmanager
def visits(browser: Any, file: Path) -> Iterator[Callable[..., Any]]:
    """A function that opens the page; what it complained of and what it asked for is checked in the end."""
    opened: list[Any] = []
    complaints: list[str] = []
    requests: list[str] = []

    def go(hash: str = "", *, width: int = 1200, scheme: str = "light", bypass: bool = False) -> Any:
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, bypass_csp=bypass, accept_downloads=True
        )
        view = context.new_page()
        opened.append(context)
        view.on("console", lambda message: complaints.append(message.text))
        view.on("pageerror", lambda error: complaints.append(str(error)))
        view.on("request", lambda request: requests.append(request.url))
        view.goto(f"{file.as_uri()}{hash}")
        view.wait_for_selector("html[data-charts=drawn]", state="attached", timeout=120_000)
        return view

    yield go
    for context in opened:
        context.close()
    assert complaints == []
    assert [url for url in requests if not url.startswith((file.as_uri(), "blob:", "data:"))] == []


def serious_violations(view: Any) -> list[str]:
    """What axe-core finds, each with the first element that it is about; the view's policy must let axe in."""
    if not AXE.exists():
        pytest.skip("no axe-core: npm install --no-save --prefix .venv/npm axe-core")
    view.add_script_tag(path=str(AXE))
    found = view.evaluate("axe.run()")["violations"]
    return [f"{each['id']}: {each['nodes'][0]['html'][:150]}" for each in found if each["impact"] in SERIOUS]
