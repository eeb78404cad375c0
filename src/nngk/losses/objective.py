"""What the trainer asks of a loss, and the losses that need no more than a batch."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from nngk.errors import InputError
from nngk.losses import samplers


class Objective(nn.Module, ABC):
    """A loss as the trainer sees it; a subclass changes what is different about it.

    The trainer calls ``start_epoch``, then ``batches``, then ``before_step``, ``see`` and the loss itself for every
    batch, then ``end_epoch``. Everything that a resumed run needs is in the ``state_dict``: a loss that is loaded in
    the middle of an epoch gives the same batches again.
    """

    name: str = ""
    normalise: bool | None = None  # whether the network's embeddings have unit length; None: as the settings say
    has_logits: bool = False  # whether it trains a classifier of its own; without one, kernels classify
    sampler: samplers.Sampler = staticmethod(samplers.random)

    @abstractmethod
    def forward(self, embeddings: Tensor, labels: Tensor, indices: Tensor | None = None) -> Tensor:
        """Return the loss of a batch (B, dim) with labels (B,); ``indices`` (B,) are its rows in the training set."""

    def batches(self, labels: Tensor, batch_size: int, seed: int, epoch: int) -> list[Tensor]:
        """Return the epoch's batches of indices: the same for the same seed and epoch."""
        return self.sampler(labels, batch_size, seed, epoch)

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        """Return optimiser groups of the loss's own parameters, with their learning rates."""
        parameters = list(self.parameters())
        return [{"params": parameters, "lr": lr}] if parameters else []

    def start_epoch(self, epoch: int, embed: Callable[[], Tensor] | None = None) -> None:
        """Prepare an epoch; ``embed`` computes the embeddings of all training images, in evaluation mode."""

    def before_step(self, step: int, network: nn.Module) -> None:
        """Prepare a step of the network. Also called after an epoch's last step, before validation."""

    def see(self, images: Tensor, together: Callable[[Tensor], Tensor] = lambda share: share) -> None:
        """Look at the images of the step before the loss is asked; ``together`` joins what ranks made of their own."""

    def end_epoch(self) -> None:
        """Take in that an epoch's last batch is done."""

    def record(self, step: int) -> dict[str, Any]:
        """Return what the log should say about the loss after a step."""
        return {}

    def ailment(self) -> str:
        """Return what keeps the loss from learning anything, in a sentence for a person; '' where nothing does."""
        return ""

    @property
    def sigma(self) -> float:
        """The width of the kernels that classify, where no better one can be found."""
        return 1.0

    def logits(self, embeddings: Tensor) -> Tensor:
        """Return class scores (B, n_classes), where the loss trains a classifier of its own (``has_logits``)."""
        raise InputError(
            f"The loss '{self.name}' has no classifier of its own: classify by nearest neighbours or by the kernel "
            "classifier over its embeddings."
        )

    def layer(self) -> dict[str, Tensor] | None:
        """Return the classifier as the tensors that a model keeps ('weight', 'bias', perhaps 'scale'), if any."""
        return None


class BatchLoss(Objective):
    """A loss that a batch of embeddings and its labels determine.

    A subclass writes ``compute``. Where ``normalise`` is true, ``forward`` scales the embeddings to unit length before
    ``compute`` sees them, whether or not the network has done so; the network that is evaluated should then end in
    the same normalisation, and in none where ``normalise`` is false.

    >>> from nngk.losses import create_loss
    >>> loss = create_loss("softmax", dim=2, n_classes=3)
    >>> loss(torch.zeros(4, 2), torch.tensor([0, 1, 2, 0]), torch.arange(4)).shape
    torch.Size([])
    """

    normalise = True
    lr_factor: float = 1.0  # of the loss's own parameters, in its paper

    def forward(self, embeddings: Tensor, labels: Tensor, indices: Tensor | None = None) -> Tensor:
        # Exponentials of half-precision distances overflow, so a caller's autocast ends here.
        with torch.autocast(embeddings.device.type, enabled=False):
            x = embeddings if embeddings.dtype == torch.float64 else embeddings.float()
            if x.ndim != 2 or labels.shape != x.shape[:1]:
                raise InputError(
                    f"The loss '{self.name}' expects embeddings (batch, dim) with one label each, got the shapes "
                    f"{tuple(embeddings.shape)} and {tuple(labels.shape)}."
                )
            loss = self.compute(functional.normalize(x) if self.normalise else x, labels)
            # A miner may pass over pairs whose distance is NaN; embeddings that are not finite must not look harmless.
            return loss + 0 * x.sum()

    @abstractmethod
    def compute(self, x: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of embeddings in full precision, scaled to unit length where ``normalise`` says so."""

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        return super().parameter_groups(lr * self.lr_factor)
