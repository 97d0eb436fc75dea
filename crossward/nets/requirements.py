"""Checks of the image size and the options that a net is built with; each raises ConfigError."""

from __future__ import annotations

from math import inf

from crossward.errors import ConfigError


def require_size(net: str, size: int, least: int) -> None:
    if size < least:
        raise ConfigError(
            f"The net {net!r} needs images of at least {least} x {least} pixels; these have {size}.",
            hint=f"Choose an image size of at least {least}, or another net.",
        )


def require_choice(net: str, option: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"The net {net!r} has no {option} {value!r}.", hint=f"Known: {', '.join(choices)}.")


def require_at_least(net: str, option: str, value: float, least: float) -> None:
    if not value >= least:
        raise ConfigError(f"The net {net!r} needs {option} of at least {least}, not {value}.")
    if value == inf:
        raise ConfigError(f"The net {net!r} needs a finite {option}, not {value}.")


def require_rates(net: str, **rates: float) -> None:
    """Rates, such as dropout, are at least 0 and below 1."""
    problems = [f"{name}: {rate}" for name, rate in rates.items() if not 0 <= rate < 1]
    if problems:
        raise ConfigError(f"The net {net!r} needs these to be at least 0 and below 1.", details=problems)
