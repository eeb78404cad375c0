"""Labelled images into a gallery, each once, however often that is stopped and begun again."""

import torch

from nngk.data import Images, ImageTable
from nngk.gallery.answering import references_of
from nngk.gallery.interface import Gallery
from nngk.gallery.references import References, reference_ids
from nngk.model import Model
from nngk.progress import task as progress_task

AT_ONCE = 256  # images that are written together


def fill_with_centres(gallery: Gallery, model: Model) -> tuple[int, int]:
    """Write a model's own centres into a gallery; return how many were new, and how many were there already."""
    rows = references_of(model)
    held = known_ids(gallery)
    new = rows.select(torch.tensor([number not in held for number in rows.ids.tolist()], dtype=torch.bool))
    for places in torch.arange(len(new)).split(AT_ONCE):
        gallery.add(new.select(places))
    return len(new), len(rows) - len(new)


def fill_with_images(gallery: Gallery, model: Model, table: ImageTable) -> tuple[int, int]:
    """Embed labelled images into a gallery; return how many were new, and how many were there already.

    Every image weighs what the model's own centres weigh on average. What was written stays when this is stopped.
    """
    labels = [table.class_names[label] for label in table.labels.tolist()]
    sources = [str(path) for path in table.paths]
    ids, held = reference_ids(labels, sources), known_ids(gallery)
    missing = torch.tensor([i for i, number in enumerate(ids.tolist()) if number not in held], dtype=torch.int64)
    theta, space = float(model.theta.mean()) if model.images else 0.0, model.familiar.space
    with progress_task("embedding", len(missing)) as advance:
        for places in missing.split(AT_ONCE) if len(missing) else ():
            part = table.select(places.numpy())
            images = Images(part, model.network.input.resize, squash=model.network.input.squash)
            seen = model.describe_source(images, advance=advance)
            chosen = places.tolist()
            rows = References.of(
                ids[places],
                seen.embeddings,
                [labels[i] for i in chosen],
                [sources[i] for i in chosen],
                torch.full((len(places),), theta),
                None if space is None else space.coordinates(seen.features),
            )
            gallery.add(rows)
    return len(missing), len(ids) - len(missing)


def known_ids(gallery: Gallery) -> set[int]:
    """Return the ids of all references in a gallery."""
    return {number for part in gallery.scan() for number in part.ids.tolist()}
