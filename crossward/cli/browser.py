"""Opening a page in the person's browser, where there is one."""

from __future__ import annotations

import os
import sys

from crossward.cli.output import print_line

SCREENS = ("DISPLAY", "WAYLAND_DISPLAY")


def has_screen() -> bool:
    """Whether a person sits before a window system; a browser in the terminal would hide what was printed."""
    return sys.stdout.isatty() and _has_windows()


def _has_windows() -> bool:
    return sys.platform in ("darwin", "win32") or any(os.environ.get(name) for name in SCREENS)


def open_in_browser(address: str) -> None:
    import webbrowser

    if not webbrowser.open(address):
        print_line("No browser could be opened here.")
