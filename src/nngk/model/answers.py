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
