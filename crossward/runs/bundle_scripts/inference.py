"""Inference: every image of the dataset through the network, to a CSV, and to masks if it segments."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch


class Inference:
    """`run` writes a CSV: the image, the predicted class and the probability of each class. Networks that segment
    write masks of their own resolution into the folder `masks`, and the CSV has the share of each class. `classes` is
    a file of their names."""

    def __init__(
        self,
        dataloader: Iterable[dict[str, Any]],
        network: Callable[..., torch.Tensor],
        inferer: Callable[..., torch.Tensor],
        postprocessing: Callable[[dict[str, Any]], dict[str, Any]],
        classes: str,
        output: str,
        device: torch.device,
        masks: str = "",
    ) -> None:
        self.dataloader, self.network, self.inferer, self.postprocessing = dataloader, network, inferer, postprocessing
        self.classes: list[str] = json.loads(Path(classes).read_text())
        self.output, self.device, self.masks = Path(output), device, masks

    def run(self) -> None:
        with self.output.open("w", newline="", encoding="utf-8") as stream, torch.inference_mode():
            writer = csv.writer(stream)
            writer.writerow(["image", "mask" if self.masks else "predicted", *self.classes])
            for batch in self.dataloader:
                predicted = self.inferer(batch["image"].to(self.device), self.network)
                for file, one in zip(batch["file"], predicted, strict=True):
                    done = self.postprocessing({"pred": one, "label": one})
                    writer.writerow([file, *self._row(file, done)])

    def _row(self, file: str, done: dict[str, Any]) -> list[str]:
        probabilities = torch.as_tensor(done["pred"]).cpu()
        labels = torch.as_tensor(done["label"]).cpu().long()
        if not self.masks:
            return [self._predicted_label(labels.flatten()), *(f"{p:.6f}" for p in probabilities.flatten().tolist())]
        shares = torch.bincount(labels.flatten(), minlength=len(self.classes)) / labels.numel()
        return [self._save(file, labels[0]), *(f"{share:.6f}" for share in shares.tolist())]

    def _predicted_label(self, labels: torch.Tensor) -> str:
        """The class, or of several labels those that are 1."""
        if len(labels) == 1:
            return self.classes[int(labels)]
        return "|".join(self.classes[k] for k in labels.nonzero()[:, 0].tolist()) or "none"

    def _save(self, file: str, labels: torch.Tensor) -> str:
        from PIL import Image

        folder = Path(self.masks)
        folder.mkdir(parents=True, exist_ok=True)
        mask = folder / f"{Path(file).stem}.png"
        number = 2
        while mask.exists():
            mask = folder / f"{Path(file).stem}-{number}.png"
            number += 1
        shades = labels * (255 // (len(self.classes) - 1))
        Image.fromarray(shades.to(torch.uint8).numpy()).save(mask)
        return str(mask)
