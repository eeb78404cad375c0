"""What a run reads: training, validation and test images, or what a frozen network made of them."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nngk.data import Augmentation, BatchSource, Images, ImageTable, Split, centre_crop
from nngk.data.packs.keys import picture_keys
from nngk.data.resident import Resident, kept
from nngk.errors import InputError
from nngk.files import read_tensors, write_tensors
from nngk.networks import EmbeddingNetwork, InputSpec, create_network
from nngk.networks.embed import Rows, embed, untransformed
from nngk.progress import task, watch
from nngk.training.settings import Settings

Transform = Callable[[Any, torch.Generator | None], Tensor]


@dataclass
class Part:
    """One part of the data as the loop sees it."""

    source: BatchSource
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)


@dataclass
class Parts:
    """The three parts, and how their batches are transformed."""

    train: Part
    val: Part
    test: Part
    augment: Transform  # for training steps
    plain: Transform  # without randomness, for the bank and for scores


def network_of(settings: Settings) -> EmbeddingNetwork:
    """The network that the settings describe, with its weights and its input."""
    s = settings
    network = create_network(
        s.network,
        dim=s.wide or s.dim or None,
        weights=s.weights,
        pool=s.pool,
        layers=s.layers,
        dropout=s.dropout,
        layer_norm=s.layer_norm,
        normalise=s.normalise,
    )
    own = network.input.size
    network.input = input_spec(network, s)
    for size in {network.input.size, s.train_crop_size or own} - {own}:
        _require_readable(network, size)
    return network


def _require_readable(network: EmbeddingNetwork, size: int) -> None:
    """Pictures may be too small to leave anything of them after all poolings."""
    training = network.training
    try:
        with torch.no_grad():
            network.eval()(torch.zeros(1, 3, size, size))
    except RuntimeError:
        name = network.config["name"]
        raise InputError(f"{name} cannot read pictures of {size} pixels a side: set --crop-size higher.") from None
    finally:
        network.train(training)


def input_spec(network: EmbeddingNetwork, settings: Settings) -> InputSpec:
    """The weights' own input, with the sizes that the settings ask for."""
    spec = network.input
    size = settings.crop_size or spec.size
    # Where only the crop is given, the margin around it keeps its proportion.
    resize = settings.resize or (spec.resize if size == spec.size else round(size * spec.resize / spec.size))
    return replace(spec, size=size, resize=resize, squash=settings.squash)


def image_parts(split: Split, spec: InputSpec, settings: Settings, folder: Path) -> Parts:
    """Decoded images, cached on disk beside the run unless told otherwise."""
    cache = None if settings.cache == "off" else Path(settings.cache or folder / "images")
    augment = Augmentation(
        size=settings.train_crop_size or spec.size,
        crop=settings.crop,
        scale=(settings.crop_scale, 1.0),
        flip=settings.flip,
        mean=spec.mean,
        std=spec.std,
    )
    plain = centre_crop(spec.size, spec.mean, spec.std)
    train, val, test = (_image_part(table, spec, cache, settings.threads) for table in split)
    return Parts(train, val, test, augment, plain)


def resident_parts(parts: Parts, size: int, device: torch.device, settings: Settings) -> Parts:
    """The same parts with their decoded images in the memory of the GPU, as far as the limit allows; training first."""
    left = settings.resident_gib * 2**30
    placed = []
    for part in (parts.train, parts.val, parts.test):
        with task("images to the GPU", len(part)) as advance:
            source = kept(part.source, size, device, left, threads=settings.threads, advance=advance)
        if isinstance(source, Resident):
            left -= source.pixels.numel()
        placed.append(Part(source, part.labels))
    train, val, test = placed
    return Parts(train, val, test, parts.augment, parts.plain)


def feature_parts(parts: Parts, network: EmbeddingNetwork, device: torch.device, amp: bool, folder: Path) -> Parts:
    """Pooled features of a frozen network, computed once and kept in ``folder``, where other runs find them too."""
    pooled = nn.Sequential(network.backbone, network.head.pool).to(device)
    how = "|".join(str(network.config[key]) for key in ("name", "pool", "layers"))
    weights = hashlib.sha256(f"{how}|{parts.plain}|{amp}".encode())
    for tensor in pooled.state_dict().values():
        weights.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    made = []
    for name, part in (("train", parts.train), ("val", parts.val), ("test", parts.test)):
        path = folder / f"features-{_origin(part, weights)}.safetensors"
        rows = _kept(path)
        if rows is None:
            with task(f"features of the {name} images", len(part)) as advance:
                rows = embed(pooled, part.source, parts.plain, device=device, amp=amp, advance=advance).cpu()
            write_tensors(path, {"features": rows})
        made.append(Part(Rows(rows.to(device)), part.labels))
    train, val, test = made
    return Parts(train, val, test, untransformed, untransformed)


def _origin(part: Part, weights: "hashlib._Hash") -> str:
    """What a part's features depend on, as a hash: weights, files, and how they are cropped."""
    digest = weights.copy()
    if isinstance(part.source, Images) and len(part):
        size = f"{part.source.size}" if part.source.squash else f"shorter side {part.source.size}"
        digest.update("|".join([size, *picture_keys(part.source.table)]).encode())
    return digest.hexdigest()[:16]


def _kept(path: Path) -> Tensor | None:
    """The features in a file; none where it is missing or damaged, since they can be computed again."""
    try:
        return read_tensors(path).get("features") if path.exists() else None
    except InputError:
        return None


class Features(nn.Module):
    """What the embedding layer reads: pooled and, where the head does so, normalised features."""

    def __init__(self, network: EmbeddingNetwork, pooled: bool) -> None:
        super().__init__()
        self.network, self.pooled = network, pooled  # cached features are pooled already

    def forward(self, x: Tensor) -> Tensor:
        head = self.network.head
        pooled = x if self.pooled else head.pool(self.network.backbone(x))
        return pooled if head.layer_norm is None else head.layer_norm(pooled)


class Projection(nn.Module):
    """The trainable rest of a frozen network: pooled features to embeddings."""

    def __init__(self, network: EmbeddingNetwork) -> None:
        super().__init__()
        self.head = network.head

    def forward(self, pooled: Tensor) -> Tensor:
        return self.head.project(pooled)


def _image_part(table: ImageTable, spec: InputSpec, cache: Path | None, threads: int) -> Part:
    with watch("decoding images") as seen:
        images = Images(table, spec.resize, cache, threads, squash=spec.squash, progress=seen)
    return Part(images, torch.as_tensor(table.labels))
