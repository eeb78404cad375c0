"""What a frozen network says of each image: computed once, kept as it comes, and gone on with where it was stopped."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from nngk.errors import InputError
from nngk.files import read_tensors, write_tensors
from nngk.ranks import ALONE, Ranks

SAVE_SECONDS = 10.0  # what an interruption loses at most

PartsFrom = Callable[[int, int], Iterator[Tensor]]  # the features from an image on to before another, some at a time


def kept_features(
    file: Path, count: int, parts_from: PartsFrom, advance: Callable[[int], object], ranks: Ranks = ALONE
) -> Tensor:
    """Return the features of ``count`` images from their file, or from ``parts_from``, which fills it.

    While they are computed, pieces of them lie beside the file; whoever comes next goes on behind the last whole one.
    Several ranks share out the images, each with pieces of its own.
    """
    whole = _read(file)
    if whole is not None and ranks.count == 1:
        advance(count)
        return whole
    if ranks.count > 1:
        return (
            whole if ranks.all(whole is not None) and whole is not None else _together(file, count, parts_from, ranks)
        )
    rows = _computed(file, 0, count, parts_from, advance)
    write_tensors(file, {"features": rows})
    _clear(file)
    return rows


def _together(file: Path, count: int, parts_from: PartsFrom, ranks: Ranks) -> Tensor:
    """Return the features of which each rank computes its span; the first one writes them all."""
    span = ranks.span(count)
    own = _computed(_of_rank(file, ranks), span.start, span.stop, parts_from, lambda more: None)
    width = ranks.told(own.shape[1])
    rows = ranks.gather(own if len(own) else torch.empty(0, width, dtype=torch.float32), count)
    if ranks.first:
        write_tensors(file, {"features": rows})
        _clear(file)
    ranks.wait()
    return rows


def _of_rank(file: Path, ranks: Ranks) -> Path:
    return file.with_name(f"{file.stem}-rank-{ranks.rank}-of-{ranks.count}{file.suffix}")


def _computed(file: Path, first: int, last: int, parts_from: PartsFrom, advance: Callable[[int], object]) -> Tensor:
    """Return the features of some images; pieces that were computed before are gone on from."""
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
        for part in parts_from(first + have, last):
            waiting.append(part.cpu().clone())
            advance(len(part))
            if time.monotonic() - saved > SAVE_SECONDS:
                keep()
    finally:  # also when it is interrupted
        keep()
    return torch.cat(done) if done else torch.empty(0, 0, dtype=torch.float32)


def _clear(file: Path) -> None:
    """Remove the pieces of a file that is whole."""
    for pattern in (f"{file.stem}-from-*", f"{file.stem}-rank-*"):
        for piece in file.parent.glob(pattern):
            piece.unlink(missing_ok=True)


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
