"""A model whose references live in a gallery: the same questions and the same answers."""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

import torch
from torch import Tensor

from nngk.data import BatchSource
from nngk.errors import InputError, whole_number
from nngk.gallery.interface import Gallery, View
from nngk.gallery.known import Known
from nngk.gallery.references import References, reference_ids
from nngk.kernel.predict import Prediction, answer
from nngk.model import Answer, Evidence, Model
from nngk.model.adding import added_log_weight
from nngk.model.answers import composed_answers, evidence_at
from nngk.model.classes import Classes, first_of_each, require_class, require_new, require_two
from nngk.model.features import Described
from nngk.model.pictures import Picture, as_list, name_of
from nngk.model.unknown import measured


@dataclass(frozen=True)
class Around:
    """What the references around n images say, and those references one after the other."""

    found: Prediction  # whose neighbours are places in the two below
    labels: Tensor  # (n * k,), places of class names
    sources: list[str]


@dataclass(frozen=True)
class Change:
    """What a change takes out of a gallery and what it brings; a row that is in both is replaced."""

    added: References
    removed: References

    def reverse(self) -> "Change":
        """Return the change that takes this one back."""
        return Change(self.removed, self.added)

    def write(self, gallery: Gallery) -> None:
        """Make the change, at once."""
        gallery.change(self.added, self.removed.ids[~torch.isin(self.removed.ids, self.added.ids)])


class GalleryModel:
    """A model over a gallery in place of its own centres; its kernels answer, also where it has a softmax layer.

    It is a state that never changes: ``add``, ``remove``, ``rename`` and ``merge`` return the change that would be
    made, and :meth:`after` the model with it.
    """

    classifier = "kernels"

    def __init__(self, model: Model, gallery: Gallery, known: Known | None = None) -> None:
        self.model, self.gallery = model, gallery
        self.view: View = gallery.view()
        self.known = Known.of(gallery.scan()) if known is None else known
        self.class_names = self.known.names
        self.images = self.known.count()
        self._places = {name: place for place, name in enumerate(self.class_names)}
        self._means = self.known.means()
        placed = [name for name, each in self.known.classes.items() if each.coordinates is not None]
        trained = model.classes.trained_names
        self._sizes = torch.tensor([len(self.known.classes[name].sources) for name in placed], dtype=torch.int64)
        self._taught = torch.tensor([name not in trained for name in placed], dtype=torch.bool)
        self._is_trained = torch.tensor([name in trained for name in self.class_names], dtype=torch.bool)

    @property
    def network(self) -> Any:
        """Return the model's network."""
        return self.model.network

    def replica(self, before: "GalleryModel | None" = None) -> "GalleryModel":
        """Return the same model for another thread, with the network of a replica that it had ``before``."""
        other = copy.copy(self)
        other.model = self.model.replica(None if before is None else before.model)
        return other

    def thumbnail(self, source: str) -> bytes:
        """Return the small JPEG that the model keeps of an image; empty where it keeps none."""
        return self.model.thumbnail(source)

    def sources_by_class(self) -> dict[str, list[str]]:
        """Return where the images of each class came from."""
        return {name: list(each.sources.values()) for name, each in self.known.classes.items()}

    # -- questions

    def embed(self, images: Picture | Sequence[Picture]) -> Tensor:
        """Return the embeddings (n, dim) of images."""
        return self.model.embed(images)

    @overload
    def classify(self, images: Picture, evidence: int = 5) -> Answer: ...  # type: ignore[overload-overlap]
    @overload
    def classify(self, images: Sequence[Picture], evidence: int = 5) -> list[Answer]: ...
    def classify(self, images: Picture | Sequence[Picture], evidence: int = 5) -> Answer | list[Answer]:
        """Return label, probabilities, the references that decided it, and how unknown the image is."""
        whole_number("evidence", evidence, 0)
        pictures, single = as_list(images)
        seen = self.model.describe(pictures)
        answers = self.answers(seen.embeddings, evidence, features=seen.features)
        return answers[0] if single else answers

    def answers(self, embeddings: Tensor, evidence: int = 5, *, features: Tensor | None = None) -> list[Answer]:
        """Return the answers for embeddings that are already computed; their features sharpen the unknown score."""
        evidence = whole_number("evidence", evidence, 0)
        if not len(embeddings):
            return []
        near, familiar = self._around(embeddings, self.model.n_neighbours or self.images), self.model.familiar
        space = familiar.space
        coordinates = None if features is None or space is None else space.coordinates(features.cpu())
        of_classes = (self._taught, self._is_trained, space, self._sizes)
        alike = familiar.alike(measured(near.found, self._means, coordinates, *of_classes))
        probabilities = near.found.log_probabilities.exp()
        return composed_answers(
            near.found,
            probabilities,
            alike,
            familiar.score(alike),
            self.class_names,
            near.labels,
            near.sources,
            evidence,
        )

    @overload
    def search(self, images: Picture, k: int = 10) -> list[Evidence]: ...  # type: ignore[overload-overlap]
    @overload
    def search(self, images: Sequence[Picture], k: int = 10) -> list[list[Evidence]]: ...
    def search(self, images: Picture | Sequence[Picture], k: int = 10) -> list[Evidence] | list[list[Evidence]]:
        """Return the ``k`` most similar images of the gallery, nearest first."""
        self._require_classes()
        k = whole_number("k", k, 1, self.images, "the number of images in the gallery")
        pictures, single = as_list(images)
        if not pictures:
            return []
        rows = self.nearest(self.model.embed(pictures), k)
        return rows[0] if single else rows

    def nearest(self, embeddings: Tensor, k: int) -> list[list[Evidence]]:
        """Return the ``k`` most similar images of the gallery for each of the embeddings."""
        self._require_classes()
        near = self._around(embeddings, whole_number("k", k, 1, self.images, "the number of images in the gallery"))
        return evidence_at(near.found, self.class_names, near.labels, near.sources)

    def described(self, source: BatchSource) -> Described:
        """Return what the network sees in the pictures of a source."""
        return self.model.described(source)

    def described_parts(self, source: BatchSource) -> Iterator[Described]:
        """Yield what the network sees in the pictures of a source, some at a time."""
        return self.model.described_parts(source)

    def _around(self, embeddings: Tensor, k: int) -> Around:
        self._require_classes()
        x = embeddings.detach().cpu().float()
        near = self.view.search(x, min(k, self.images))
        # A class that somebody else has brought since is not known to this state.
        labels = torch.tensor([[self._places.get(label, -1) for label in row] for row in near.labels])
        places = torch.arange(labels.numel()).view(labels.shape).masked_fill(labels < 0, -1)
        squared = near.squared.masked_fill(labels < 0, torch.inf)
        if not squared.isfinite().any(1).all():
            raise InputError("The gallery was emptied: fill it again with nngk embed.")
        flat = labels.flatten().clamp(min=0)
        found = answer(squared, places, flat, near.theta.flatten(), self.model.sigma, len(self.class_names))
        return Around(found, flat, [source for row in near.sources for source in row])

    def _require_classes(self) -> None:
        if not self.images:
            raise InputError("The gallery holds no images: fill it with nngk embed, or teach it a class.")

    # -- classes that come and go

    def after(self, change: Change) -> "GalleryModel":
        """Return the model after a change was made in its gallery."""
        return GalleryModel(self.model, self.gallery, self.known.without_rows(change.removed).with_rows(change.added))

    def add(self, name: str, images: Picture | Sequence[Picture], *, sure: bool = False) -> Change:
        """Return the change that makes images a class, or more images of one, as :meth:`nngk.Model.add` does."""
        shown, seen = self.model.shown(self.class_names, name, images, sure)
        rows, k = seen.embeddings.float(), self.model.n_neighbours or max(1, self.images)
        near = self._nearest(rows, k)
        chosen = first_of_each(self._classes(near), name, rows)
        if not len(chosen):
            raise InputError(f"Every image given for '{name}' is in the gallery already.")
        rows, space = rows[chosen], self.model.familiar.space
        weight = self.known.usual_weight(name, len(rows))
        if name not in self.class_names and len(near) and len(rows) > 1:
            # All that counts for the weight: the references around the new ones, and those around these.
            around = self._classes(self._nearest(near.vectors, k + 1))
            args = around.centres, around.theta, self.model.sigma, rows, k, weight
            weight = added_log_weight(around.engine, *args)
        coordinates = None if space is None else space.coordinates(seen.features[chosen])
        sources = [name_of(shown.pictures[i], name, i) for i in chosen.tolist()]
        taken = self.known.classes[name].sources if name in self.known.classes else ()
        labels, theta = [name] * len(rows), torch.full((len(rows),), weight)
        added = References.of(reference_ids(labels, sources, taken), rows, labels, sources, theta, coordinates)
        return Change(added, added.select(torch.empty(0, dtype=torch.int64)))

    def remove(self, name: str) -> Change:
        """Return the change that forgets a class."""
        gone = self._of(name)
        return Change(gone.select(torch.empty(0, dtype=torch.int64)), gone)

    def rename(self, name: str, to: str) -> Change:
        """Return the change that gives a class another name."""
        require_new(self.class_names, to)
        rows = self._of(name)
        return Change(rows.labelled(to), rows)

    def merge(self, name: str, into: str) -> Change:
        """Return the change that makes the images of one class those of another."""
        require_two(self.class_names, name, into)
        rows = self._of(name)
        return Change(rows.labelled(into), rows)

    def _of(self, name: str) -> References:
        require_class(self.class_names, name)
        return self.view.get(list(self.known.classes[name].sources))

    def _nearest(self, rows: Tensor, k: int) -> References:
        """Return the references that are among the ``k`` nearest of any row."""
        if not self.images:
            return self.view.get([])
        ids = self.view.search(rows, min(k, self.images)).ids
        return self.view.get(ids[ids >= 0].unique())

    def _classes(self, rows: References) -> Classes:
        labels = torch.tensor([self._places.get(label, -1) for label in rows.labels], dtype=torch.int64)
        rows, labels = rows.select(labels >= 0), labels[labels >= 0]
        return Classes(self.class_names, rows.vectors, labels, rows.theta, rows.sources)


def references_of(model: Model) -> References:
    """Return a model's own centres as references."""
    labels = [model.class_names[label] for label in model.labels.tolist()]
    ids = reference_ids(labels, model.sources)
    return References.of(ids, model.classes.positions, labels, model.sources, model.theta, model.classes.coordinates)
