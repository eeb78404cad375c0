"""What a model answers about labelled images: right and wrong, how surely, how unknown, and by which evidence."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nngk.data import load_image, read_images
from nngk.data.broken import Tolerance
from nngk.data.table import quoted
from nngk.errors import InputError
from nngk.kernel.predict import Prediction, answer
from nngk.model.model import Model
from nngk.model.stream import classify_each
from nngk.model.thumbnails import thumbnail
from nngk.progress import task

EVIDENCE = 4  # images behind an answer
MISTAKES = 24


@dataclass(frozen=True)
class Mistake:
    """A wrong answer with what is behind it: small JPEGs, some perhaps empty where a file is gone."""

    image: bytes
    name: str
    truth: str
    said: str
    probability: float
    evidence: list[tuple[bytes, str, float]]  # picture, class, share


@dataclass(frozen=True)
class Findings:
    """The answers to all questions, by their places, and the worst mistakes."""

    about: str  # which images were asked, in a sentence
    truth: np.ndarray  # (n,) places in the model's class names
    said: np.ndarray  # (n,)
    probability: np.ndarray  # (n,) of the answers
    unknown: np.ndarray  # (n,) scores; empty where they mean nothing
    mistakes: list[Mistake]  # the surest first

    @property
    def accuracy(self) -> float:
        return float((self.truth == self.said).mean()) if len(self.truth) else 0.0


def ask_about_photos(model: Model, data: Any, data_dir: Path | None, tolerance: Tolerance) -> Findings:
    """Ask a model about labelled photos of classes that it knows."""
    seed, boxes = model.info.get("settings", {}).get("seed", 0), model.info.get("boxes")
    table = read_images(data, data_dir=data_dir, seed=seed, crop_boxes=boxes).compact()
    foreign = [name for name in table.class_names if name not in model.class_names]
    if foreign:
        raise InputError(f"The model does not know {quoted(foreign)}: leave their images out, or add them first.")
    places = np.array([model.class_names.index(name) for name in table.class_names])
    truth, answers, broken = places[table.labels], list[Any](), dict[object, str]()
    with task("asking", len(table)) as advance:
        for place, each in enumerate(classify_each(model, table.paths, EVIDENCE)):
            if isinstance(each, InputError):
                broken[place] = str(each)
            answers.append(each)
            advance(1)
    tolerance.accept(broken, len(table))
    kept = [place for place in range(len(table)) if place not in broken]
    said = np.array([model.class_names.index(answers[i].label) for i in kept], dtype=np.int64)
    sure = np.array([answers[i].probability for i in kept])
    wrong = [i for i in np.argsort(-sure, kind="stable") if said[i] != truth[kept[i]]][:MISTAKES]
    mistakes = [
        Mistake(
            _small(table.paths[kept[i]]),
            table.paths[kept[i]].name,
            model.class_names[truth[kept[i]]],
            answers[kept[i]].label,
            float(sure[i]),
            [(evidence_picture(model, e.image), e.label, e.share) for e in answers[kept[i]].evidence],
        )
        for i in wrong
    ]
    unknown = np.array([answers[i].unknown for i in kept])
    about = f"The model was asked about {len(kept)} photos of {table.name}."
    return Findings(about, truth[kept], said, sure, unknown, mistakes)


def ask_about_itself(model: Model) -> Findings:
    """Ask a model about its own images, each as if it were not there."""
    found = _without_themselves(model)
    probabilities = found.log_probabilities.exp().cpu()
    sure, said = probabilities.max(1)
    truth = model.labels.cpu()
    order = [i for i in sure.argsort(descending=True).tolist() if said[i] != truth[i]][:MISTAKES]
    about = f"Each of the {len(truth)} images of the model was asked about as if it were not in it."
    if model.info.get("last_training") or model.info.get("settings"):
        about += " It was trained on them, so that new photos will be answered less well."
    mistakes = [_own_mistake(model, found, i, int(said[i]), float(sure[i])) for i in order]
    none = np.empty(0)  # how familiar an image is that the model was trained on says nothing about new ones
    return Findings(about, truth.numpy(), said.numpy(), sure.numpy(), none, mistakes)


def _own_mistake(model: Model, found: Prediction, i: int, said: int, sure: float) -> Mistake:
    shares = found.shares[i].cpu()
    evidence = []
    for place in shares.argsort(descending=True)[:EVIDENCE].tolist():
        centre = int(found.neighbours[i, place])
        label = model.class_names[int(model.labels[centre])]
        evidence.append((evidence_picture(model, model.sources[centre]), label, float(shares[place])))
    source, names = model.sources[i], model.class_names
    return Mistake(
        evidence_picture(model, source), Path(source).name, names[int(model.labels[i])], names[said], sure, evidence
    )


def _without_themselves(model: Model) -> Prediction:
    """Return what the other images say of each image."""
    if len(model.centres) < 2:
        raise InputError("The model has fewer than two images: give photos to ask it about.")
    k = min((model.n_neighbours or len(model.centres)) + 1, len(model.centres))
    squared, neighbours = model.classes.engine.search(model.centres, k)
    own = neighbours == torch.arange(len(model.centres), device=neighbours.device)[:, None]
    own[:, -1] |= ~own.any(1)  # of many equal images, one may not find itself: the farthest goes
    rest = (~own).nonzero()[:, 1].view(len(own), k - 1)
    classes = len(model.class_names)
    near: tuple[Tensor, Tensor] = squared.gather(1, rest), neighbours.gather(1, rest)
    return answer(*near, model.labels, model.theta, model.sigma, classes)


def evidence_picture(model: Model, source: str) -> bytes:
    """Return the small JPEG of a model's image: the model's own, else made of the file, else nothing."""
    return model.thumbnail(source) or _small(source)


def _small(source: str | Path) -> bytes:
    try:
        return thumbnail(load_image(source))
    except InputError:
        return b""
