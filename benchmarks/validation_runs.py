"""Runs on CUB's training classes alone: one half trains, the other validates, all images decoded on the device."""

import functools
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from nngk.data import Images, ImageTable, Split
from nngk.errors import InputError
from nngk.losses.objective import RivalLoss
from nngk.training.feed import Part
from nngk.training.run import Run
from nngk.training.settings import Settings
from nngk.training.step import take_step
from nngk.training.validation import validate


class Resident:
    """Images that lie decoded on the device; a part of them by their rows."""

    def __init__(self, pixels: Tensor, rows: Tensor) -> None:
        self.pixels, self.rows = pixels, rows

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, indices: Tensor) -> Tensor:
        return self.pixels[self.rows[indices.to(self.rows.device)]]


class ResidentRun(Run):
    """A run that reads its images where they are computed on."""

    def __init__(self, parts: Split, settings: Settings, folder: Path, pixels: Tensor, places: dict[Path, int]) -> None:
        super().__init__(parts, replace(settings, cache="off", resident_gib=0.0), folder)
        self.pixels, pixels = pixels, resized(pixels, self.network.input.resize)
        for part, table in ((self.parts.train, parts.train), (self.parts.val, parts.val)):
            part.source = Resident(pixels, torch.tensor([places[path] for path in table.paths], device=self.device))

    def embed(self, part: Part, network: nn.Module | None = None) -> Tensor:
        network = self.trainee if network is None else network
        training = network.training
        network.eval()
        with torch.no_grad(), torch.autocast(self.device.type, torch.bfloat16, enabled=self.amp):
            rows = [
                network(self.parts.plain(part.source.batch(indices), None)).float()
                for indices in torch.arange(len(part)).split(256)
            ]
        network.train(training)
        return torch.cat(rows)


@functools.lru_cache(maxsize=6)
def resized(pixels: Tensor, side: int) -> Tensor:
    """The images with another side, as a run that reads them so would decode them."""
    if pixels.shape[-1] == side:
        return pixels
    parts = [
        nn.functional.interpolate(some.float(), size=side, mode="bilinear", antialias=True)
        for some in pixels.split(512)
    ]
    return torch.cat([part.round().clamp(0, 255).byte() for part in parts])


def trained(run: ResidentRun, every: int) -> list[dict[str, float]]:
    """Train as the library does; what validation says after every so many epochs, and after the last."""
    s = run.settings
    labels = run.parts.train.labels.to(run.device)
    generator = torch.Generator()
    history: list[dict[str, float]] = []
    for epoch in range(s.epochs):
        if isinstance(run.objective, RivalLoss):
            everything = run.embed(run.parts.train) if run.objective.needs_embeddings else None
            run.objective.start_epoch(epoch, everything, labels)
        losses = []
        run.trainee.train()
        for indices in run.index_batches(epoch):
            generator.manual_seed(1_000_003 * s.seed + run.at.step)
            images = run.parts.augment(run.parts.train.source.batch(indices), generator)
            rows = indices.to(run.device)
            losses.append(take_step(run, images, labels[rows], rows))
            run.at.step += 1
        if not torch.stack(losses).isfinite().all():
            raise InputError(f"diverged in epoch {epoch + 1}")
        run.refresher.before_step(run.at.step, run.trainee)
        if (epoch + 1) % every == 0 or epoch + 1 == s.epochs:
            scores, _ = validate(run)
            history.append({**scores, "epoch": epoch + 1, "loss": float(torch.stack(losses).mean())})
    return history


def class_block(table: ImageTable, fold: int, folds: int = 2) -> Split:
    """A half of the classes, consecutive, to validate with; the rest to train with."""
    held = np.asarray(table.labels) * folds // len(table.class_names) == folds - 1 - fold % folds
    return Split(table.select(~held).compact(), table.select(held).compact(), table.select([]))


def resident_pixels(table: ImageTable, size: int, device: str, cache: Path | None) -> Tensor:
    """All images of a table, uint8 on the device."""
    images = Images(table, size, cache, squash=True)
    pixels = torch.empty((len(table), 3, size, size), dtype=torch.uint8, device=device)
    for indices in torch.arange(len(table)).split(256):
        pixels[indices[0] : indices[-1] + 1] = images.batch(indices).to(device)
    return pixels
