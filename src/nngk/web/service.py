"""What the routes share: the model, the threads that work for it, and the token that guards it."""

import asyncio
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Annotated, Any, BinaryIO, TypeVar

from fastapi import Depends, UploadFile
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from PIL import Image
from starlette.exceptions import HTTPException
from torch import Tensor

from nngk.data.decode import fitted, load_image
from nngk.device import pick_device
from nngk.model import Model
from nngk.web.batching import Batcher, Question
from nngk.web.counters import Counters
from nngk.web.inquiries import Inquiry
from nngk.web.limits import Limits
from nngk.web.mail import Mail
from nngk.web.refusals import Busy
from nngk.web.schemas import Changed
from nngk.web.served import ServedModel
from nngk.web.served_gallery import ServedGallery
from nngk.web.uploads import read_upload

T = TypeVar("T")
_CHANGES_WAITING = 16
_READERS = 4  # threads that decode for a pass on a GPU
_bearer = HTTPBearer(auto_error=False, description="The token that the server was started with.")


class Service:
    """A served model with threads for questions, and one each for pictures that are taught, changes and overviews."""

    def __init__(
        self,
        folder: Path,
        *,
        device: str,
        token: str | None,
        limits: Limits,
        gallery: str | None = None,
        workers: int = 1,
    ) -> None:
        self.token, self.limits = token, limits
        self.served: ServedModel | ServedGallery
        if gallery is None:
            self.served = ServedModel(folder, device, may_change=token is not None)
        else:
            self.served = ServedGallery(folder, device, gallery, may_change=token is not None)
        self.counters = Counters()
        self._mail = Mail()
        self.batcher = Batcher(
            lambda: self.served.now,
            waiting=limits.waiting,
            at_once=limits.at_once,
            observe=self.counters.batches.observe,
            workers=workers,
            read=self._read,
            readers=0 if pick_device(device).type == "cpu" else _READERS,
            told=self._mail.deliver,
        )
        self.counters.watch(lambda: len(self.batcher), lambda: self.served.now)
        self._shown = ThreadPoolExecutor(1, "nngk-shown")
        self._changer = ThreadPoolExecutor(1, "nngk-change")
        self._looker = ThreadPoolExecutor(1, "nngk-overview")
        self._changes = self._looking = 0

    def close(self) -> None:
        """Finish what was begun."""
        self._shown.shutdown()
        self._changer.shutdown()
        self._looker.shutdown(cancel_futures=True)
        self.batcher.close()
        self.served.close()

    def changes(self) -> list[str]:
        """Return what this server can change."""
        able = [name for name in ("add", "remove", "rename", "merge") if hasattr(Model, name)]
        return [] if self.token is None else [*able, "undo"]

    async def decoded(self, upload: UploadFile, then: Callable[[Image.Image], T]) -> T:
        """Return what ``then`` makes of an uploaded picture; the picture itself, which may be large, is let go."""
        work = partial(read_upload, upload.file, self.limits.pixels, lambda *given: then(load_image(*given)))
        return await self._within(self._shown, work, self.limits.seconds)

    async def ask(self, inquiry: Inquiry, picture: BinaryIO, numbers: dict[str, int]) -> bytes:
        """Return the answer to an inquiry about an uploaded picture, as JSON."""
        answer, count = self._mail.awaited(), next(iter(numbers.values()), 0)
        say = partial(inquiry.said, numbers=numbers)
        self.batcher.ask(Question(inquiry.kind, picture, count, answer, say))
        async with asyncio.timeout(self.limits.seconds):
            said: bytes = await answer.future
            return said

    def _read(self, file: BinaryIO) -> Tensor:
        """Return a picture as the network reads it."""
        spec = self.served.now.model.network.input
        as_read = partial(fitted, size=spec.resize, squash=spec.squash, middle=spec.size)
        return read_upload(file, self.limits.pixels, lambda data, allowed: as_read(data, allowed=allowed))

    async def change(self, said: str, make: Callable[[Any], Any]) -> Changed:
        """Change the model and return when that is on the disk. ``said`` is what a person is told."""
        change = await self._in_turn(lambda: self.served.change(make))
        return Changed(change=change, said=said, version=self.served.now.version)

    async def undo(self, change: str) -> Changed:
        """Take the latest change back."""
        await self._in_turn(lambda: self.served.undo(change))
        return Changed(change=self.served.undo_id, said="The change was undone.", version=self.served.now.version)

    async def overlooked(self, work: Callable[[], T]) -> T:
        """Return what is computed about the model as a whole, beside the questions."""
        if self._looking >= _CHANGES_WAITING:
            raise Busy
        self._looking += 1
        try:
            return await self._within(self._looker, work, 2 * self.limits.seconds)
        finally:
            self._looking -= 1

    async def _in_turn(self, work: Callable[[], T]) -> T:
        if self._changes >= _CHANGES_WAITING:
            raise Busy
        self._changes += 1
        try:
            done = await self._within(self._changer, work, 2 * self.limits.seconds)
        finally:
            self._changes -= 1
        self.counters.changes.inc()
        return done

    async def _within(self, pool: ThreadPoolExecutor, work: Callable[[], T], seconds: float) -> T:
        async with asyncio.timeout(seconds):
            return await asyncio.get_running_loop().run_in_executor(pool, work)

    def guard(self) -> Any:
        """Return a dependency that lets in only who knows the token."""

        def check(given: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]) -> None:
            if self.token is None:
                raise HTTPException(403, "This server was started without a token, so that nothing can be changed.")
            known = given is not None and secrets.compare_digest(given.credentials.encode(), self.token.encode())
            if not known:
                raise HTTPException(401, "The token is missing or wrong.", {"WWW-Authenticate": "Bearer"})

        return Depends(check)
