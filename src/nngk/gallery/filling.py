"""Labelled images into a gallery, each once, however often that is stopped and begun again."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from nngk.data import Images, ImageTable
from nngk.gallery.answering import references_of
from nngk.gallery.interface import Gallery
from nngk.gallery.references import References, reference_ids
from nngk.model import Model
from nngk.progress import task as progress_task
from nngk.ranks import ALONE, Ranks

AT_ONCE = 256  # images that are written together


def fill_with_centres(gallery: Gallery, model: Model) -> tuple[int, int]:
    """Write a model's own centres into a gallery; return how many were new, and how many were there already."""
    rows = references_of(model)
    held = known_ids(gallery)
    new = rows.select(torch.tensor([number not in held for number in rows.ids.tolist()], dtype=torch.bool))
    for places in torch.arange(len(new)).split(AT_ONCE):
        gallery.add(new.select(places))
    return len(new), len(rows) - len(new)


def fill_with_images(gallery: Gallery | None, model: Model, table: ImageTable, ranks: Ranks = ALONE) -> tuple[int, int]:
    """Embed labelled images into a gallery; return how many were new, and how many were there already.

    Every image weighs what the model's own centres weigh on average. What was written stays when this is stopped.
    Several ranks share out the images; the first, which alone has the gallery, writes what all of them embedded.
    """
    labels = [table.class_names[label] for label in table.labels.tolist()]
    sources = [str(path) for path in table.paths]
    ids = reference_ids(labels, sources)
    held = set() if gallery is None else known_ids(gallery)
    missing = torch.tensor([i for i, number in enumerate(ids.tolist()) if number not in held], dtype=torch.int64)
    missing = ranks.told(missing)
    theta = float(model.theta.mean()) if model.images else 0.0
    with progress_task("embedding", len(missing)) as advance:
        for places in missing.split(AT_ONCE * ranks.count) if len(missing) else ():
            vectors, coordinates = _embedded(model, table.select(places.numpy()), ranks, advance)
            chosen = places.tolist()
            said = [labels[i] for i in chosen], [sources[i] for i in chosen]
            if gallery is not None:
                gallery.add(References.of(ids[places], vectors, *said, torch.full((len(places),), theta), coordinates))
    ranks.wait()  # nobody leaves before everything is written
    return len(missing), len(ids) - len(missing)


def _embedded(
    model: Model, table: ImageTable, ranks: Ranks, advance: Callable[[int], object]
) -> tuple[Tensor, Tensor | None]:
    """Return the embeddings of some images, and their coordinates if the model has any; each rank computes its part."""
    n, left = len(table), len(table)
    span, space = ranks.span(n), model.familiar.space

    def done(images: int) -> None:
        nonlocal left
        advance(min(left, images * ranks.count))  # the others are about as far
        left = max(0, left - images * ranks.count)

    vectors = coordinates = torch.empty(0, 0, dtype=torch.float32)
    if span.start < span.stop:
        own = table.select(np.arange(span.start, span.stop))
        images = Images(own, model.network.input.resize, squash=model.network.input.squash)
        seen = model.describe_source(images, advance=done)
        vectors = seen.embeddings.float()
        coordinates = vectors[:, :0] if space is None else space.coordinates(seen.features).float()
    vectors, coordinates = (_of_all(own, n, ranks) for own in (vectors, coordinates))
    return vectors, None if space is None else coordinates


def _of_all(own: Tensor, n: int, ranks: Ranks) -> Tensor:
    """Return the rows of all ranks; one that has none learns from the first how wide they are."""
    width = ranks.told(own.shape[1])
    return ranks.gather(own.cpu() if len(own) else torch.empty(0, width, dtype=torch.float32), n)


def known_ids(gallery: Gallery) -> set[int]:
    """Return the ids of all references in a gallery."""
    return {number for part in gallery.scan() for number in part.ids.tolist()}
