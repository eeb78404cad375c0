"""What a frozen network says of each image: computed once, kept as it comes, and gone on with where it was stopped."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from nngk.errors import InputError
from nngk.files import read_tensors, write_tensors

SAVE_SECONDS = 10.0  # what an interruption loses at most

PartsFrom = Callable[[int], Iterator[Tensor]]  # the features from an image on, some at a time


def kept_features(file: Path, count: int, parts_from: PartsFrom, advance: Callable[[int], object]) -> Tensor:
    """Return the features of ``count`` images from their file, or from ``parts_from``, which fills it.

    While they are computed, pieces of them lie beside the file; whoever comes next goes on behind the last whole one.
    """
    whole = _read(file)
    if whole is not None:
        advance(count)
        return whole
    done = _pieces(file)
    have = sum(map(len, done))
    advance(have)
    waiting: list[Tensor] = []
    saved = time.monotonic()

    def keep() -> None:
        nonlocal waiting, have, saved
        if waiting:
            done.append(torch.cat(waiting))
            write_tensors(_piece(file, have), {"features": done[-1]})
            have += len(done[-1])
        waiting, saved = [], time.monotonic()

    try:
        for part in parts_from(have):
            waiting.append(part.cpu().clone())
            advance(len(part))
            if time.monotonic() - saved > SAVE_SECONDS:
                keep()
    finally:  # also when it is interrupted
        keep()
    rows = torch.cat(done) if done else torch.empty(0, 0)
    write_tensors(file, {"features": rows})
    for piece in file.parent.glob(f"{file.stem}-from-*"):
        piece.unlink(missing_ok=True)
    return rows


def _piece(file: Path, first: int) -> Path:
    return file.with_name(f"{file.stem}-from-{first:09d}{file.suffix}")


def _pieces(file: Path) -> list[Tensor]:
    """Return the pieces that were computed before, from the first image on, without a gap."""
    found: list[Tensor] = []
    while (rows := _read(_piece(file, sum(map(len, found))))) is not None and len(rows):
        found.append(rows)
    return found


def _read(path: Path) -> Tensor | None:
    """Return the features in a file; None where it is missing or damaged, since they can be computed again."""
    try:
        return read_tensors(path).get("features") if path.exists() else None
    except InputError:
        return None
