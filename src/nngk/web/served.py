"""The model that answers, and the one way to change it: a new state on the disk, then in the place of the old one."""

import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from nngk.errors import InputError
from nngk.files import locked
from nngk.gallery import GalleryModel
from nngk.model import Model
from nngk.web.photos import photo_id
from nngk.web.refusals import Conflict, Unflushed
from nngk.web.taught import clear_unnamed

UNDO_STEPS = 5  # each keeps the centres of a state in memory


@dataclass(frozen=True)
class Snapshot:
    """A state of the model, which never changes: answers of one pass come from one of these."""

    model: Model | GalleryModel
    version: int

    @cached_property
    def photos_by_class(self) -> dict[str, list[str]]:
        """Return the ids of each class's photos, in the order in which they came."""
        return {name: [photo_id(s) for s in sources] for name, sources in self.model.sources_by_class().items()}

    @cached_property
    def sources(self) -> dict[str, str]:
        """Return where each photo came from, by its id."""
        return {photo_id(s): s for sources in self.model.sources_by_class().values() for s in sources}


@dataclass(frozen=True)
class Change:
    """A change that was made, and the states around it."""

    id: str
    before: tuple[Any, Any]  # the classes and the familiar images
    after: Any  # the classes


class ServedModel:
    """The model of a folder: readers take ``now``; changes are made one after the other on a copy."""

    def __init__(self, folder: Path, device: str, *, may_change: bool = False) -> None:
        self.folder, self.device = folder, device
        self._turn = threading.Lock()
        self._undo: list[Change] = []
        self._own: Model | None = None
        self.now = Snapshot(Model.load(folder, device), 1)
        if may_change:
            self._clear()

    def _clear(self) -> None:
        """Remove pictures that neither the model names nor what it would be after an undo."""
        with locked(self.folder):  # no other server is between keeping a picture and naming it
            undone = [source for change in self._undo for source in change.before[0].sources]
            clear_unnamed(self.folder, [*Model.load(self.folder, "cpu").sources, *undone])

    @property
    def undo_id(self) -> str | None:
        """Return the change that can be undone, if there is one."""
        return self._undo[-1].id if self._undo else None

    def change(self, make: Callable[[Model], object]) -> str:
        """Let ``make`` change a copy of the model, save it, and answer with it from then on; return the change's id.

        When this returns, the change is on the disk. If it raises, the model is as it was, unless it raises Unflushed.
        """
        with self._turn:
            try:
                with Model.changing(self.folder, self.device, self._known()) as model:
                    before = model.classes, model.familiar
                    make(model)
            except OSError as error:
                self._after_failure(error)
                raise
            done = Change(secrets.token_hex(8), before, model.classes)
            self._undo = [*self._undo, done][-UNDO_STEPS:]
            self.now = Snapshot(model, self.now.version + 1)
            return done.id

    def _known(self) -> Model:
        """Return the model that answers, which is what the folder holds unless somebody else has changed it.

        Its network is for changes alone: whoever answers has replicas.
        """
        assert isinstance(self.now.model, Model)
        self._own = self.now.model.replica(self._own)
        return self._own

    def _after_failure(self, error: OSError) -> None:
        """Bring folder and answers together after a write failed; raise Unflushed if the change was made."""
        try:
            self._clear()  # a full disk has no room for pictures that were kept in vain
            found = Model.load(self.folder, self.device)
        except (OSError, InputError):
            return
        before = self.now.model
        if isinstance(before, Model) and not _same(found.classes, before.classes):
            self.now = Snapshot(found, self.now.version + 1)
            raise Unflushed(error.errno, error.strerror) from error

    def undo(self, change: str) -> None:
        """Take the latest change back. Raise Conflict if it is another one, or the folder was changed since."""
        with self._turn:
            if self.undo_id != change:
                raise Conflict("Only the latest change can be undone, and this is not it.")
            last = self._undo[-1]
            with Model.changing(self.folder, self.device, self._known()) as model:
                if not _same(model.classes, last.after):
                    raise Conflict("Somebody else has changed the model's folder since, so that this cannot be undone.")
                model.classes, model.familiar = last.before
            self._undo = self._undo[:-1]
            self.now = Snapshot(model, self.now.version + 1)

    def close(self) -> None:
        """Do nothing: a model's folder is held only while it is changed."""


def _same(one: Any, other: Any) -> bool:
    """Return whether two states have the same classes with the same centres."""
    return (one.names, one.sources) == (other.names, other.sources) and all(
        torch.equal(getattr(one, field), getattr(other, field)) for field in ("centres", "labels", "theta")
    )
