"""Answers as they come: picture by picture, in order, while the next ones are being decoded.

They are composed by a worker that has one of PyTorch's threads: more would keep cores from those that decode.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from torch import Tensor

from nngk.data import BatchSource
from nngk.errors import InputError
from nngk.model.answers import Answer, Evidence
from nngk.model.features import Described
from nngk.model.pictures import Picture, Pictures
from nngk.networks import EmbeddingNetwork
from nngk.networks.workers import workers_with


class Asked(Protocol):
    """A model that can be asked: one with references of its own, or one over a gallery."""

    @property
    def network(self) -> EmbeddingNetwork: ...

    def described_parts(self, source: BatchSource) -> Iterator[Described]: ...

    def answers(self, embeddings: Tensor, evidence: int = 5, *, features: Tensor | None = None) -> list[Answer]: ...

    def nearest(self, embeddings: Tensor, k: int) -> list[list[Evidence]]: ...


T = TypeVar("T")


def classify_each(model: Asked, pictures: Sequence[Picture], evidence: int = 5) -> Iterator[Answer | InputError]:
    """Yield the answer for each picture, or why it cannot be read."""
    return _each(model, pictures, lambda seen: model.answers(seen.embeddings, evidence, features=seen.features))


def search_each(model: Asked, pictures: Sequence[Picture], k: int) -> Iterator[list[Evidence] | InputError]:
    """Yield the ``k`` most similar images of the bank for each picture, or why it cannot be read."""
    return _each(model, pictures, lambda seen: model.nearest(seen.embeddings, k))


def _each(
    model: Asked, pictures: Sequence[Picture], compose: Callable[[Described], list[T]]
) -> Iterator[T | InputError]:
    """Yield what is made of each picture as the network sees it, or why it cannot be read."""
    spec = model.network.input
    source, done = Pictures(pictures, spec.resize, squash=spec.squash, tolerant=True, middle=spec.size), 0
    with workers_with(1, threads=1) as worker:
        for seen in model.described_parts(source):
            made = worker.submit(compose, seen).result()
            for place, each in enumerate(made, done):
                yield InputError(source.broken[place]) if place in source.broken else each
            done += len(made)
