"""What a model says about an image, and the training images behind it."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Evidence:
    """An image of the bank behind an answer."""

    image: str  # where it came from
    label: str
    share: float  # of all the kernels around the image that was asked about
    distance: float


@dataclass(frozen=True)
class Answer:
    """What the model says about one image, and why."""

    label: str
    probability: float
    probabilities: dict[str, float]  # of every class, likeliest first
    evidence: list[Evidence]  # largest share first
    unknown: float  # share of the images of known classes that lie in a denser place: near 1 is unlike all of them

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return {
            "label": self.label,
            "probability": self.probability,
            "unknown": self.unknown,
            "probabilities": self.probabilities,
            "evidence": [vars(e) for e in self.evidence],
        }
