"""Softmax: cross-entropy on a linear layer over the embedding."""

from torch import Tensor, nn
from torch.nn import functional

from nngk.losses.objective import BatchLoss


class Softmax(BatchLoss):
    """Softmax cross-entropy.

    Equation: ``L = mean_i [ logsumexp_c(w_c·x_i + b_c) - (w_y·x_i + b_y) ]``.

    Notes: the embedding is the layer before the classifier, not normalised.

    Paper's settings: the linear layer is new while the network is pretrained; it learns ten times as fast, as the
    embedding layer does in every system compared here.

    >>> import torch
    >>> Softmax(dim=2, n_classes=3).logits(torch.zeros(1, 2)).shape
    torch.Size([1, 3])
    """

    name = "softmax"
    normalise = False
    has_logits = True
    lr_factor = 10.0

    def __init__(self, *, dim: int, n_classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(dim, n_classes)

    def logits(self, embeddings: Tensor) -> Tensor:
        return functional.linear(embeddings, self.linear.weight.to(embeddings), self.linear.bias.to(embeddings))

    def layer(self) -> dict[str, Tensor]:
        return {"weight": self.linear.weight, "bias": self.linear.bias}

    def compute(self, x: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(self.logits(x), labels)
