"""Model: what training leaves behind and a person holds."""

import copy
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, overload

import torch
from torch import Tensor

from nngk.data import BatchSource, centre_crop
from nngk.defaults import DEVICE, FALSE_ALARMS, NARROWEST, WIDEST
from nngk.device import pick_device
from nngk.errors import InputError, whole_number
from nngk.kernel.predict import Prediction, predict
from nngk.model import storage
from nngk.model.adding import added_log_weight, lag, less_lag
from nngk.model.answers import Answer, Evidence, composed_answers, evidence_at
from nngk.model.classes import (
    Classes,
    coincide,
    first_of_each,
    merged,
    renamed,
    similar_name,
    usual_weight,
    with_images,
    without_class,
)
from nngk.model.features import Described, Describer, feature_width
from nngk.model.pictures import Picture, Pictures, as_list, name_of
from nngk.model.pretend import learn_familiar
from nngk.model.unknown import Familiar, Measured, measured, required_images
from nngk.networks import EmbeddingNetwork
from nngk.networks.embed import embed, embed_parts
from nngk.search import Exact


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
        familiar: Familiar | Tensor | None = None,
        coordinates: Tensor | None = None,
        thumbnails: list[bytes] | None = None,
        added: Tensor | None = None,
        drawn: float = 0.0,
        n_neighbours: int | None = 100,
        softmax: dict[str, Tensor] | None = None,
        info: dict[str, Any] | None = None,
        device: str | torch.device = DEVICE,
    ) -> None:
        self.device = pick_device(device)
        # Channels last: how convolutions read fastest, as in training.
        self.network = network.to(self.device).to(memory_format=torch.channels_last).eval().requires_grad_(False)
        self.classes = Classes(
            names=list(class_names),
            centres=centres.detach().to(self.device),
            labels=labels.detach().to(self.device),
            theta=theta.detach().to(self.device),
            sources=list(sources),
            softmax=None if softmax is None else {k: t.detach().to(self.device) for k, t in softmax.items()},
            coordinates=None if coordinates is None else coordinates.detach().to(self.device),
            thumbnails=thumbnails,
            added=None if added is None else added.to(self.device),
            drawn=drawn,
        )
        self.sigma = sigma
        self.familiar = familiar if isinstance(familiar, Familiar) else Familiar.densities(familiar)
        self.n_neighbours = n_neighbours
        self.info = info or {}
        self._both: Describer | None = None
        self._seen: storage.Seen = {}  # the folders that it was read from and written to
        self._check()

    def _check(self) -> None:
        """Raise InputError if the pieces cannot belong together."""
        if self.centres.shape[1] != self.network.dim:
            raise InputError(f"The centres have {self.centres.shape[1]} dimensions, the network {self.network.dim}.")
        space, coordinates, channels = self.familiar.space, self.classes.coordinates, feature_width(self.network)
        if (space is None) != (coordinates is None):
            raise InputError("The space of the unknown score and the coordinates of the images in it belong together.")
        if space is not None and coordinates is not None:
            shape, wanted = (len(space.directions), space.width), (channels, coordinates.shape[1])
            if shape != wanted:
                raise InputError(f"The directions of the space must be {wanted}; got {shape}.")
        if not isinstance(self.sigma, int | float) or not NARROWEST <= self.sigma <= WIDEST:
            raise InputError(f"sigma must be a number from {NARROWEST:g} to {WIDEST:g}; got {self.sigma!r}.")
        if self.n_neighbours is not None:
            whole_number("n_neighbours", self.n_neighbours, 1)

    def __repr__(self) -> str:
        name = self.network.config["name"]
        return f"Model({name}, {len(self.class_names)} classes, {len(self.centres)} centres, sigma={self.sigma:.3g})"

    @property
    def class_names(self) -> list[str]:
        """Return the names of the classes, in the order of their labels."""
        return self.classes.names

    @property
    def centres(self) -> Tensor:
        """Return the embeddings (m, dim) of the images behind the answers."""
        return self.classes.centres

    @property
    def labels(self) -> Tensor:
        """Return the label (m,) of each centre, a place in ``class_names``."""
        return self.classes.labels

    @property
    def theta(self) -> Tensor:
        """Return the log weight (m,) of each centre."""
        return self.classes.theta

    @property
    def sources(self) -> list[str]:
        """Return where the image of each centre came from."""
        return self.classes.sources

    @property
    def images(self) -> int:
        """Return how many images the answers come from."""
        return len(self.sources)

    def sources_by_class(self) -> dict[str, list[str]]:
        """Return where the images of each class came from, in the order in which they came."""
        out: dict[str, list[str]] = {name: [] for name in self.class_names}
        for label, source in zip(self.labels.tolist(), self.sources):
            out[self.class_names[label]].append(source)
        return out

    @property
    def softmax(self) -> dict[str, Tensor] | None:
        """Return the trained softmax layer as plain tensors, where there is one."""
        return self.classes.softmax

    # -- on disk

    @classmethod
    def load(cls, folder: str | Path, device: str | torch.device = DEVICE) -> "Model":
        """Return the model of a folder. Raise InputError if anything is missing, damaged or inconsistent."""
        place = pick_device(device)  # before anything is read: a wrong device is no damage
        return cls._of(storage.read(Path(folder)), Path(folder), place)

    @classmethod
    def _of(cls, stored: storage.Stored, folder: Path, device: torch.device) -> "Model":
        bank, record = stored.bank, stored.record
        softmax = {key.removeprefix("softmax."): t for key, t in bank.items() if key.startswith("softmax.")}
        try:
            model = cls(
                stored.network,
                centres=bank["centres"],
                labels=bank["labels"],
                theta=bank["theta"],
                familiar=Familiar.read(bank, record["unknown"]),
                coordinates=bank.get("coordinates"),
                thumbnails=stored.thumbnails,
                added=bank.get("added"),
                drawn=record["drawn"],
                sigma=record["sigma"],
                n_neighbours=record["n_neighbours"],
                class_names=record["class_names"],
                sources=record["sources"],
                info=record["info"],
                softmax=softmax or None,
                device=device,
            )
        except InputError as error:
            raise storage.damaged_model(folder, str(error).rstrip(".")) from None
        model._seen |= stored.seen
        return model

    def save(self, folder: str | Path) -> None:
        """Write the model into a folder: safetensors and JSON. What was there stays whole until the new one is.

        Raise InputError if the model came from this folder and somebody else has changed it since: saving would undo
        that. :meth:`changing` loads, changes and saves without a gap.
        """
        self._seen |= storage.write(Path(folder), self._stored())

    def _stored(self) -> storage.Stored:
        bank = {"centres": self.centres, "labels": self.labels, "theta": self.theta}
        bank |= self.familiar.tensors() | {f"softmax.{key}": t for key, t in (self.softmax or {}).items()}
        if self.classes.coordinates is not None:
            bank["coordinates"] = self.classes.coordinates
        if self.classes.added is not None:
            bank["added"] = self.classes.added
        names = ("sigma", "n_neighbours", "class_names", "sources", "info")
        record = {name: getattr(self, name) for name in names} | {"unknown": self.familiar.settings()}
        record["drawn"] = self.classes.drawn
        return storage.Stored(self.network, bank, record, self._seen, self.classes.thumbnails)

    @classmethod
    @contextmanager
    def changing(
        cls, folder: str | Path, device: str | torch.device = DEVICE, known: "Model | None" = None
    ) -> Iterator["Model"]:
        """Yield the model of a folder to be changed, and save it at the end.

        One process at a time; the others wait. Nothing is saved if the block raises. What is ``known`` of the folder,
        as it was last read or written, is not read again where nobody has changed it since; both share a network.
        """
        place = pick_device(device)
        with storage.changing(Path(folder), None if known is None else known._stored()) as (stored, write):
            model = cls._of(stored, Path(folder), place)
            yield model
            model._seen |= write(model._stored())

    # -- questions

    def replica(self, before: "Model | None" = None) -> "Model":
        """Return the same model for another thread: it shares every tensor, and nothing that a pass leaves behind.

        A replica that the thread had ``before`` lends its network where the weights are the same tensors.
        """
        other = copy.copy(self)
        if before is not None and _weights(before.network) == _weights(self.network):
            other.network = before.network
        else:
            shared = {id(tensor): tensor for tensor in (*self.network.parameters(), *self.network.buffers())}
            other.network = copy.deepcopy(self.network, shared)
        return other

    def embed(self, images: Picture | Sequence[Picture], batch_size: int | None = None) -> Tensor:
        """Return the embeddings (n, dim) of images, on the CPU."""
        return self.describe(images, batch_size).embeddings

    def describe(self, images: Picture | Sequence[Picture], batch_size: int | None = None) -> Described:
        """Return the embeddings (n, dim) of images and the network's own features of them, on the CPU."""
        pictures, _ = as_list(images)
        if batch_size is not None:
            batch_size = whole_number("batch_size", batch_size, 1)
        spec = self.network.input
        return self.described(Pictures(pictures, spec.resize, squash=spec.squash, middle=spec.size), batch_size)

    def described(self, source: BatchSource, batch_size: int | None = None) -> Described:
        """Return embeddings and features, on the CPU, of a source of images that ``input`` fits."""
        seen = self.describe_source(source, batch_size)
        return Described(seen.embeddings.cpu(), seen.features.cpu())

    def describe_source(
        self, source: BatchSource, batch_size: int | None = None, advance: Callable[[int], object] | None = None
    ) -> Described:
        """Return embeddings and features, on the model's device, of a source of images that ``input`` fits.

        ``advance`` hears how many images each batch had.
        """
        spec, both = self.network.input, self._describer()
        transform = centre_crop(spec.size, spec.mean, spec.std)
        return both.apart(embed(both, source, transform, batch_size=batch_size, device=self.device, advance=advance))

    def _describer(self) -> Describer:
        """Return the same one for all questions: a GPU records its passes."""
        if self._both is None or self._both.network is not self.network:
            self._both = Describer(self.network)
        return self._both

    def described_parts(self, source: BatchSource) -> Iterator[Described]:
        """Yield what :meth:`describe_source` returns, some images at a time."""
        spec, both = self.network.input, self._describer()
        transform = centre_crop(spec.size, spec.mean, spec.std)
        for part in embed_parts(both, source, transform, device=self.device):
            yield both.apart(part.clone())

    @overload
    def classify(self, images: Picture, evidence: int = 5) -> Answer: ...  # type: ignore[overload-overlap]
    @overload
    def classify(self, images: Sequence[Picture], evidence: int = 5) -> list[Answer]: ...
    def classify(self, images: Picture | Sequence[Picture], evidence: int = 5) -> Answer | list[Answer]:
        """Return label, probabilities, the images of the bank that decided it, and how unknown the image is."""
        whole_number("evidence", evidence, 0)
        pictures, single = as_list(images)
        seen = self.describe(pictures)
        answers = self.answers(seen.embeddings, evidence, features=seen.features)
        return answers[0] if single else answers

    @overload
    def search(self, images: Picture, k: int = 10) -> list[Evidence]: ...  # type: ignore[overload-overlap]
    @overload
    def search(self, images: Sequence[Picture], k: int = 10) -> list[list[Evidence]]: ...
    def search(self, images: Picture | Sequence[Picture], k: int = 10) -> list[Evidence] | list[list[Evidence]]:
        """Return the ``k`` most similar images of the bank, nearest first."""
        self.require_classes()
        k = whole_number("k", k, 1, len(self.centres), "the number of images in the bank")
        pictures, single = as_list(images)
        if not pictures:
            return []
        rows = self.nearest(self.embed(pictures), k)
        return rows[0] if single else rows

    def nearest(self, embeddings: Tensor, k: int) -> list[list[Evidence]]:
        """Return the ``k`` most similar images of the bank for each of the embeddings."""
        self.require_classes()
        k = whole_number("k", k, 1, len(self.centres), "the number of images in the bank")
        found = self._predict(embeddings, k, self.classes.engine)
        return evidence_at(found, self.class_names, self.labels, self.sources)

    def predict(self, embeddings: Tensor, k: int | None = None) -> Prediction:
        """Return equation 3 for embeddings: log-probabilities, neighbours, shares, densities."""
        return self._predict(embeddings, k, self.classes.kernels)

    def _predict(self, embeddings: Tensor, k: int | None, engine: Exact) -> Prediction:
        self.require_classes()
        k = whole_number("k", k, 1) if k is not None else self.n_neighbours or len(self.centres)
        x = self._checked(embeddings)
        return predict(x, engine, self.labels, self.theta, self.sigma, k, len(self.class_names))

    def _checked(self, embeddings: Tensor) -> Tensor:
        """Return embeddings on the model's device. Raise InputError if they are not finite rows of its dimensions."""
        dim = self.network.dim
        if not isinstance(embeddings, Tensor) or embeddings.ndim != 2 or embeddings.shape[1] != dim:
            what = tuple(embeddings.shape) if isinstance(embeddings, Tensor) else type(embeddings).__name__
            raise InputError(f"Embeddings must be a tensor (n, {dim}), as embed() returns; got {what}.")
        if embeddings.is_complex():
            raise InputError(f"Embeddings must be real numbers, as embed() returns; got {embeddings.dtype}.")
        x = embeddings.to(self.device, self.centres.dtype)
        bad = (~torch.isfinite(x)).any(1).nonzero()
        if len(bad):
            raise InputError(f"The embeddings hold NaN or infinity, first in row {int(bad[0])}.")
        return x

    def require_classes(self) -> None:
        """Raise InputError if the model has no image to answer by."""
        if not len(self.centres):
            raise InputError("The model knows no class: add one with add(name, images).")

    @property
    def classifier(self) -> str:
        """Return 'softmax' where a softmax layer was trained and knows every class, else 'kernels'.

        Classes that were shown later stand behind the trained ones and have no row in that layer.
        """
        known = 0 if self.softmax is None else len(self.softmax["weight"])
        return "softmax" if known and known == len(self.class_names) else "kernels"

    def probabilities(self, embeddings: Tensor) -> Tensor:
        """Return class probabilities (n, n_classes) of embeddings, in the order of ``class_names``."""
        return self._probabilities(embeddings, None if self.classifier == "softmax" else self.predict(embeddings))

    def _probabilities(self, embeddings: Tensor, found: Prediction | None) -> Tensor:
        """Return class probabilities, by the softmax layer or by what the kernels ``found``."""
        softmax = self.softmax
        if softmax is not None and self.classifier == "softmax":
            x = self._checked(embeddings)
            if "scale" in softmax:  # normalised softmax: cosines over a temperature
                x = torch.nn.functional.normalize(x) * softmax["scale"]
            return (x @ softmax["weight"].T + softmax["bias"]).softmax(1).cpu()
        assert found is not None
        return found.log_probabilities.exp().cpu()

    def answers(self, embeddings: Tensor, evidence: int = 5, *, features: Tensor | None = None) -> list[Answer]:
        """Return the answers for embeddings that are already computed; their features sharpen the unknown score."""
        evidence = whole_number("evidence", evidence, 0)
        if isinstance(embeddings, Tensor) and embeddings.shape[:1] == (0,):  # embeddings of no images have no width
            return []
        found = self.predict(embeddings)
        probabilities = self._probabilities(embeddings, found)
        alike = self.familiar.alike(self._measured(found, features))
        unknown = self.familiar.score(alike)
        return composed_answers(
            found, probabilities, alike, unknown, self.class_names, self.labels, self.sources, evidence
        )

    def unknown(self, embeddings: Tensor, features: Tensor | None = None) -> Tensor:
        """Return the unknown score (n,) of images: above one half the model calls them unknown."""
        return self.familiar.score(self.familiar.alike(self._measured(self.predict(embeddings), features)))

    def _measured(self, found: Prediction, features: Tensor | None) -> Measured:
        space = self.familiar.space
        coordinates = None if features is None or space is None else space.coordinates(features)
        known = self.classes
        sizes = known.class_sizes
        return measured(found, known.class_means, coordinates, known.taught, known.is_trained, space, sizes)

    def learn_unknown(
        self,
        features: Tensor,
        new: Described | None = None,
        false_alarms: float = FALSE_ALARMS,
        confident: bool = False,
    ) -> None:
        """Find the unknown score and its threshold from the features (m, channels) of the centres' own images.

        ``new`` are images of known classes that are not among the centres; with 20 or more they set the threshold, and
        where the model is ``confident``, what the kernels say of an image counts beside the network's own features.
        """
        known, k = self.classes, self.n_neighbours
        self.familiar, coordinates = learn_familiar(known, features, self.sigma, k, new, false_alarms, confident)
        self.classes = replace(self.classes, coordinates=coordinates)

    def calibrate(self, images: Sequence[Picture], false_alarms: float = FALSE_ALARMS) -> int:
        """Set where 'unknown' begins from one's own photos of known classes; return how many counted.

        The share ``false_alarms`` of them would be called unknown. Images that the model holds do not count: they
        are more familiar than any new one.
        """
        needed = required_images(false_alarms)
        pictures, _ = as_list(images)
        seen = self.describe(pictures)
        new = torch.zeros(0, dtype=torch.bool)
        if pictures:
            self.require_classes()
            squared, _ = self.classes.engine.search(self._checked(seen.embeddings), 1)
            new = ~coincide(squared.cpu(), seen.embeddings).squeeze(1)
        if int(new.sum()) < needed:
            held = f"; {int((~new).sum())} more are in the model already" if not new.all() else ""
            raise InputError(
                f"{needed} photos or more are needed to find a threshold with {false_alarms:.2%} false alarms; got "
                f"{int(new.sum())}{held}. Give more photos of the known classes, or accept more false alarms."
            )
        values = self._measured(self.predict(seen.embeddings[new]), seen.features[new])
        values = {name: value.cpu() for name, value in self.familiar.completed(values).items()}
        self.familiar = replace(self.familiar, values=values, false_alarms=false_alarms)
        return int(new.sum())

    def keep_thumbnails(self, thumbnails: list[bytes] | None) -> None:
        """Keep a small picture of every centre's image with the model (:mod:`nngk.model.thumbnails`), or none."""
        self.classes = replace(self.classes, thumbnails=thumbnails)

    def thumbnail(self, source: str) -> bytes:
        """Return the small JPEG of the image that came from ``source``; empty where the model keeps none."""
        kept = self.classes.thumbnails
        return b"" if kept is None or source not in self.sources else kept[self.sources.index(source)]

    # -- classes that come and go

    def add(self, name: str, images: Picture | Sequence[Picture], *, sure: bool = False) -> int:
        """Learn a class by being shown it, at once and without training; return how many images it has now.

        The images' embeddings become centres, drawn together as long as they are few
        (:func:`nngk.model.classes.drawn_together`), with the weight of :func:`nngk.model.adding.added_log_weight`. A
        name that the model knows already gets more images; an image that its class has already is left out. A name that
        is nearly that of a known class raises InputError unless ``sure``.
        """
        shown, seen = self.shown(self.class_names, name, images, sure)
        sources = [name_of(picture, name, i) for i, picture in enumerate(shown.pictures)]
        return self.learn(name, seen, sources, shown.thumbnails)

    def learn(
        self, name: str, seen: Described, sources: Sequence[str], thumbnails: Sequence[bytes] | None = None
    ) -> int:
        """Learn a class as :meth:`add` does, from images that are described already; return how many it has now."""
        rows = seen.embeddings.to(self.device, self.centres.dtype)
        if not torch.isfinite(rows).all():
            raise InputError(
                f"The embeddings of the images for '{name}' are NaN or infinite; the model may be damaged."
            )
        chosen = first_of_each(self.classes, name, rows)
        if not len(chosen):
            raise InputError(f"Every image given for '{name}' is in the model already.")
        space, rows = self.familiar.space, rows[chosen]
        coordinates = None if space is None else space.coordinates(seen.features[chosen.to(seen.features.device)])
        k = self.n_neighbours or len(self.centres)
        known = self.classes
        weight = usual_weight(known, name, len(rows))
        if name in known.names:
            less = less_lag(known, name, rows, self.sigma)
            known = replace(known, theta=torch.where(known.of(name), known.theta - less, known.theta))
            weight -= less
        else:
            weight += lag(known, rows, self.sigma)
            ask = known.kernels, known.centres, known.theta, self.sigma, rows, k, weight, known.positions, known.drawn
            weight = added_log_weight(*ask)
        kept = [sources[i] for i in chosen.tolist()]
        small = None if thumbnails is None else [thumbnails[i] for i in chosen.tolist()]
        self.classes = with_images(known, name, rows, kept, coordinates, weight, small)
        return int(self.classes.of(name).sum())

    def shown(
        self, known: Collection[str], name: str, images: Picture | Sequence[Picture], sure: bool
    ) -> tuple[Pictures, Described]:
        """Return images of a class to be learned, with thumbnails if the model keeps them, and what the network sees.

        Raise InputError if there are none, or the name is none or, unless ``sure``, nearly one of the ``known`` ones.
        """
        if not isinstance(name, str) or not name:
            raise InputError(f"A class needs a name, a text; got {name!r}.")
        near = None if sure else similar_name(known, name)
        if near is not None:
            raise InputError(
                f"The model has a class '{near}', and '{name}' is nearly the same. Add to that one, or say that "
                "you are sure (--yes; sure=True in Python)."
            )
        pictures, _ = as_list(images)
        if not pictures:
            raise InputError(f"No images were given for the class '{name}'.")
        spec, small = self.network.input, self.classes.thumbnails is not None
        shown = Pictures(pictures, spec.resize, squash=spec.squash, shown=small)
        seen = self.described(shown)
        if not torch.isfinite(seen.embeddings).all():
            raise InputError(
                f"The embeddings of the images for '{name}' are NaN or infinite; the model may be damaged."
            )
        return shown, seen

    def remove(self, name: str) -> int:
        """Forget a class, at once; return how many images it had."""
        before = len(self.centres)
        self.classes = without_class(self.classes, name)
        return before - len(self.centres)

    def rename(self, name: str, to: str) -> None:
        """Give a class another name."""
        self.classes = renamed(self.classes, name, to)

    def merge(self, name: str, into: str) -> int:
        """Make the images of one class those of another; return how many that one has now."""
        self.classes = merged(self.classes, name, into)
        return int(self.classes.of(into).sum())


def _weights(network: EmbeddingNetwork) -> list[tuple[int, torch.Size]]:
    """Return where the weights of a network are: equal places, equal weights."""
    return [(tensor.data_ptr(), tensor.shape) for tensor in (*network.parameters(), *network.buffers())]
