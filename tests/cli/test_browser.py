"""Where a page is opened in a browser, and where not."""

from __future__ import annotations

from crossward.cli.browser import has_screen


def test_nothing_is_opened_where_there_is_no_screen(monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    assert not has_screen()
    monkeypatch.setenv("DISPLAY", ":0")
    assert has_screen()
    monkeypatch.setattr("sys.stdout.isatty", lambda: False, raising=False)
    assert not has_screen()
