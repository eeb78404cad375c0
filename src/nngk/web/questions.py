"""Routes that ask the model and change nothing."""

from typing import Annotated, Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from nngk.web.inquiries import CLASSIFY, EMBED, EVIDENCE, SEARCH, TOP, Inquiry, K
from nngk.web.schemas import Classified, Embedded, Found, Problem
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

    async def answered(inquiry: Inquiry, request: Request, **numbers: int) -> Response:
        async with sent_picture(request) as image:
            return Response(await service.ask(inquiry, image, numbers), media_type="application/json")

    @routes.post("/classify", response_model=Classified, openapi_extra=PICTURE_FORM)
    async def classify(
        request: Request,
        evidence: Annotated[int, EVIDENCE.query()] = EVIDENCE.usual,
        top: Annotated[int, TOP.query()] = TOP.usual,
    ) -> Response:
        """Say what a picture shows, how surely, and which images of the model decided it."""
        return await answered(CLASSIFY, request, evidence=evidence, top=top)

    @routes.post("/search", response_model=Found, openapi_extra=PICTURE_FORM)
    async def search(request: Request, k: Annotated[int, K.query()] = K.usual) -> Response:
        """Find the images of the model that are most similar to a picture."""
        return await answered(SEARCH, request, k=k)

    @routes.post("/embed", response_model=Embedded, openapi_extra=PICTURE_FORM)
    async def embed(request: Request) -> Response:
        """Return the embedding of a picture."""
        return await answered(EMBED, request)

    return routes
