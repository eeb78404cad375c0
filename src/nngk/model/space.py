"""A space of a network's own features in which the unknown lies far from every class."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

# What the spread within classes is rounded by: as much again as its mean in every direction.
SHRINKAGE = 1.0
# Directions at least: the few in which few classes differ say little about what is unlike all of them.
FEWEST = 32
REST = 0.7  # what the directions in which classes do not differ count for
PLAIN = 256  # directions by chance at most, which keep the cosines of features but for a sixteenth
ENOUGH = 20_000  # images that are enough to measure a spread
SOME = 500  # images that are enough to see in which other directions they vary


@dataclass(frozen=True)
class Space:
    """Coordinates of features in which classes are round and far apart: a linear discriminant, not normalised.

    The discriminant of few classes does not tell others apart, which lie together in the middle of it. Beside it such a
    space has plain directions, in which the features themselves are seen: where they point, as seen from the middle.
    """

    directions: Tensor  # (channels, d)
    origin: Tensor  # (channels,)
    plain: Tensor | None = None  # (channels, p)

    def coordinates(self, features: Tensor) -> Tensor:
        """Return the coordinates (n, d + p) of features (n, channels), the plain ones last."""
        x = features.to(self.directions) - self.origin
        if self.plain is None:
            return x @ self.directions
        return torch.cat([x @ self.directions, torch.nn.functional.normalize(x @ self.plain)], 1)

    @property
    def width(self) -> int:
        """Return how many coordinates an image has."""
        return self.directions.shape[1] + (0 if self.plain is None else self.plain.shape[1])

    def apart(self, coordinates: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the coordinates of the discriminant, and the plain ones where there are any."""
        count = self.directions.shape[1]
        return coordinates[:, :count], None if self.plain is None else coordinates[:, count:]


def fit_space(features: Tensor, labels: Tensor) -> Space:
    """Return the space of features (n, channels) with labels (n,) of two classes at least.

    Its directions are those in which the class means differ, and if these are few, those in which images vary most
    besides; distances in it are Mahalanobis distances under the shrunk spread within classes.
    """
    some = spread_over(len(features), ENOUGH).to(features.device)
    x, (present, which) = features[some].double(), labels[some].unique(return_inverse=True)
    origin = x.mean(0)
    x = x - origin
    means = x.new_zeros(len(present), x.shape[1]).index_add_(0, which, x) / torch.bincount(which)[:, None]
    within = x - means[which]
    spread = within.T @ within / len(x)
    spread.diagonal().add_(SHRINKAGE * spread.diagonal().mean() + 1e-12)
    factor = torch.linalg.cholesky(spread)  # in whose coordinates every class is round
    basis = _spanned(_round(factor, means), len(present) - 1)
    plain = None
    if basis.shape[1] < FEWEST:
        plain = plain_directions(x.shape[1]).to(features)
    more = min(FEWEST - basis.shape[1], x.shape[1] - basis.shape[1])
    if more > 0:
        rest = _round(factor, x[spread_over(len(x), SOME).to(x.device)])
        rest = rest - rest @ basis @ basis.T
        basis = torch.cat([basis, REST * _spanned(rest, more)], 1)
    directions = torch.linalg.solve_triangular(factor.T, basis, upper=True)
    return Space(directions.to(features.dtype), origin.to(features.dtype), plain)


def plain_directions(channels: int) -> Tensor:
    """Return directions (channels, p) by chance in which lengths and cosines are nearly kept; all where there are few.

    >>> torch.equal(plain_directions(3), torch.eye(3)), plain_directions(1000).shape
    (True, torch.Size([1000, 256]))
    """
    if channels <= PLAIN:
        return torch.eye(channels)
    return torch.randn(channels, PLAIN, generator=torch.Generator().manual_seed(0)) / math.sqrt(PLAIN)


def _round(factor: Tensor, rows: Tensor) -> Tensor:
    """Return rows in coordinates in which the spread that ``factor`` is the Cholesky factor of is the identity."""
    return torch.linalg.solve_triangular(factor, rows.T, upper=False).T


def _spanned(rows: Tensor, count: int) -> Tensor:
    """Return at most ``count`` orthonormal directions (columns) in which rows extend most.

    From the products of the rows, of which there are fewer than features.
    """
    values, vectors = torch.linalg.eigh(rows @ rows.T)
    values, vectors = values.flip(0), vectors.flip(1)
    kept = values[:count] > 1e-10 * values[0].clamp(min=1e-300)
    return rows.T @ (vectors[:, :count] * values[:count].clamp(min=1e-300).rsqrt())[:, kept]


def spread_over(total: int, limit: int) -> Tensor:
    """Return at most ``limit`` of ``total`` places, evenly over all of them: images lie class by class.

    >>> spread_over(9, 3).tolist(), spread_over(2, 3).tolist()
    ([0, 4, 8], [0, 1])
    """
    return torch.linspace(0, total - 1, min(limit, total), dtype=torch.float64).round().long()
