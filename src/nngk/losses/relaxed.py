"""A second generation: the distances that other networks find between images, in place of their classes."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from nngk.errors import InputError
from nngk.losses import samplers
from nngk.losses.objective import Objective

NEAREST = 1e-6  # the gradient of a distance has no direction at zero


class RelaxedContrastive(Objective):
    """The relaxed contrastive loss of Kim, Kim, Cho and Kwak (CVPR 2021), whose teachers see what the network sees.

    Two images of a batch attract each other by the Gaussian kernel of their distance for the teacher, and repel each
    other by the rest, up to ``margin``. Distances of the network count relative to their mean from each image, so that
    nothing is asked of the scale of its embeddings. Every image comes twice, cropped differently.

    >>> from nngk.networks import create_network
    >>> teacher = create_network("small", dim=4, weights="random").eval()
    >>> loss = RelaxedContrastive([teacher])
    >>> loss.see(torch.rand(6, 3, 32, 32))
    >>> loss(torch.randn(6, 4), torch.tensor([0, 0, 0, 1, 1, 1])).shape
    torch.Size([])

    Args:
        teachers: networks in evaluation mode; of several, the mean of their squared distances counts.
        width: the teachers' kernel of two images is exp(-d² / width), of embeddings scaled to unit length.
        margin: how far, in mean distances, images that have nothing in common are pushed apart.
        sampler: gives batches of different images, of half the size.
    """

    name = "relaxed-contrastive"
    normalise = False

    def __init__(
        self,
        teachers: Sequence[nn.Module],
        width: float = 1.0,
        margin: float = 1.0,
        sampler: samplers.Sampler = samplers.even,
    ) -> None:
        super().__init__()
        if not teachers:
            raise InputError("A second generation needs at least one teacher.")
        self.teachers = tuple(teachers)  # not modules of this one: a checkpoint does not hold them
        self.width, self.margin = width, margin
        self.sampler = samplers.twice(sampler)
        self.likeness: Tensor | None = None  # the teachers' kernels of the batch to come

    @torch.no_grad()
    def see(self, images: Tensor, together: Callable[[Tensor], Tensor] = lambda share: share) -> None:
        """Ask the teachers about the batch to come."""
        d2 = torch.zeros((), device=images.device)
        for teacher in self.teachers:
            x = functional.normalize(together(teacher(images)).float())
            with torch.autocast(x.device.type, enabled=False):
                d2 = d2 + distances(x).square()
        self.likeness = torch.exp(-d2 / (self.width * len(self.teachers)))

    def forward(self, embeddings: Tensor, labels: Tensor, indices: Tensor | None = None) -> Tensor:
        if self.likeness is None or len(self.likeness) != len(embeddings):
            raise InputError("Show the images of the batch to the loss before their embeddings: loss.see(images).")
        likeness, self.likeness = self.likeness, None
        # Halves of precision lose the small distances.
        with torch.autocast(embeddings.device.type, enabled=False):
            x = embeddings if embeddings.dtype == torch.float64 else embeddings.float()
            return relaxed_contrastive(x, likeness.to(x.dtype), self.margin)


def relaxed_contrastive(x: Tensor, likeness: Tensor, margin: float) -> Tensor:
    """Return the loss of embeddings (n, dim) whose pairs are alike by (n, n) from 0 to 1; the diagonal does not count.

    >>> x = torch.tensor([[0.0], [0.0], [1.0]])
    >>> round(relaxed_contrastive(x, torch.eye(3), margin=1.0).item(), 3)
    0.667
    """
    n = len(x)
    others = ~torch.eye(n, dtype=torch.bool, device=x.device)
    d = distances(x) * others
    d = d / d.mean(1, keepdim=True)
    each = likeness * d.square() + (1 - likeness) * (margin - d).clamp(min=0).square()
    return (each * others).sum() / n


def distances(x: Tensor) -> Tensor:
    """Return the distances (n, n) between embeddings, of which those below ``NEAREST`` have no gradient."""
    x = x - x.mean(0)
    squares = x.square().sum(1)
    return (squares[:, None] + squares - 2 * x @ x.T).clamp(min=NEAREST**2).sqrt()
