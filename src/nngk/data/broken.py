"""What becomes of images that cannot be read: few are left out with a word, many are asked about."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from nngk.data.images import Images
from nngk.data.packs.layout import row_number
from nngk.data.table import ImageTable
from nngk.errors import InputError
from nngk.progress import say, watch
from nngk.ranks import ALONE, Ranks

FEW = 0.01  # the share of images that is left out without asking
_LISTED = 10  # sentences that a person reads


@dataclass(frozen=True)
class Tolerance:
    """How many broken images are left out: a hundredth, all of them (``any_number``), or none (``strict``).

    ``ask`` puts a question to a person, where there is one, and returns whether the answer is yes.
    """

    strict: bool = False
    any_number: bool = False
    ask: Callable[[str], bool] | None = None

    def accept(self, broken: Mapping[Any, str], total: int) -> None:
        """List broken images and let them be left out. Raise InputError if they are too many."""
        if not broken:
            return
        first = next(iter(broken.values()))
        if self.strict or (len(broken) == total and total == 1):
            raise InputError(first)
        reasons = list(broken.values())
        for sentence in reasons[:_LISTED]:
            say(sentence)
        if len(reasons) > _LISTED:
            say(f"… and {len(reasons) - _LISTED} more.")
        share = f"{len(broken)} of {total} images cannot be read"
        if len(broken) == total:
            raise InputError(f"None of the {total} images can be read. {first}")
        if len(broken) > FEW * total and not self.any_number:
            question = f"{share}, which is more than {FEW:.0%}."
            if self.ask is None or not self.ask(f"{question} Go on without them?"):
                raise InputError(
                    f"{question} The first: {first} Or go on without them with --skip-broken "
                    "(Tolerance(any_number=True) in Python)."
                )
        say(f"{share} and are left out.")


def without_broken(
    table: ImageTable,
    size: int,
    *,
    squash: bool,
    cache: object,
    threads: int,
    tolerance: Tolerance,
    ranks: Ranks = ALONE,
) -> ImageTable:
    """Return the images of a table that can be read; each is decoded once, into the cache where there is one.

    Several ranks, which have no cache, try a part of the images each.
    """
    if not len(table) or all(row_number(path) is not None for path in table.paths):
        return table  # a pack's were decoded when it was written
    with watch("decoding images") as seen:
        how = {"squash": squash, "tolerant": not tolerance.strict}
        images = Images(table, size, cache, threads, progress=seen, **how)  # type: ignore[arg-type]
        if cache is None:
            span = ranks.span(len(table))
            for start in range(span.start, span.stop, 64):
                end = min(start + 64, span.stop)
                images.batch(range(start, end))
                seen(end - span.start, span.stop - span.start)
    broken = {row: why for found in ranks.collect(images.broken) for row, why in sorted(found.items())}
    tolerance.accept(broken, len(table))
    kept = np.ones(len(table), dtype=bool)
    kept[list(broken)] = False
    return table if kept.all() else table.select(kept)
