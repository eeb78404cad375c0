"""The application: the routes, the page, and what watches over both."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, FastAPI
from fastapi import Path as PathParameter
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp

from nngk import __version__
from nngk.web.class_routes import change_routes, class_routes
from nngk.web.direct import Direct
from nngk.web.limits import USUAL, Gate, Limits
from nngk.web.map_routes import map_routes
from nngk.web.questions import question_routes
from nngk.web.refusals import Busy, answer_with_sentences
from nngk.web.request_log import Witness
from nngk.web.schemas import Problem, Status
from nngk.web.service import Service

TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
ABOUT = "Nearest-neighbour Gaussian kernels for images: ask a model about pictures, and teach it classes."


def create_app(
    folder: Path,
    *,
    device: str = "auto",
    token: str | None = None,
    limits: Limits = USUAL,
    host: str = "127.0.0.1",
    gallery: str | None = None,
    workers: int = 1,
    started: Callable[[], object] = lambda: None,
) -> ASGIApp:
    """Return the application that serves the model of a folder; ``started`` is called when it is ready."""
    service = Service(folder, device=device, token=token, limits=limits, gallery=gallery, workers=workers)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        started()
        yield
        service.close()

    # FastAPI's own pages of documentation load scripts from another host.
    app = FastAPI(
        title="nngk", description=ABOUT, version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None
    )
    answer_with_sentences(app)
    for routes in (question_routes, class_routes, change_routes, map_routes, _state_routes):
        app.include_router(routes(service))
    app.include_router(_page_routes())
    return Witness(Gate(Direct(app, service), limits, host), service.counters)


def _state_routes(service: Service) -> APIRouter:
    routes = APIRouter(tags=["state"])

    @routes.get("/health")
    async def health() -> Status:
        """Say that the process is alive."""
        return Status(status="alive")

    @routes.get("/ready", responses={503: {"model": Problem, "description": "Too much is waiting."}})
    async def ready() -> Status:
        """Say whether another question would be answered."""
        if not service.batcher.has_room():
            raise Busy
        return Status(status="ready")

    @routes.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    def metrics() -> Response:
        """Return what was counted, in Prometheus' format."""
        return Response(service.counters.text(), media_type="text/plain; version=0.0.4")

    return routes


def _page_routes() -> APIRouter:
    """Return the routes of the page. Its few files are in memory: no path on the disk can be asked for."""
    routes = APIRouter(include_in_schema=False)
    folder = files("nngk.web") / "static"
    page = {each.name: each.read_bytes() for each in folder.iterdir() if each.is_file()}

    def serve(name: str) -> Response:
        if name not in page:
            raise HTTPException(404, "The page has no such file.")
        return Response(page[name], media_type=TYPES[Path(name).suffix], headers={"Cache-Control": "no-cache"})

    @routes.get("/")
    async def index() -> Response:
        return serve("index.html")

    @routes.get("/page/{name}")
    async def file(name: Annotated[str, PathParameter()]) -> Response:
        return serve(name)

    return routes
