"""The optional text libraries, which are large and verbose: imported when needed, silent while they work."""

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


def import_text_library(name: str) -> Any:
    """Import a module of the extra "text"; where it is missing, the error says what to install."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # read when the libraries are imported
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # else they warn about every process that is forked later
    try:
        return import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"this text encoder needs the package {name}: {error}", hint='Run: pip install "crossward[text]"'
        ) from None


@contextmanager
def hub_client() -> Iterator[Any]:
    """The client of the Hugging Face hub, without progress bars."""
    client = import_text_library("huggingface_hub")
    bars = import_text_library("huggingface_hub.utils")
    were_enabled = not bars.are_progress_bars_disabled()
    bars.disable_progress_bars()
    try:
        yield client
    finally:
        if were_enabled:
            bars.enable_progress_bars()


@contextmanager
def silence_libraries() -> Iterator[None]:
    """No progress bars, log lines or warnings; the random numbers of the process stay untouched."""
    transformers_logging = import_text_library("transformers.utils.logging")
    verbosity = transformers_logging.get_verbosity()
    bars_enabled = transformers_logging.is_progress_bar_enabled()
    logger = logging.getLogger("sentence_transformers")
    level = logger.level
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")
            yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        logger.setLevel(level)
        if bars_enabled:
            transformers_logging.enable_progress_bar()
