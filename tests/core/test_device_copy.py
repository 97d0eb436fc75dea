"""Rows on their way to a device."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from crossward.core.device_copy import rows_for


@pytest.mark.parametrize("device", ["mps", "xpu", "meta"])
def test_memory_that_is_not_pinned_is_waited_for(device, monkeypatch):
    """Rows that are gathered for a batch are freed at once: a copy of them that nobody waits for may read what has
    taken their place."""
    asked: list[dict[str, Any]] = []

    def to(tensor: torch.Tensor, where: torch.device, **options: Any) -> torch.Tensor:
        asked.append(options)
        return tensor

    monkeypatch.setattr(torch.Tensor, "to", to)
    source = torch.arange(12).view(6, 2)
    sent = rows_for(torch.device(device), source, torch.tensor([4, 1]))
    assert sent.tolist() == [[8, 9], [2, 3]]
    assert not any(options.get("non_blocking") for options in asked)
