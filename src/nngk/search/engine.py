"""What every neighbour-search engine offers."""

from typing import Protocol, runtime_checkable

from torch import Tensor

from nngk.search.checks import Points


@runtime_checkable
class Engine(Protocol):
    """A set of points that answers nearest-neighbour questions.

    Points and queries are tensors or numpy arrays; answers are tensors. Distances are squared and Euclidean, in
    increasing order; indices count the points in the order in which they were added. ``k`` is at most the number of
    points. Where an engine finds fewer than ``k``, the rest of a row is index -1 at distance infinity.
    """

    def __len__(self) -> int:
        """Return the number of indexed points."""
        ...

    def add(self, x: Points) -> Tensor:
        """Add points (n, dim); return their indices (n,)."""
        ...

    def search(self, x: Points, k: int) -> tuple[Tensor, Tensor]:
        """Return the ``k`` nearest points of each query: squared distances (n, k) and indices (n, k)."""
        ...

    def all_neighbours(self, k: int) -> tuple[Tensor, Tensor]:
        """Return the ``k`` nearest other points of every point: without its own index, with its duplicates."""
        ...

    def update(self, x: Points) -> None:
        """Move all points to ``x`` (len(self), dim); they keep their indices."""
        ...
