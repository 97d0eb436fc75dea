"""The text libraries, which are large, talkative and optional: imported when needed, silent while they work."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch

from crossward.errors import ConfigError


def library(name: str) -> Any:
    """The module of that name; where it is not installed, what to install."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # read when the libraries are imported
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # else they warn of every process that is forked later
    try:
        return import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"this text encoder needs the package {name}: {error}", hint='Run: pip install "crossward[text]"'
        ) from None


@contextmanager
def hub() -> Iterator[Any]:
    """The client of the Hugging Face hub, without progress bars."""
    client, bars = library("huggingface_hub"), library("huggingface_hub.utils")
    shown = not bars.are_progress_bars_disabled()
    bars.disable_progress_bars()
    try:
        yield client
    finally:
        if shown:
            bars.enable_progress_bars()


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars, no log lines, no warnings, and the random numbers of the process untouched."""
    talk = library("transformers.utils.logging")
    verbosity, bars = talk.get_verbosity(), talk.is_progress_bar_enabled()
    sentences = logging.getLogger("sentence_transformers")
    level = sentences.level
    talk.set_verbosity_error()
    talk.disable_progress_bar()
    sentences.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")
            yield
    finally:
        talk.set_verbosity(verbosity)
        sentences.setLevel(level)
        if bars:
            talk.enable_progress_bar()
