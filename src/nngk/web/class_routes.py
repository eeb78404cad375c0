"""Routes that list the classes, show their photos and change them."""

from typing import Annotated, Any

from fastapi import APIRouter, File, Form, Path, Query, UploadFile
from starlette.exceptions import HTTPException
from starlette.responses import Response

from nngk.errors import InputError
from nngk.model.classes import similar_name
from nngk.web.photos import small_photo
from nngk.web.questions import PROBLEMS
from nngk.web.refusals import as_text
from nngk.web.schemas import (
    PHOTO_ID,
    Changed,
    ClassList,
    ClassName,
    ClassSummary,
    KnownName,
    Merge,
    PhotoList,
    Problem,
    Rename,
    Undo,
)
from nngk.web.service import Service
from nngk.web.taught import encoded, keep

_SHOWN = 8  # photos of a class in the list of all classes
_MOST_PICTURES = 64  # in one request
_GUARDED: dict[int | str, dict[str, Any]] = PROBLEMS | {
    status: {"model": Problem, "description": what}
    for status, what in (
        (401, "The token is missing or wrong."),
        (403, "The server was started without a token."),
        (409, "The model is not what the request takes it for."),
        (507, "The disk is full or failed; the error says whether anything was changed."),
    )
}


def class_routes(service: Service) -> APIRouter:
    """Return the routes that read: the classes and their photos."""
    routes = APIRouter(tags=["classes"], responses={422: PROBLEMS[422]})

    @routes.get("/classes")
    async def classes() -> ClassList:
        """List the classes, how many images each has, and what may be changed."""
        now = service.served.now
        return ClassList(
            classes=[
                ClassSummary(name=as_text(name), images=len(ids), photos=ids[: -_SHOWN - 1 : -1])
                for name, ids in now.photos_by_class.items()
            ],
            version=now.version,
            changes=service.changes(),
            undo=service.served.undo_id,
        )

    @routes.get("/classes/photos", responses={404: {"model": Problem}})
    async def class_photos(
        name: Annotated[KnownName, Query(description="The class.")],
        start: Annotated[int, Query(ge=0, le=2**31, description="The first image, counted from the newest.")] = 0,
        count: Annotated[int, Query(ge=1, le=1000, description="How many images to name.")] = 100,
    ) -> PhotoList:
        """List the images of a class, newest first."""
        ids = service.served.now.photos_by_class.get(name)
        if ids is None:
            raise HTTPException(404, f"The model has no class '{name}'.")
        return PhotoList(photos=ids[::-1][start : start + count], total=len(ids))

    @routes.get(
        "/photos/{id}",
        response_class=Response,
        responses={200: {"content": {"image/jpeg": {}}, "description": "A small JPEG."}, 404: {"model": Problem}},
    )
    def photo(id: Annotated[str, Path(pattern=PHOTO_ID, description="An id from an answer.")]) -> Response:
        """Show an image of the model, by its id. Nothing else on this machine can be asked for."""
        source = service.served.now.sources.get(id)
        if source is None:
            raise HTTPException(404, "The model has no such image.")
        try:
            data = small_photo(source, service.served.folder)
        except InputError:
            data = service.served.now.model.thumbnail(source)  # what travels with the model
        if not data:
            raise HTTPException(404, "The file of this image is gone or cannot be read.")
        return Response(data, media_type="image/jpeg", headers={"Cache-Control": "private, max-age=3600"})

    return routes


def change_routes(service: Service) -> APIRouter:
    """Return the routes that change the model, for who knows the token."""
    routes = APIRouter(tags=["changes"], responses=_GUARDED, dependencies=[service.guard()])

    @routes.post("/classes")
    async def add(
        name: Annotated[ClassName, Form(description="A new class, or one that gets more images.")],
        images: Annotated[
            list[UploadFile], File(min_length=1, max_length=_MOST_PICTURES, description="Pictures of the class.")
        ],
        sure: Annotated[bool, Form(description="Whether a name that is nearly a known one is meant.")] = False,
    ) -> Changed:
        """Teach the model a class by showing it pictures; all of them are learned, or none.

        A name that is nearly that of a known class is questioned, with the status 409.
        """
        near = None if sure else similar_name(service.served.now.model.class_names, name)
        if near is not None:
            raise HTTPException(
                409, f"The model has a class '{near}', and '{name}' is nearly the same. Teach it again if you are sure."
            )
        pictures = [await service.decoded(image, encoded) for image in images]
        folder = service.served.folder
        return await service.change(
            f"'{name}' was shown {len(pictures)} {'picture' if len(pictures) == 1 else 'pictures'}.",
            lambda model: model.add(name, [keep(picture, folder) for picture in pictures], sure=True),
        )

    @routes.delete("/classes")
    async def remove(name: Annotated[KnownName, Query(description="The class to forget.")]) -> Changed:
        """Make the model forget a class."""
        return await service.change(f"'{name}' is forgotten.", lambda model: model.remove(name))

    @routes.post("/classes/rename")
    async def rename(names: Rename) -> Changed:
        """Give a class another name."""
        return await service.change(
            f"'{names.old}' is now called '{names.new}'.", lambda model: model.rename(names.old, names.new)
        )

    @routes.post("/classes/merge")
    async def merge(names: Merge) -> Changed:
        """Make the images of one class images of another."""
        return await service.change(
            f"'{names.source}' is part of '{names.target}' now.", lambda model: model.merge(names.source, names.target)
        )

    @routes.post("/undo")
    async def undo(what: Undo) -> Changed:
        """Take the latest change back."""
        return await service.undo(what.change)

    return routes
