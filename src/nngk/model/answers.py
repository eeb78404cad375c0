"""What a model says about an image, and the training images behind it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from nngk.kernel.predict import Prediction


@dataclass(frozen=True)
class Evidence:
    """An image of the bank behind an answer."""

    image: str  # where it came from
    label: str
    share: float  # of all the kernels around the image that was asked about
    distance: float


@dataclass(frozen=True)
class Answer:
    """What the model says about one image, and why. As text it is the class, or 'unknown' with the nearest class."""

    label: str  # the likeliest of the known classes
    probability: float
    probabilities: dict[str, float]  # of every class, likeliest first
    evidence: list[Evidence]  # largest share first
    unknown: float  # from 0 to 1: above one half the image is unlike all known classes
    is_unknown: bool  # whether it is
    alike: float  # share of the images of known classes that look at least as strange

    def __str__(self) -> str:
        return self.said()

    def said(self, is_unknown: bool | None = None) -> str:
        """Return the answer in words, by another decision about the unknown where one is given."""
        unknown = self.is_unknown if is_unknown is None else is_unknown
        return f"unknown (nearest: {self.label})" if unknown else self.label

    def familiarity(self) -> str:
        """Return the unknown score in words.

        >>> Answer("owl", 0.9, {"owl": 0.9}, [], unknown=0.5, is_unknown=False, alike=0.0512).familiarity()
        '5% of the known photos look at least as strange'
        """
        share = f"{self.alike:.0%}" if self.alike >= 0.01 else "less than 1%"
        return f"{share} of the known photos look at least as strange"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return {
            "label": self.label,
            "probability": self.probability,
            "unknown": self.unknown,
            "is_unknown": self.is_unknown,
            "alike": self.alike,
            "probabilities": self.probabilities,
            "evidence": [vars(e) for e in self.evidence],
        }


def composed_answers(
    found: Prediction,
    probabilities: Tensor,
    alike: Tensor,
    unknown: Tensor,
    names: Sequence[str],
    labels: Tensor,
    sources: Sequence[str],
    evidence: int,
) -> list[Answer]:
    """Return answers from what the kernels found, class probabilities (n, c), and how familiar each image is.

    ``labels`` and ``sources`` are those of the centres that ``found`` names; ``evidence`` is how many to tell of.
    """
    values, order = probabilities.sort(dim=1, descending=True, stable=True)
    largest = found.shares.argsort(dim=1, descending=True, stable=True)[:, :evidence]
    behind = evidence_at(found, names, labels, sources, largest)
    scores = zip(order.tolist(), values.tolist(), unknown.tolist(), alike.tolist(), behind)
    return [
        Answer(
            label=names[classes[0]],
            probability=sure[0],
            probabilities=dict(zip([names[j] for j in classes], sure)),
            evidence=images,
            unknown=strange,
            is_unknown=strange > 0.5,
            alike=common,
        )
        for classes, sure, strange, common, images in scores
    ]


def evidence_at(
    found: Prediction, names: Sequence[str], labels: Tensor, sources: Sequence[str], places: Tensor | None = None
) -> list[list[Evidence]]:
    """Return the neighbours, or those at some ``places`` (n, e) of each row; where none was found none is named."""
    at, shares, squared = (
        each if places is None else each.gather(1, places) for each in (found.neighbours, found.shares, found.squared)
    )
    columns = at, labels.to(at.device)[at.clamp(min=0)], shares, squared.sqrt()
    return [
        [
            Evidence(image=sources[i], label=names[label], share=share, distance=distance)
            for i, label, share, distance in zip(*row)
            if i >= 0
        ]
        for row in zip(*(column.tolist() for column in columns))
    ]
