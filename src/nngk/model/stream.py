"""Answers as they come: picture by picture, in order, while the next ones are being decoded."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from torch import Tensor

from nngk.data import BatchSource
from nngk.errors import InputError
from nngk.model.answers import Answer, Evidence
from nngk.model.features import Described
from nngk.model.pictures import Picture, Pictures
from nngk.networks import EmbeddingNetwork


class Asked(Protocol):
    """A model that can be asked: one with references of its own, or one over a gallery."""

    @property
    def network(self) -> EmbeddingNetwork: ...

    def described_parts(self, source: BatchSource) -> Iterator[Described]: ...

    def answers(self, embeddings: Tensor, evidence: int = 5, *, features: Tensor | None = None) -> list[Answer]: ...

    def nearest(self, embeddings: Tensor, k: int) -> list[list[Evidence]]: ...


def classify_each(model: Asked, pictures: Sequence[Picture], evidence: int = 5) -> Iterator[Answer | InputError]:
    """Yield the answer for each picture, or why it cannot be read."""
    for broken, seen in _described(model, pictures):
        answers = model.answers(seen.embeddings, evidence, features=seen.features)
        yield from (InputError(why) if why else answer for answer, why in zip(answers, broken))


def search_each(model: Asked, pictures: Sequence[Picture], k: int) -> Iterator[list[Evidence] | InputError]:
    """Yield the ``k`` most similar images of the bank for each picture, or why it cannot be read."""
    for broken, seen in _described(model, pictures):
        found = model.nearest(seen.embeddings, k)
        yield from (InputError(why) if why else hits for hits, why in zip(found, broken))


def _described(model: Asked, pictures: Sequence[Picture]) -> Iterator[tuple[list[str], Described]]:
    """Yield some pictures at a time as the network sees them, with why each of them cannot be read, or ''."""
    spec = model.network.input
    source, done = Pictures(pictures, spec.resize, squash=spec.squash, tolerant=True, middle=spec.size), 0
    for seen in model.described_parts(source):
        places = range(done, done + len(seen.embeddings))
        done += len(places)
        yield [source.broken.get(place, "") for place in places], seen
