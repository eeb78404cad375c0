"""The demonstration: from a folder of images to answers, on digits, without a download.

Eight of the ten digits are trained. The other two are never seen in training: they measure retrieval on new classes,
then five pictures of each are shown to the model, and it tells all ten apart.
"""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from nngk import Model, Settings, evaluate, read_images, train
from nngk.data import ImageTable, split
from nngk.errors import MissingExtra
from nngk.experiments.record import read_log
from nngk.model import Answer
from nngk.progress import say

NEW = ("8", "9")
SHOWN = 5  # pictures of each new class
CONFIDENCE = (0.0, 0.5, 0.7, 0.9, 0.99, 1.0)  # groups of answers that are looked at together
SETTINGS = Settings(
    network="small",  # 8 x 8 pixels need no ImageNet features
    dim=64,
    resize=18,  # a little more than the digits have, and a little room to crop
    crop_size=16,
    lr=1e-3,  # weights start at random
    weight_lr_factor=1.0,
    n_neighbours=100,
    sigma_factor=1.5,
    epochs=12,
    patience=10,
    batch_size=64,
    crop_scale=0.6,  # a digit is its whole shape
    flip=False,
    hold_out=True,  # the page asks about the digits that were held out
)


@dataclass
class Demonstration:
    """Everything that the page shows."""

    model: Model
    table: ImageTable  # all ten digits
    shown: list[int]  # rows of the table that were shown with add
    asked: list[int]  # rows that were asked: the test images of trained digits, and the rest of the new ones
    embeddings: Tensor  # of the asked rows
    before: list[Answer]  # answers for them before add
    after: list[Answer]  # and after
    retrieval: dict[str, float]  # on the two unseen digits
    log: list[dict[str, Any]]

    def truth(self) -> list[str]:
        return [self.table.class_names[self.table.labels[row]] for row in self.asked]

    def scores(self) -> dict[str, float]:
        """Return the figures of the demonstration, as fractions."""
        truth = self.truth()
        known = np.array([name not in NEW for name in truth])
        unknown = np.array([answer.unknown for answer in self.before])
        return {
            "accuracy on the eight trained digits": _accuracy(self.before, truth, known),
            "Recall@1 on the two unseen digits": self.retrieval["recall@1"],
            "unseen digits recognised as unknown (AUROC)": _auroc(unknown[~known], unknown[known]),
            f"accuracy on all ten after {SHOWN} pictures of each new digit": _accuracy(self.after, truth),
            "mean confidence of these answers": float(np.mean([answer.probability for answer in self.after])),
        }

    def sentences(self) -> list[str]:
        """Return what each of the figures means, in their order."""
        wrong = [a.probability for a, name in zip(self.after, self.truth()) if a.label != name]
        surest = f"; the surest wrong answer was given {max(wrong):.1%}" if wrong else ""
        return [
            "The share of the test images of trained digits that were answered right.",
            "For how many images of the unseen digits the most similar other one shows the same digit.",
            "The chance that an unseen digit looks stranger to the model than a trained one; 50% would be guessing.",
            "The share of right answers when the new digits are classes like all others.",
            "Where confidence means something, it is close to the share of right answers before it" + surest + ".",
        ]

    def reliability(self) -> list[dict[str, float]]:
        """Return for answers of similar confidence how many there are, how sure they are, and how many are right."""
        sure = np.array([answer.probability for answer in self.after])
        right = np.array([answer.label == name for answer, name in zip(self.after, self.truth())])
        rows = []
        for low, high in pairwise(CONFIDENCE):
            there = (sure >= low) & ((sure < high) | (high == 1.0))
            if there.any():
                row = {"answers": int(there.sum()), "confidence": float(sure[there].mean())}
                rows.append({"low": low, "high": high, **row, "right": float(right[there].mean())})
        return rows


def demonstrate(out: Path, settings: Settings = SETTINGS) -> Demonstration:
    """Write the digits as an image folder, train, evaluate, add classes, and classify."""
    table = read_images(write_digits(out / "digits"))
    is_new = np.isin(table.labels, [table.class_names.index(name) for name in NEW])
    known = table.select(~is_new).compact()
    model = train(known, settings, out=out / "model")

    # The test images of the trained digits, and for each new digit as many: a fair test of ten classes.
    test = split(known, settings.task, settings.val_fraction, settings.test_fraction, settings.seed).test
    shown, asked = [], [table.paths.index(path) for path in test.paths]
    rng = np.random.default_rng(settings.seed)
    for name in NEW:
        rows = rng.permutation(np.flatnonzero(table.labels == table.class_names.index(name))).tolist()
        shown += rows[:SHOWN]
        asked += rows[SHOWN : SHOWN + round(settings.test_fraction * len(rows))]

    say("Measuring retrieval on the two digits it has never seen …")
    unseen = np.flatnonzero(is_new)
    retrieval = evaluate(model.embed([table.paths[i] for i in unseen]), torch.as_tensor(table.labels[unseen]))
    embeddings = model.embed([table.paths[i] for i in asked])
    before = model.answers(embeddings)
    say(f"Showing it {SHOWN} pictures of each …")
    for name in NEW:
        model.add(name, [table.paths[i] for i in shown if table.class_names[table.labels[i]] == name])
    after = model.answers(embeddings)
    model.save(out / "model")
    log = read_log(out / "model")
    return Demonstration(model, table, shown, asked, embeddings, before, after, retrieval, log)


def write_digits(folder: Path) -> Path:
    """Write scikit-learn's 1,797 handwritten digits of 8 x 8 pixels into a folder with one sub-folder per class."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise MissingExtra("scikit-learn", "demo", "The demonstration") from None
    digits = load_digits()
    for number, (pixels, label) in enumerate(zip(digits.images, digits.target)):
        path = folder / str(label) / f"{number:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((pixels * (255 / 16)).astype(np.uint8)).save(path)
    return folder


def _accuracy(answers: list[Answer], truth: list[str], chosen: np.ndarray | None = None) -> float:
    right = np.array([answer.label == name for answer, name in zip(answers, truth)])
    return float(right.mean() if chosen is None else right[chosen].mean())


def _auroc(positive: np.ndarray, negative: np.ndarray) -> float:
    """Return the chance that a positive scores above a negative; ties count half."""
    difference = positive[:, None] - negative[None]
    return float((difference > 0).mean() + (difference == 0).mean() / 2)
