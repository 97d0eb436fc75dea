"""What people see while images are read."""

from __future__ import annotations

import io
from contextlib import redirect_stderr

import pytest

from crossward.cli import reading_progress
from crossward.cli.reading_progress import show_reading
from crossward.data.reading_progress import reading


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def read(stream: io.StringIO, total: int = 40, stops_at: int | None = None) -> None:
    with redirect_stderr(stream), show_reading(), reading("decoding images", total) as count:
        for done in range(total):
            if done == stops_at:
                raise KeyboardInterrupt
            count(1)


def test_a_terminal_shows_a_bar_that_goes_again(monkeypatch):
    monkeypatch.setattr(reading_progress, "PATIENCE", -1.0)
    terminal = Terminal()
    read(terminal)
    assert "decoding images" in terminal.getvalue()
    assert "40/40" in terminal.getvalue()
    assert terminal.getvalue().endswith("\x1b[2K")  # the line is empty again


def test_the_bar_goes_after_ctrl_c_too(monkeypatch):
    monkeypatch.setattr(reading_progress, "PATIENCE", -1.0)
    terminal = Terminal()
    with pytest.raises(KeyboardInterrupt):
        read(terminal, stops_at=20)
    assert terminal.getvalue().endswith("\x1b[2K")


def test_a_short_reading_shows_nothing():
    for stream in (Terminal(), io.StringIO()):
        read(stream)
        assert stream.getvalue() == ""
