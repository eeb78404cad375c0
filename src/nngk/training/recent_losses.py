"""Losses on their way from the device, and what is said when one of them is not finite."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from nngk.errors import InputError

SHOWN = 3  # files of a batch that are named


@dataclass
class RecentLosses:
    """The losses of the steps since they were last read; reading each at once would stall a GPU.

    >>> recent = RecentLosses([Path("a.png"), Path("b.png")])
    >>> recent.add(0, torch.tensor(0.5), torch.tensor([1]))
    >>> recent.read(), len(recent)
    (0.5, 0)
    """

    paths: Sequence[Path]  # of the training images
    steps: list[tuple[int, Tensor, Tensor]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.steps)

    def add(self, step: int, loss: Tensor, indices: Tensor) -> None:
        """Take in the loss of a step, counted from 0, and the training indices of its batch."""
        self.steps.append((step, loss, indices))

    def read(self) -> float:
        """Return the sum of the losses since the last look; raise InputError if one is not finite."""
        steps, self.steps = self.steps, []
        values = torch.stack([loss for _, loss, _ in steps]) if steps else torch.zeros(1)
        total = float(values.sum())
        if math.isfinite(total):
            return total
        first = int((~values.isfinite()).nonzero()[0, 0]) if not values.isfinite().all() else len(steps) - 1
        step, loss, indices = steps[first]
        chosen = indices.tolist()
        names = ", ".join(str(self.paths[i]) for i in chosen[:SHOWN]) + (", …" if len(chosen) > SHOWN else "")
        raise InputError(
            f"The loss became {float(loss)} at step {step + 1}, with the images {names}: training diverged. "
            "Lower --lr, set --clip, or raise --sigma; if it is always these images, look at them."
        )
