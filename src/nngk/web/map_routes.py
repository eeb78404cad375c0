"""Routes that show the model as a whole: the map of its images, and what the audit finds doubtful."""

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from starlette.exceptions import HTTPException

from nngk.model import Model
from nngk.model.audit import audit_model
from nngk.model.plane import projected
from nngk.web.photos import photo_id, photo_name
from nngk.web.questions import PROBLEMS
from nngk.web.refusals import as_text
from nngk.web.schemas import Doubt, Doubts, Map, MapPhotos, Near, NearPhoto, Problem
from nngk.web.served import Snapshot
from nngk.web.service import Service

GRID = 10_000  # places on the map are whole numbers up to this
SHOWN = 100  # findings of each kind
_PROBLEMS: dict[int | str, dict[str, Any]] = {status: PROBLEMS[status] for status in (422, 503, 504)}
_PROBLEMS[409] = {"model": Problem, "description": "The model is not what the request takes it for."}
ELSEWHERE = "The map and the audit show the images of a model's own folder, and this server answers from a gallery."
STALE = "The model was changed since this map was drawn: load it again."


def map_routes(service: Service) -> APIRouter:
    """Return the routes /map, /map/photos, /map/near and /audit; what they take long for is computed once a state."""
    routes = APIRouter(tags=["overview"], responses=_PROBLEMS)
    kept: dict[str, tuple[int, Any]] = {}

    async def once(what: str, make: Callable[[Model], Any]) -> tuple[Model, int, Any]:
        """Return a model with its version, and what is computed of it, at most once."""
        now = service.served.now
        model = _own(now)

        def work() -> Any:
            if kept.get(what, (0, None))[0] != now.version:
                kept[what] = now.version, make(model)
            return kept[what][1]

        return model, now.version, await service.overlooked(work)

    def current(version: int, places: list[int]) -> Model:
        now = service.served.now
        model = _own(now)
        if now.version != version or any(place >= len(model.sources) for place in places):
            raise HTTPException(409, STALE)
        return model

    @routes.get("/map")
    async def map_of_images() -> Map:
        """Return the place and the class of every image on a plane, where neighbours lie side by side."""
        model, version, places = await once("map", lambda m: (GRID * projected(m.centres)).round().long().tolist())
        return Map(
            names=[as_text(name) for name in model.class_names],
            labels=model.labels.tolist(),
            x=[x for x, _ in places],
            y=[y for _, y in places],
            side=GRID,
            version=version,
        )

    @routes.get("/map/photos")
    async def map_photos(
        version: Annotated[int, Query(ge=1, le=2**31, description="The version of the map.")],
        places: Annotated[str, Query(pattern=r"^\d{1,9}(,\d{1,9}){0,99}$", description="Images of it, by number.")],
    ) -> MapPhotos:
        """Return the ids of the photos of some images of the map."""
        chosen = [int(place) for place in places.split(",")]
        sources = current(version, chosen).sources
        return MapPhotos(photos=[photo_id(sources[place]) for place in chosen])

    @routes.get("/map/near/{place}")
    async def near(
        place: Annotated[int, Path(ge=0, le=2**31, description="An image of the map, by number.")],
        version: Annotated[int, Query(ge=1, le=2**31, description="The version of the map.")],
        count: Annotated[int, Query(ge=1, le=100, description="How many neighbours to name.")] = 12,
    ) -> Near:
        """Return an image of the map and its nearest ones in the embedding, nearest first."""
        model = current(version, [place])
        found = await service.overlooked(lambda: _nearest(model, place, count))
        return Near(image=_photo(model, place, 0.0), near=[_photo(model, each, distance) for each, distance in found])

    @routes.get("/audit")
    async def audit() -> Doubts:
        """List labels that are probably wrong, near duplicates, confused classes and centres that serve nothing.

        Images are judged by the model's embeddings; 'nngk audit' also reads the photos again, and finds more.
        """
        _, version, doubts = await once("audit", _doubts)
        return Doubts(doubts=doubts, version=version)

    return routes


def _own(now: Snapshot) -> Model:
    """Return the model whose own images are served. Raise HTTPException where they are those of a gallery."""
    if not isinstance(now.model, Model):
        raise HTTPException(409, ELSEWHERE)
    return now.model


def _nearest(model: Model, place: int, count: int) -> list[tuple[int, float]]:
    """Return the nearest images of an image, and their distances."""
    squared, found = model.classes.engine.search(model.centres[place : place + 1], min(count + 1, len(model.centres)))
    pairs = zip(found[0].tolist(), squared[0].sqrt().tolist())
    return [(each, distance) for each, distance in pairs if each != place][:count]


def _photo(model: Model, place: int, distance: float) -> NearPhoto:
    source, label = model.sources[place], model.class_names[int(model.labels[place])]
    return NearPhoto(
        place=place, id=photo_id(source), name=as_text(photo_name(source)), label=as_text(label), distance=distance
    )


def _doubts(model: Model) -> list[Doubt]:
    if len(model.sources) < 2:
        return []
    found = audit_model(model)

    def doubt(kind: str, said: str, places: tuple[int, ...] = ()) -> Doubt:
        photos = [photo_id(model.sources[place]) for place in places]
        return Doubt(kind=kind, said=as_text(said), places=list(places), photos=photos)

    return [
        *(
            doubt(
                "label",
                f"Called {s.label}, but looks like {s.called}: the other images give {s.label} {s.probability:.0%}",
                (s.place,),
            )
            for s in found.suspects[:SHOWN]
        ),
        *(
            doubt("duplicate", f"Nearly the same: {' and '.join(dict.fromkeys(d.labels))}", d.places)
            for d in found.duplicates[:SHOWN]
        ),
        *(doubt("confused", str(c)) for c in found.confused[:SHOWN]),
        *(
            doubt("useless", f"{u.label}: nothing is answered worse without it", (u.place,))
            for u in found.useless[:SHOWN]
        ),
    ]
