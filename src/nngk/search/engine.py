"""What every neighbour-search engine offers."""

from typing import Protocol, runtime_checkable

from torch import Tensor


@runtime_checkable
class Engine(Protocol):
    """A set of points that answers nearest-neighbour questions.

    Distances are squared and Euclidean, in increasing order; indices count the points in the order in which they
    were added. Where fewer than ``k`` points can be returned, the rest of a row is index -1 at distance infinity.
    """

    def __len__(self) -> int:
        """How many points are indexed."""
        ...

    def add(self, x: Tensor) -> Tensor:
        """Add points (n, dim); return their indices (n,)."""
        ...

    def search(self, x: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The ``k`` nearest points of each query: squared distances (n, k) and indices (n, k)."""
        ...

    def all_neighbours(self, k: int) -> tuple[Tensor, Tensor]:
        """The ``k`` nearest other points of every point: a point's own index is left out, its duplicates are not."""
        ...

    def update(self, x: Tensor) -> None:
        """All points moved to ``x`` (len(self), dim), keeping their indices."""
        ...
