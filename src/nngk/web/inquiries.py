"""What can be asked about a picture, and how the answers are said in JSON."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fastapi import Query
from pydantic_core import to_json
from torch import Tensor

from nngk.model import Answer, Evidence
from nngk.web.batching import Kind
from nngk.web.photos import photo_id, photo_name
from nngk.web.refusals import as_text
from nngk.web.served import Snapshot


@dataclass(frozen=True)
class Number:
    """A number that a query may name."""

    usual: int
    least: int
    most: int
    said: str

    def query(self) -> Any:
        """Return it as FastAPI reads and describes it."""
        return Query(ge=self.least, le=self.most, description=self.said)


@dataclass(frozen=True)
class Inquiry:
    """A question about a picture, and its answer from a state of the model. The first number is how much is asked for.

    An answer is plain values in the shape that ``nngk.web.schemas`` describes.
    """

    kind: Kind
    numbers: dict[str, Number]
    answer: Callable[..., dict[str, Any]]

    @property
    def path(self) -> str:
        """Return the address at which it is asked."""
        return f"/{self.kind}"

    def said(self, snapshot: Snapshot, found: Any, numbers: dict[str, int]) -> bytes:
        """Return the answer as JSON."""
        return to_json(self.answer(snapshot, found, **numbers), inf_nan_mode="null")


def _classified(snapshot: Snapshot, answer: Answer, evidence: int, top: int) -> dict[str, Any]:
    likeliest = list(answer.probabilities.items())[:top]
    return {
        "label": as_text(answer.label),
        "probability": answer.probability,
        "is_unknown": answer.is_unknown,
        "unknown": answer.unknown,
        "probabilities": [{"label": as_text(label), "probability": p} for label, p in likeliest],
        "evidence": _photos(answer.evidence[:evidence]),
        "decided_by": snapshot.model.classifier,
        "version": snapshot.version,
    }


def _found(snapshot: Snapshot, found: list[Evidence], k: int) -> dict[str, Any]:
    return {"found": _photos(found[:k]), "version": snapshot.version}


def _embedded(snapshot: Snapshot, row: Tensor) -> dict[str, Any]:
    return {"embedding": row.tolist()}


def _photos(found: list[Evidence]) -> list[dict[str, Any]]:
    """Return the images behind an answer without the paths that they have on this machine."""
    return [
        {
            "id": photo_id(each.image),
            "name": as_text(photo_name(each.image)),
            "label": as_text(each.label),
            "share": each.share,
            "distance": each.distance,
        }
        for each in found
    ]


EVIDENCE = Number(5, 0, 100, "How many images behind the answer to name.")
TOP = Number(10, 1, 1000, "How many classes to name.")
K = Number(10, 1, 1000, "How many images to find, or all if there are fewer.")
CLASSIFY = Inquiry("classify", {"evidence": EVIDENCE, "top": TOP}, _classified)
SEARCH = Inquiry("search", {"k": K}, _found)
EMBED = Inquiry("embed", {}, _embedded)
INQUIRIES = {each.path: each for each in (CLASSIFY, SEARCH, EMBED)}
