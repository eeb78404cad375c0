"""The temperature of a softmax layer, found on validation images as the kernels' σ is."""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

LOWEST, HIGHEST = 0.05, 20.0
HALVINGS = 40


def best_temperature(logits: Tensor, labels: Tensor) -> float:
    """Return the number that class scores (n, classes) are best divided by: that with the least loss on ``labels``.

    The loss is convex in its inverse, so that halving an interval finds it; it stays within bounds where every answer
    is right, and any larger scores would be better.

    >>> round(best_temperature(torch.tensor([[8.0, 0.0], [8.0, 0.0], [8.0, 0.0], [8.0, 0.0]]), torch.tensor([0, 0, 0, 1])), 2)
    7.28
    """  # noqa: E501
    low, high = 1 / HIGHEST, 1 / LOWEST
    scores, labels = logits.detach().double(), labels.to(logits.device)
    for _ in range(HALVINGS):
        middle = ((low * high) ** 0.5,)
        inverse = torch.tensor(middle, dtype=torch.float64, device=scores.device, requires_grad=True)
        with torch.enable_grad():
            (slope,) = torch.autograd.grad(cross_entropy(scores * inverse, labels), inverse)
        low, high = (low, middle[0]) if slope.item() > 0 else (middle[0], high)
    return (low * high) ** -0.5


def with_temperature(layer: dict[str, Tensor], temperature: float) -> dict[str, Tensor]:
    """Return a softmax layer ('weight', 'bias', perhaps 'scale') whose scores are divided by a temperature."""
    if "scale" in layer:
        return layer | {"scale": layer["scale"] / temperature}
    return layer | {name: layer[name] / temperature for name in ("weight", "bias")}
