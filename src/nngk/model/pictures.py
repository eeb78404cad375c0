"""Images as a user gives them to a model: one or many, of any kind."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL.Image import Image
from torch import Tensor

from nngk.data import FlatPictures, as_batch, fitted
from nngk.data.decode import stand_in
from nngk.errors import InputError
from nngk.model.thumbnails import thumbnail

Picture = str | Path | bytes | Image | np.ndarray | Tensor


class Pictures:
    """A list of pictures as a source of batches; each is decoded when its batch is asked for.

    With ``tolerant`` one that cannot be read is grey, and ``broken`` says why, by its place. With ``shown`` a thumbnail
    of each is kept in ``thumbnails``, so that no picture is decoded a second time for it. Of ``middle`` pixels along
    each side only the middle is given.
    """

    def __init__(
        self,
        pictures: Sequence[Picture],
        size: int,
        *,
        squash: bool = False,
        tolerant: bool = False,
        shown: bool = False,
        middle: int | None = None,
    ) -> None:
        self.pictures, self.size, self.squash, self.tolerant = pictures, size, squash, tolerant
        self.middle = None if shown else middle  # a thumbnail is of the whole
        self.broken: dict[int, str] = {}
        self.thumbnails: list[bytes] | None = [b""] * len(pictures) if shown else None

    def __len__(self) -> int:
        return len(self.pictures)

    def batch(self, indices: Any) -> Tensor | FlatPictures:
        """Return the pictures at ``indices`` with shorter sides of ``size``, or all squashed to squares of it."""
        return as_batch([self._fitted(int(i)) for i in indices], self.size, squash=self.squash)

    def _fitted(self, place: int) -> Tensor:
        try:
            picture = fitted(self.pictures[place], self.size, squash=self.squash, middle=self.middle)
            if self.thumbnails is not None:
                self.thumbnails[place] = thumbnail(picture)
            return picture
        except InputError as error:
            if not self.tolerant:
                raise
            self.broken[place] = str(error)
            return stand_in(min(self.size, self.middle or self.size))


def as_list(images: Picture | Sequence[Picture]) -> tuple[list[Picture], bool]:
    """Return images as a list, and whether a single one was given. An array or tensor (n, …) of four axes is many.

    Raise InputError if they are neither an image nor a sequence of images.
    """
    if isinstance(images, str | Path | bytes | Image):
        return [images], True
    if isinstance(images, np.ndarray | Tensor):
        return (list(images), False) if images.ndim == 4 else ([images], True)
    if not isinstance(images, Iterable) or isinstance(images, dict):
        raise InputError(
            f"Images are paths, bytes of files, PIL images, arrays or tensors, one or a list of them; got "
            f"{type(images).__name__}."
        )
    return list(images), False


def name_of(picture: Picture, class_name: str, number: int) -> str:
    """Return the path of a picture, or for one that has none, the class it was shown for and its number."""
    return str(picture) if isinstance(picture, str | Path) else f"{class_name} (shown, {number + 1})"
