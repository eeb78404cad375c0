"""What every gallery offers, wherever its references lie."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Protocol

from torch import Tensor

from nngk.errors import InputError
from nngk.gallery.references import Found, References

Ids = Tensor | Sequence[int]


class Unreachable(InputError):
    """A gallery on another machine did not answer, or not as it should."""


class View(Protocol):
    """References that can be searched. One of an embedded gallery never changes, whatever is written meanwhile."""

    def search(self, x: Tensor, k: int) -> Found:
        """Return the ``k`` nearest references of each row of x (n, dim)."""
        ...

    def get(self, ids: Ids) -> References:
        """Return the references with these ids, in this order; ids that are not there are left out."""
        ...


class Gallery(ABC):
    """References that outlive the process: what a call that returned has written is there after any kill."""

    @abstractmethod
    def count(self) -> int:
        """Return the number of references."""

    @abstractmethod
    def change(self, added: References | None = None, removed: Ids = ()) -> None:
        """Remove references by id and add others; one that is there already is replaced. Returns when that is safe."""

    def add(self, references: References) -> None:
        """Add references; those that are there already are replaced."""
        self.change(added=references)

    def remove(self, ids: Ids) -> None:
        """Remove references by id; ids that are not there are passed over."""
        self.change(removed=ids)

    @abstractmethod
    def search(self, x: Tensor, k: int) -> Found:
        """Return the ``k`` nearest references of each row of x (n, dim)."""

    @abstractmethod
    def get(self, ids: Ids) -> References:
        """Return the references with these ids, in this order; ids that are not there are left out."""

    @abstractmethod
    def scan(self) -> Iterator[References]:
        """Yield all references in parts, without their vectors."""

    @abstractmethod
    def flush(self) -> None:
        """Bring what was written into the form that is read fastest."""

    @abstractmethod
    def close(self) -> None:
        """Let others write."""

    def view(self) -> View:
        """Return what can be searched now."""
        return self

    def __enter__(self) -> "Gallery":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
