"""Routes that ask the model and change nothing."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from nngk.model import Evidence
from nngk.web.photos import photo_id, photo_name
from nngk.web.refusals import as_text
from nngk.web.schemas import Bar, Classified, Embedded, Found, Photo, Problem
from nngk.web.service import Service
from nngk.web.uploads import PICTURE_FORM, sent_picture

PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": what}
    for status, what in (
        (400, "The request is not in the form that its type says."),
        (408, "The request took too long to arrive."),
        (413, "The request or its picture is too large."),
        (422, "The upload is no picture, or something else was wrong with the request."),
        (429, "The client asks too often."),
        (503, "Too much is waiting."),
        (504, "The answer took too long."),
    )
}


def question_routes(service: Service) -> APIRouter:
    """Return the routes for pictures: /classify, /search and /embed."""
    routes = APIRouter(tags=["questions"], responses=PROBLEMS)

    @routes.post("/classify", openapi_extra=PICTURE_FORM)
    async def classify(
        request: Request,
        evidence: Annotated[int, Query(ge=0, le=100, description="How many images behind the answer to name.")] = 5,
        top: Annotated[int, Query(ge=1, le=1000, description="How many classes to name.")] = 10,
    ) -> Classified:
        """Say what a picture shows, how surely, and which images of the model decided it."""
        async with sent_picture(request) as image:
            snapshot, answer = await service.ask("classify", image, evidence)
        return Classified(
            label=as_text(answer.label),
            probability=answer.probability,
            is_unknown=answer.is_unknown,
            unknown=answer.unknown,
            probabilities=[
                Bar(label=as_text(label), probability=p) for label, p in list(answer.probabilities.items())[:top]
            ],
            evidence=photos(answer.evidence[:evidence]),
            decided_by=snapshot.model.classifier,
            version=snapshot.version,
        )

    @routes.post("/search", openapi_extra=PICTURE_FORM)
    async def search(
        request: Request,
        k: Annotated[int, Query(ge=1, le=1000, description="How many images to find, or all if there are fewer.")] = 10,
    ) -> Found:
        """Find the images of the model that are most similar to a picture."""
        async with sent_picture(request) as image:
            snapshot, found = await service.ask("search", image, k)
        return Found(found=photos(found[:k]), version=snapshot.version)

    @routes.post("/embed", openapi_extra=PICTURE_FORM)
    async def embed(request: Request) -> Embedded:
        """Return the embedding of a picture."""
        async with sent_picture(request) as image:
            _, row = await service.ask("embed", image)
        return Embedded(embedding=row.tolist())

    return routes


def photos(found: list[Evidence]) -> list[Photo]:
    """Return the images behind an answer without the paths that they have on this machine."""
    return [
        Photo(
            id=photo_id(each.image),
            name=as_text(photo_name(each.image)),
            label=as_text(each.label),
            share=each.share,
            distance=each.distance,
        )
        for each in found
    ]
