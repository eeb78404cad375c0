"""What the trainer asks of every rival."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from nngk.errors import InputError
from nngk.losses import samplers


class RivalLoss(nn.Module, ABC):
    """A loss on a batch of embeddings, with the batches it wants and what it has to learn itself.

    A subclass writes ``compute``. Where ``normalise`` is true, ``forward`` scales the embeddings to unit length before
    ``compute`` sees them, whether or not the network has done so; the network that is evaluated should then end in
    the same normalisation, and in none where ``normalise`` is false.

    The trainer calls ``start_epoch``, then ``batches``, then the loss for every batch, then ``end_epoch``. State is in
    ``state_dict``: a loss that is loaded in the middle of an epoch gives the same batches again.

    >>> from nngk.losses import create_loss
    >>> loss = create_loss("softmax", dim=2, n_classes=3)
    >>> loss(torch.zeros(4, 2), torch.tensor([0, 1, 2, 0]), torch.arange(4)).shape
    torch.Size([])
    """

    name: str = ""
    normalise: bool = True
    needs_embeddings: bool = False
    has_logits: bool = False
    sampler: samplers.Sampler = staticmethod(samplers.random)
    lr_factor: float = 1.0

    def forward(self, embeddings: Tensor, labels: Tensor, indices: Tensor | None = None) -> Tensor:
        # Exponentials of half-precision distances overflow, so a caller's autocast ends here.
        with torch.autocast(embeddings.device.type, enabled=False):
            x = embeddings if embeddings.dtype == torch.float64 else embeddings.float()
            if x.ndim != 2 or labels.shape != x.shape[:1]:
                raise InputError(
                    f"The loss '{self.name}' expects embeddings (batch, dim) with a label each, got the shapes "
                    f"{tuple(embeddings.shape)} and {tuple(labels.shape)}."
                )
            return self.compute(functional.normalize(x) if self.normalise else x, labels)

    @abstractmethod
    def compute(self, x: Tensor, labels: Tensor) -> Tensor:
        """The loss of embeddings in full precision, scaled to unit length where ``normalise`` says so."""

    def logits(self, embeddings: Tensor) -> Tensor:
        """Class scores (batch, n_classes), where the loss trains a classifier (``has_logits``)."""
        raise InputError(
            f"The loss '{self.name}' has no classifier of its own: classify by nearest neighbours or by the kernel "
            "classifier over its embeddings."
        )

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        """Optimiser groups of the loss's own parameters, at the learning-rate factor of its paper."""
        parameters = list(self.parameters())
        return [{"params": parameters, "lr": lr * self.lr_factor}] if parameters else []

    def batches(self, labels: Tensor, batch_size: int, seed: int, epoch: int) -> list[Tensor]:
        """The epoch's batches of indices: the same for the same seed and epoch."""
        return self.sampler(labels, batch_size, seed, epoch)

    def start_epoch(self, epoch: int, embeddings: Tensor | None = None, labels: Tensor | None = None) -> None:
        """Called before an epoch; with all training embeddings, in eval mode, where ``needs_embeddings``."""

    def end_epoch(self) -> None:
        """Called after an epoch's last batch."""
