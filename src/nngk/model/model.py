"""Model: what training leaves behind and a person holds."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from PIL.Image import Image
from torch import Tensor

from nngk.data import Pictures, centre_crop, fitted_pictures
from nngk.errors import InputError
from nngk.kernel.predict import Prediction, predict
from nngk.networks import EmbeddingNetwork
from nngk.networks.embed import embed
from nngk.search import Exact

Picture = str | Path | Image | np.ndarray | Tensor


@dataclass(frozen=True)
class Evidence:
    """A training image behind an answer."""

    image: str  # where it came from
    label: str
    share: float  # of all the kernels around the question
    distance: float


@dataclass(frozen=True)
class Answer:
    """What the model says of one image, and why."""

    label: str
    probability: float
    probabilities: dict[str, float]  # of every class, likeliest first
    evidence: list[Evidence]  # largest share first
    unknown: float  # share of the images of known classes that lie in a denser place: near 1 is unlike all of them

    def to_dict(self) -> dict[str, Any]:
        return {
            "label": self.label,
            "probability": self.probability,
            "unknown": self.unknown,
            "probabilities": self.probabilities,
            "evidence": [vars(e) for e in self.evidence],
        }


def strangeness(density: Tensor, familiar: Tensor) -> Tensor:
    """The share of the familiar log densities (sorted) that are higher; below the lowest it goes on towards one.

    >>> strangeness(torch.tensor([5.0, 1.5, 0.0, -9.0]), torch.tensor([1.0, 2.0, 3.0])).mul(100).round().tolist()
    [0.0, 50.0, 93.0, 100.0]
    """
    n = len(familiar)
    if not n:
        return torch.ones_like(density)
    share = (n - torch.searchsorted(familiar, density)) / (n + 1)
    # Few images leave large steps: how far below the last of them tells apart what their number cannot.
    beyond = (familiar[0] - density).clamp(min=0) / familiar.std(correction=0).clamp(min=1e-6)
    return torch.where(beyond > 0, 1 - torch.exp(-beyond) / (n + 1), share)


class Model:
    """A network, its bank of centres, σ and class names.

    ``Model.load(folder)`` gives one; ``embed``, ``classify``, ``search``, ``add``, ``remove`` and ``save`` use it.
    Images are paths, PIL images, arrays or tensors, one or many; one gives one answer, a list gives a list.
    """

    def __init__(
        self,
        network: EmbeddingNetwork,
        *,
        centres: Tensor,
        labels: Tensor,
        theta: Tensor,
        sigma: float,
        class_names: list[str],
        sources: list[str],
        familiar: Tensor,
        n_neighbours: int | None = 100,
        softmax: dict[str, Tensor] | None = None,
        info: dict[str, Any] | None = None,
        device: str | torch.device = "cpu",
    ) -> None:
        self.device = torch.device(device)
        # Channels last: how convolutions read fastest, as in training.
        self.network = network.to(self.device).to(memory_format=torch.channels_last).eval().requires_grad_(False)
        self.centres, self.labels, self.theta = (t.detach().to(self.device) for t in (centres, labels, theta))
        self.sigma = sigma
        self.class_names = list(class_names)
        self.sources = list(sources)
        self.familiar = familiar.detach().cpu().sort().values  # log densities at images of the known classes
        self.n_neighbours = n_neighbours
        self.softmax = None if softmax is None else {k: t.detach().to(self.device) for k, t in softmax.items()}
        self.info = info or {}

    def __repr__(self) -> str:
        name = self.network.config["name"]
        return f"Model({name}, {len(self.class_names)} classes, {len(self.centres)} centres, sigma={self.sigma:.3g})"

    @classmethod
    def load(cls, folder: str | Path, device: str | torch.device = "cpu") -> "Model":
        """A model from its folder."""
        from nngk.model.storage import load_model

        return load_model(Path(folder), device)

    def save(self, folder: str | Path) -> None:
        """Write the model into a folder: safetensors and JSON. What was there stays whole until the new one is."""
        from nngk.model.storage import save_model

        save_model(self, Path(folder))

    # -- questions

    def embed(self, images: Picture | Sequence[Picture], batch_size: int | None = None) -> Tensor:
        """Embeddings (n, dim) of images, on the CPU."""
        pictures, _ = as_list(images)
        spec = self.network.input
        rows = embed(
            self.network,
            _Shown(pictures, spec.resize, spec.squash),
            centre_crop(spec.size, spec.mean, spec.std),
            batch_size=batch_size,
            device=self.device,
        )
        return rows.cpu()

    @overload
    def classify(self, images: Picture, evidence: int = 5) -> Answer: ...  # type: ignore[overload-overlap]
    @overload
    def classify(self, images: Sequence[Picture], evidence: int = 5) -> list[Answer]: ...
    def classify(self, images: Picture | Sequence[Picture], evidence: int = 5) -> Answer | list[Answer]:
        """Label, probabilities, the training images that decided it, and how unknown the image is."""
        pictures, single = as_list(images)
        answers = self.answers(self.embed(pictures), evidence)
        return answers[0] if single else answers

    @overload
    def search(self, images: Picture, k: int = 10) -> list[Evidence]: ...  # type: ignore[overload-overlap]
    @overload
    def search(self, images: Sequence[Picture], k: int = 10) -> list[list[Evidence]]: ...
    def search(self, images: Picture | Sequence[Picture], k: int = 10) -> list[Evidence] | list[list[Evidence]]:
        """The ``k`` most similar images of the bank, nearest first."""
        self._require_classes()
        if not 1 <= k <= len(self.centres):
            raise InputError(f"k must be from 1 to {len(self.centres)}, the number of images in the bank; got {k}.")
        pictures, single = as_list(images)
        if not pictures:
            return []
        found = self.predict(self.embed(pictures), k)
        rows = [self._evidence(found, i, range(k)) for i in range(len(pictures))]
        return rows[0] if single else rows

    def predict(self, embeddings: Tensor, k: int | None = None) -> Prediction:
        """Equation 3 for embeddings: log-probabilities, neighbours, shares, densities."""
        self._require_classes()
        x = embeddings.to(self.device, self.centres.dtype)
        return predict(
            x,
            self._engine,
            self.labels,
            self.theta,
            self.sigma,
            k or self.n_neighbours or len(self.centres),
            len(self.class_names),
        )

    def _require_classes(self) -> None:
        if not len(self.centres):
            raise InputError("The model knows no class: add one with add(name, images).")

    @property
    def classifier(self) -> str:
        """'softmax' where a softmax layer was trained and knows every class, else 'kernels'.

        Classes that were shown later stand behind the trained ones and have no row in that layer.
        """
        known = 0 if self.softmax is None else len(self.softmax["weight"])
        return "softmax" if known and known == len(self.class_names) else "kernels"

    def probabilities(self, embeddings: Tensor) -> Tensor:
        """Class probabilities (n, n_classes) of embeddings, in the order of ``class_names``."""
        if self.softmax is not None and self.classifier == "softmax":
            x = embeddings.to(self.device)
            if "scale" in self.softmax:  # normalised softmax: cosines over a temperature
                x = torch.nn.functional.normalize(x) * self.softmax["scale"]
            return (x @ self.softmax["weight"].T + self.softmax["bias"]).softmax(1).cpu()
        return self.predict(embeddings).log_probabilities.exp().cpu()

    def answers(self, embeddings: Tensor, evidence: int = 5) -> list[Answer]:
        """Answers for embeddings that are already computed."""
        if not len(embeddings):
            return []
        found = self.predict(embeddings)
        probabilities = self.probabilities(embeddings)
        denser = strangeness(found.log_density.cpu(), self.familiar)
        order = probabilities.argsort(dim=1, descending=True, stable=True)
        largest = found.shares.argsort(dim=1, descending=True, stable=True)[:, :evidence]
        return [
            Answer(
                label=self.class_names[int(order[i, 0])],
                probability=float(probabilities[i, order[i, 0]]),
                probabilities={self.class_names[j]: float(probabilities[i, j]) for j in order[i].tolist()},
                evidence=self._evidence(found, i, largest[i].tolist()),
                unknown=float(denser[i]),
            )
            for i in range(len(embeddings))
        ]

    def _evidence(self, found: Prediction, row: int, places: Sequence[int]) -> list[Evidence]:
        return [
            Evidence(
                image=self.sources[int(found.neighbours[row, p])],
                label=self.class_names[int(self.labels[found.neighbours[row, p]])],
                share=float(found.shares[row, p]),
                distance=float(found.squared[row, p].sqrt()),
            )
            for p in places
        ]

    @cached_property
    def _engine(self) -> Exact:
        return Exact(self.centres)

    # -- classes that come and go

    def add(self, name: str, images: Picture | Sequence[Picture]) -> int:
        """Learn a class by being shown it, at once and without training; returns how many images it has now.

        The images' embeddings become centres. A name the model knows already gets more images.
        """
        if not isinstance(name, str) or not name:
            raise InputError(f"A class needs a name, a text; got {name!r}.")
        pictures, _ = as_list(images)
        if not pictures:
            raise InputError(f"No images were given for the class '{name}'.")
        rows = self.embed(pictures).to(self.device, self.centres.dtype)
        if not torch.isfinite(rows).all():
            raise InputError(
                f"The embeddings of the images for '{name}' are NaN or infinite; the model may be damaged."
            )
        if name in self.class_names:
            self.softmax = None  # its layer could not learn from them: from now on the kernels answer
        else:
            self.class_names.append(name)
        label = self.class_names.index(name)
        self._rebank(
            torch.cat([self.centres, rows]),
            torch.cat([self.labels, self.labels.new_full((len(rows),), label)]),
            torch.cat([self.theta, self._shown_weight(label, len(rows)).expand(len(rows))]),
            self.sources + [_describe(p, name, i) for i, p in enumerate(pictures)],
        )
        return int((self.labels == label).sum())

    def remove(self, name: str) -> int:
        """Forget a class, at once; returns how many images it had."""
        if name not in self.class_names:
            known = ", ".join(self.class_names[:10]) + (", …" if len(self.class_names) > 10 else "")
            raise InputError(f"The model has no class '{name}'; it knows: {known or 'none'}.")
        label = self.class_names.index(name)
        kept = self.labels != label
        labels = self.labels[kept]
        self.class_names.pop(label)
        self._rebank(
            self.centres[kept],
            labels - (labels > label).long(),
            self.theta[kept],
            [s for s, keep in zip(self.sources, kept.tolist()) if keep],
        )
        if self.softmax is not None and label < len(self.softmax["weight"]):
            rows = torch.arange(len(self.softmax["weight"]), device=self.device) != label
            self.softmax |= {key: self.softmax[key][rows] for key in ("weight", "bias")}
        return int((~kept).sum())

    def _shown_weight(self, label: int, count: int) -> Tensor:
        """θ of new centres: a class shown in five pictures weighs in all what a class weighs on average.

        With the weight of a trained centre each, a class of five would be drowned by neighbours with a hundred.
        """
        if not len(self.theta):
            return self.theta.new_zeros(())
        if (self.labels == label).any():  # more of a known class
            return self.theta[self.labels == label].mean()
        return self.theta.logsumexp(0) - math.log(len(self.labels.unique()) * count)

    def _rebank(self, centres: Tensor, labels: Tensor, theta: Tensor, sources: list[str]) -> None:
        self.centres, self.labels, self.theta, self.sources = centres, labels, theta, sources
        self.__dict__.pop("_engine", None)


class _Shown:
    """A list of pictures as an image source: decoded when their batch is asked for."""

    def __init__(self, pictures: Sequence[Picture], size: int, squash: bool) -> None:
        self.pictures, self.size, self.squash = pictures, size, squash

    def __len__(self) -> int:
        return len(self.pictures)

    def batch(self, indices: Any) -> Tensor | Pictures:
        return fitted_pictures([self.pictures[int(i)] for i in indices], self.size, squash=self.squash)


def as_list(images: Picture | Sequence[Picture]) -> tuple[list[Picture], bool]:
    """Images as a list, and whether a single one was given. A batch (n, …) of arrays or tensors is many."""
    if isinstance(images, str | Path | Image):
        return [images], True
    if isinstance(images, np.ndarray | Tensor):
        return (list(images), False) if images.ndim == 4 else ([images], True)
    return list(images), False


def _describe(picture: Picture, name: str, number: int) -> str:
    return str(picture) if isinstance(picture, str | Path) else f"{name} (shown, {number + 1})"
