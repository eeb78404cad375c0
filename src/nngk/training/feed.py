"""What a run reads: training, validation and test images, or what a frozen network made of them."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nngk.data import Augmentation, BatchSource, Images, ImageTable, Split, centre_crop
from nngk.data.packs.keys import picture_keys
from nngk.data.packs.place import image_cache, use_cache
from nngk.data.resident import Resident, kept
from nngk.errors import InputError
from nngk.networks import EmbeddingNetwork, InputSpec
from nngk.networks.embed import Rows, embed, embed_parts, untransformed
from nngk.progress import say, task, watch
from nngk.ranks import ALONE, Ranks
from nngk.training.frozen_features import kept_features
from nngk.training.settings import Settings
from nngk.training.sharded_network import whole

Transform = Callable[..., Tensor]  # (batch, generator, part)


@dataclass
class Examples:
    """Images, or features of them, with their labels."""

    source: BatchSource
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)


@dataclass
class Feed:
    """What is read of the three tables of a split, and how their batches are transformed."""

    train: Examples
    val: Examples
    test: Examples
    augment: Transform  # for training steps
    plain: Transform  # without randomness, for the bank and for scores
    device: torch.device
    amp: bool = False
    ranks: Ranks = ALONE  # the processes that share out what is embedded
    detailed: BatchSource | None = None  # larger pictures of the training images, which steps cut their crops from

    def embed(self, network: nn.Module, examples: Examples, ranks: Ranks | None = None) -> Tensor:
        """Return the embeddings of some examples, in evaluation mode and without augmentation."""
        ranks = self.ranks if ranks is None else ranks
        with whole(network):
            return embed(network, examples.source, self.plain, device=self.device, amp=self.amp, ranks=ranks)


def own_share(feed: Feed, network: nn.Module, ranks: Ranks) -> Tensor:
    """Return the embeddings of this rank's span of the training images, (rows, dim); maybe none."""
    span = ranks.span(len(feed.train))
    how: dict[str, Any] = {"device": feed.device, "amp": feed.amp, "first": span.start, "last": span.stop}
    with whole(network):
        parts = list(embed_parts(network, feed.train.source, feed.plain, **how))
    own = torch.cat(parts).clone() if parts else torch.empty(0, 0, dtype=torch.float32)
    width = ranks.told(own.shape[1])
    return own if len(own) else torch.empty(0, width, dtype=torch.float32, device=feed.device)


def image_feed(
    split: Split,
    spec: InputSpec,
    settings: Settings,
    device: torch.device,
    amp: bool = False,
    ranks: Ranks = ALONE,
) -> Feed:
    """Return decoded images, kept on disk for all runs unless told otherwise."""
    cache = cache_of(settings, [path for table in split for path in table.paths])
    plain = centre_crop(spec.size, spec.mean, spec.std)
    train, val, test = (_decoded(table, spec, cache, settings.threads) for table in split)
    detailed = None
    if has_detail(spec, settings):
        detailed = _decoded(split.train, replace(spec, resize=settings.detail or 0), cache, settings.threads).source
    return Feed(train, val, test, augmentation(spec, settings), plain, device, amp, ranks, detailed)


def has_detail(spec: InputSpec, settings: Settings) -> bool:
    """Return whether training crops are cut from larger images than those that are read.

    Raise InputError where that was asked for and would make no difference, or another one than sharper crops.
    """
    if settings.detail is None:
        return False
    if settings.freeze:
        raise InputError("'detail' is for training crops, and a frozen network is shown none: leave it at 'none'.")
    if settings.crop != "resized":
        raise InputError(f"'detail' needs resized crops: one that is {settings.crop!r} would show less of the image.")
    if settings.detail <= spec.resize:
        raise InputError(
            f"'detail' must be more than the {spec.resize} pixels of the shorter side that is read; "
            f"got {settings.detail}."
        )
    return True


def augmentation(spec: InputSpec, settings: Settings) -> Augmentation:
    """Return what training steps do to images."""
    return Augmentation(
        size=settings.train_crop_size or spec.size,
        crop=settings.crop,
        scale=(settings.crop_scale, 1.0),
        flip=settings.flip,
        mean=spec.mean,
        std=spec.std,
    )


def cache_of(settings: Settings, paths: Iterable[Path]) -> Path | None:
    """Return the folder for the decoded images of these files; None where they are to be decoded every time."""
    if settings.cache == "off":
        return None
    if settings.cache:
        return Path(settings.cache)
    try:
        return use_cache(image_cache(paths))
    except OSError as error:
        place = f" in {error.filename}" if error.filename else ""
        _say_once(
            f"Decoded images cannot be kept{place} ({error.strerror or error}), so that they are decoded again and "
            "again: --cache names another folder."
        )
        return None


@cache
def _say_once(line: str) -> None:
    say(line)


def resident_feed(feed: Feed, size: int, settings: Settings) -> Feed:
    """Return the feed with its decoded images in the memory of its GPU, as far as the limit allows; training first."""
    left = settings.resident_gib * 2**30

    def place(source: BatchSource, size: int) -> BatchSource:
        nonlocal left
        with task("images to the GPU", len(source)) as advance:
            placed = kept(source, size, feed.device, left, threads=settings.threads, advance=advance)
        if isinstance(placed, Resident):
            left -= placed.pixels.numel()
        return placed

    detailed = None if feed.detailed is None else place(feed.detailed, settings.detail or size)
    train, val, test = (
        Examples(place(examples.source, size), examples.labels) for examples in (feed.train, feed.val, feed.test)
    )
    return replace(feed, train=train, val=val, test=test, detailed=detailed)


def feature_feed(feed: Feed, network: EmbeddingNetwork, folder: Path) -> Feed:
    """Return the features that a frozen network pools, computed once and kept in ``folder`` for other runs too."""
    pooled = nn.Sequential(network.backbone, network.head.pool).to(feed.device)
    how = "|".join(str(network.config[key]) for key in ("name", "pool", "layers"))
    weights = hashlib.sha256(f"{how}|{feed.plain}|{feed.amp}".encode())
    for tensor in pooled.state_dict().values():
        weights.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    made = []
    for name, examples in (("training", feed.train), ("validation", feed.val), ("test", feed.test)):
        path = folder / f"features-{_origin(examples, weights)}.safetensors"
        with task(f"features of the {name} images", len(examples)) as advance:
            parts = partial(_parts_from, pooled, feed, examples.source)
            rows = kept_features(path, len(examples), parts, advance, feed.ranks)
        made.append(Examples(Rows(rows.to(feed.device)), examples.labels))
    train, val, test = made
    return Feed(train, val, test, untransformed, untransformed, feed.device, ranks=feed.ranks)


def _origin(examples: Examples, weights: "hashlib._Hash") -> str:
    """Return a hash of what the features of some examples depend on: weights, files, and how they are cropped."""
    digest = weights.copy()
    source = examples.source
    if isinstance(source, Images) and len(examples):
        size = f"{source.size}" if source.squash else f"shorter side {source.size}"
        digest.update("|".join([size, *picture_keys(source.table)]).encode())
    return digest.hexdigest()[:16]


def _parts_from(pooled: nn.Module, feed: Feed, source: BatchSource, first: int, last: int) -> Iterator[Tensor]:
    return embed_parts(pooled, source, feed.plain, device=feed.device, amp=feed.amp, first=first, last=last)


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


def _decoded(table: ImageTable, spec: InputSpec, cache: Path | None, threads: int) -> Examples:
    with watch("decoding images") as seen:
        images = Images(table, spec.resize, cache, threads, squash=spec.squash, progress=seen)
    return Examples(images, torch.as_tensor(table.labels))
