"""References on their way into a gallery and out of it, and what a search among them finds."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nngk.errors import InputError


@dataclass(frozen=True)
class References:
    """Embeddings of images with what an answer says about each: its class, where it came from and how much it weighs.

    A row is known by its id, which follows from its class and its source (:func:`reference_ids`).
    """

    ids: Tensor  # (n,) int64
    vectors: Tensor  # (n, dim) float32; (n, 0) where they were not asked for
    labels: list[str]
    sources: list[str]
    theta: Tensor  # (n,) float32, log weights
    coordinates: Tensor  # (n, d) float32, in the space of the unknown score; d is 0 without one

    def __post_init__(self) -> None:
        if not isinstance(self.labels, list) or not isinstance(self.sources, list):
            raise InputError("References need a list of labels and one of sources.")
        n = len(self.labels)
        if any(not isinstance(text, str) for text in self.labels + self.sources) or len(self.sources) != n:
            raise InputError(f"References need one label and one source each, both texts; got {n} labels.")
        shapes = {"ids": (n,), "vectors": (n, None), "theta": (n,), "coordinates": (n, None)}
        for name, shape in shapes.items():
            tensor = getattr(self, name)
            fits = tensor.ndim == len(shape) and len(tensor) == n
            if not fits or tensor.dtype != (torch.int64 if name == "ids" else torch.float32):
                raise InputError(f"The {name} of {n} references are {tensor.dtype} of shape {tuple(tensor.shape)}.")
            if name != "ids" and not torch.isfinite(tensor).all():
                raise InputError(f"The {name} of references are NaN or infinite.")
        if n and (int(self.ids.min()) < 0 or len(self.ids.unique()) != n):
            raise InputError("The ids of references must differ and count from 0.")

    @classmethod
    def of(
        cls,
        ids: Tensor,
        vectors: Tensor,
        labels: list[str],
        sources: list[str],
        theta: Tensor,
        coordinates: Tensor | None = None,
    ) -> "References":
        """Return references from tensors of any device and precision; without coordinates these have no width."""
        space = torch.empty(len(labels), 0) if coordinates is None else coordinates
        vectors, theta, space = (tensor.detach().cpu().float() for tensor in (vectors, theta, space))
        return cls(ids, vectors, labels, sources, theta, space)

    def __len__(self) -> int:
        return len(self.labels)

    def select(self, places: Tensor) -> "References":
        """Return some of the rows, by place or by mask."""
        places = places.nonzero().flatten() if places.dtype == torch.bool else places
        chosen = places.tolist()
        return References(
            self.ids[places],
            self.vectors[places],
            [self.labels[i] for i in chosen],
            [self.sources[i] for i in chosen],
            self.theta[places],
            self.coordinates[places],
        )

    def labelled(self, label: str) -> "References":
        """Return the same rows, under their ids, as images of another class."""
        return replace(self, labels=[label] * len(self))

    def without_vectors(self) -> "References":
        """Return the rows with vectors of no width."""
        return replace(self, vectors=self.vectors[:, :0])

    def tensors(self) -> dict[str, Tensor]:
        """Return everything as tensors, ready for a file; :meth:`read` turns them back."""
        texts = json.dumps([self.labels, self.sources]).encode()  # ASCII: it carries names that are no text
        named = {name: getattr(self, name) for name in ("ids", "vectors", "theta", "coordinates")}
        return named | {"texts": torch.tensor(list(texts), dtype=torch.uint8)}

    @classmethod
    def read(cls, tensors: dict[str, Tensor]) -> "References":
        """Return the rows of :meth:`tensors`. Raise InputError if they are none."""
        missing = {"ids", "vectors", "theta", "coordinates", "texts"} - tensors.keys()
        if missing:
            raise InputError(f"References lack {', '.join(sorted(missing))}.")
        try:
            labels, sources = json.loads(tensors["texts"].numpy().tobytes())
        except (ValueError, TypeError, RecursionError):
            raise InputError("The texts of references cannot be read.") from None
        named: dict[str, Any] = {name: tensors[name] for name in ("ids", "vectors", "theta", "coordinates")}
        return cls(labels=labels, sources=sources, **named)


def joined(parts: list[References]) -> References:
    """Return rows of several parts, one after the other; there must be one part at least."""
    if len(parts) == 1:
        return parts[0]
    return References(
        torch.cat([part.ids for part in parts]),
        torch.cat([part.vectors for part in parts]),
        [label for part in parts for label in part.labels],
        [source for part in parts for source in part.sources],
        torch.cat([part.theta for part in parts]),
        torch.cat([part.coordinates for part in parts]),
    )


def no_references(dim: int, width: int) -> References:
    """Return no rows, of these dimensions."""
    return References(
        torch.empty(0, dtype=torch.int64), torch.empty(0, dim), [], [], torch.empty(0), torch.empty(0, width)
    )


def reference_ids(labels: Iterable[str], sources: Iterable[str], taken: Iterable[int] = ()) -> Tensor:
    """Return the ids of images of classes that came from ``sources``: the same for the same image, whenever asked.

    Another image of the same class and source, and one whose id is ``taken``, is counted on.

    >>> one, two = reference_ids(["owl", "owl"], ["1.jpg", "1.jpg"]).tolist()
    >>> reference_ids(["owl"], ["1.jpg"]).item() == one, reference_ids(["owl"], ["1.jpg"], taken=[one]).item() == two
    (True, True)
    """
    used, out = set(taken), []
    for label, source in zip(labels, sources):
        number = next(n for n in (_id(label, source, i) for i in count()) if n not in used)
        used.add(number)
        out.append(number)
    return torch.tensor(out, dtype=torch.int64)


def _id(label: str, source: str, number: int) -> int:
    said = "\0".join([label, source, *([str(number)] if number else [])]).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.sha256(said).digest()[:8], "big") >> 1


class Found(NamedTuple):
    """The nearest references of n queries, nearest first; where fewer than k were found, id -1 at infinity."""

    ids: Tensor  # (n, k)
    squared: Tensor  # (n, k), squared distances
    labels: list[list[str]]
    theta: Tensor  # (n, k)
    sources: list[list[str]]
