"""A served model whose references live in a gallery: changes go there, and the model's folder stays as it is."""

import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nngk.gallery import GalleryModel, open_gallery
from nngk.gallery.answering import Change
from nngk.gallery.embedded import Embedded
from nngk.model import Model
from nngk.web.refusals import Conflict
from nngk.web.served import UNDO_STEPS, Snapshot
from nngk.web.taught import clear_unnamed


@dataclass(frozen=True)
class Done:
    """A change that was made, and what takes it back."""

    id: str
    reverse: Change


class ServedGallery:
    """The model of a folder over a gallery, which this process alone writes if it lies on this machine."""

    def __init__(self, folder: Path, device: str, gallery: str, *, may_change: bool) -> None:
        model = Model.load(folder, device)
        self._gallery = open_gallery(gallery, model, write=may_change, engine="auto")
        self._turn = threading.Lock()
        self._undo: list[Done] = []
        self.now = Snapshot(GalleryModel(model, self._gallery), 1)
        # What is taught is kept beside the gallery, or where that is on another machine, in the model's folder.
        inside = isinstance(self._gallery, Embedded)
        self.folder = Path(gallery) if inside else folder / "galleries" / gallery.rsplit("/", 1)[-1]
        if may_change and inside:
            clear_unnamed(self.folder, self.now.sources.values())

    @property
    def undo_id(self) -> str | None:
        """Return the change that can be undone, if there is one."""
        return self._undo[-1].id if self._undo else None

    def change(self, make: Callable[[GalleryModel], Change]) -> str:
        """Make a change in the gallery, answer with it from then on, and return its id."""
        with self._turn:
            change = make(self._model)
            self._made(change)
            done = Done(secrets.token_hex(8), change.reverse())
            self._undo = [*self._undo, done][-UNDO_STEPS:]
            return done.id

    def undo(self, change: str) -> None:
        """Take the latest change back. Raise Conflict if it is another one."""
        with self._turn:
            if self.undo_id != change:
                raise Conflict("Only the latest change can be undone, and this is not it.")
            self._made(self._undo[-1].reverse)
            self._undo = self._undo[:-1]

    def _made(self, change: Change) -> None:
        change.write(self._gallery)
        self.now = Snapshot(self._model.after(change), self.now.version + 1)

    @property
    def _model(self) -> GalleryModel:
        assert isinstance(self.now.model, GalleryModel)
        return self.now.model

    def close(self) -> None:
        """Let others write into the gallery."""
        self._gallery.close()
