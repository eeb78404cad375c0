"""Are embeddings on a GPU as fast as they can be: replayed passes, Model.embed and refreshes beside plain PyTorch?

    PYTHONPATH=src python benchmarks/gpu/inference.py

Rows: results/gpu_inference.csv. Plain PyTorch is the same network without fused convolutions and recorded passes.
"""

import copy
from collections.abc import Callable

import interpreted  # noqa: F401
import torch
from fused_convolutions import way
from measure import DEVICE, QUICK, Report, error, milliseconds, report_of
from torch import Tensor

from nngk import Model
from nngk.data import centre_crop
from nngk.errors import InputError
from nngk.networks import EmbeddingNetwork, create_network
from nngk.networks.embed import at_once, embed
from nngk.networks.recorded import answers

NETWORKS = ("googlenet-bvlc", "resnet50-v1", "efficientnet-lite0")
BATCHES = (1, 20, 128, 512)
EPOCH = 2048  # images of a validation or a refresh
PRECISIONS = (False,) if QUICK else (True, False)  # whether in bfloat16


def inference(report: Report) -> None:
    """Measure one network after the other, those that are installed."""
    for name in ("small",) if QUICK else NETWORKS:
        try:
            network = create_network(name, dim=64, weights="random", pool="avg", layers=1).to(DEVICE)
        except InputError as why:
            print(f"{name}: left out. {why}")
            continue
        network = network.to(memory_format=torch.channels_last).eval().requires_grad_(False)
        for batch in (2,) if QUICK else BATCHES:
            if report.late(10):
                return
            for amp in PRECISIONS:
                passes(report, name, network, batch, amp)
        for amp in PRECISIONS:
            refresh(report, name, network, amp)
        for batch in (2,) if QUICK else BATCHES[:3]:
            questions(report, name, network, batch)


def beside(report: Report, what: str, plain: Callable[[], object], ours: Callable[[], object], repeats: int) -> None:
    """Report two ways in turns: the faster of two medians each, so that what comes first is not at a disadvantage."""
    before, now = [], []
    for _ in range(1 if QUICK else 2):
        for run, times in ((plain, before), (ours, now)):
            with way(run is ours):
                times.append(milliseconds(run, repeats))
    report(f"{what}, PyTorch's", min(before), "ms")
    report(f"{what}, ours", min(now), "ms", f"{min(before) / min(now):.2f}x faster")


def passes(report: Report, name: str, network: EmbeddingNetwork, batch: int, amp: bool) -> None:
    """Time the network alone on a batch that is there."""
    size = network.input.size
    images = torch.randn(batch, 3, size, size, device=DEVICE).contiguous(memory_format=torch.channels_last)
    precision = "bfloat16" if amp else "float32"
    with torch.inference_mode(), torch.autocast(DEVICE, torch.bfloat16, enabled=amp):
        for _ in range(3):  # the third is a replay
            found = answers(network, images)
        with way(False):
            plain = network(images)
        report(f"{name}, batch {batch}, {precision}, difference", error(found, plain), "rel", "of embeddings")
        what = f"{name}, batch {batch}, {precision}, a pass"
        beside(report, what, lambda: network(images), lambda: answers(network, images), 30 if batch < 512 else 10)


class There:
    """Images in the memory of the GPU, as training keeps them."""

    def __init__(self, pixels: Tensor) -> None:
        self.pixels, self.device = pixels, pixels.device

    def __len__(self) -> int:
        return len(self.pixels)

    def batch(self, indices: Tensor) -> Tensor:
        return self.pixels[indices.to(self.device)]


def refresh(report: Report, name: str, network: EmbeddingNetwork, amp: bool) -> None:
    """Time what validation and a blocking refresh do: all embeddings, as they come and in batches of 20."""
    spec, count = network.input, 8 if QUICK else EPOCH
    source = There(torch.randint(256, (count, 3, spec.resize, spec.resize), dtype=torch.uint8, device=DEVICE))
    transform = centre_crop(spec.size, spec.mean, spec.std)
    for batch in (None, 20):

        def ours(batch: int | None = batch) -> Tensor:
            return embed(network, source, transform, batch_size=batch, device=DEVICE, amp=amp)

        def plain(batch: int | None = batch) -> Tensor:
            parts = torch.arange(count).split(batch or at_once(torch.device(DEVICE), spec.size))
            with torch.inference_mode(), torch.autocast(DEVICE, torch.bfloat16, enabled=amp):
                return torch.cat([network(transform(source.batch(part))).float() for part in parts])

        how = "as it comes" if batch is None else f"batch {batch}"
        what = f"{name}, {count} images, {how}, {'bfloat16' if amp else 'float32'}, a refresh"
        beside(report, what, plain, ours, 3)


def questions(report: Report, name: str, network: EmbeddingNetwork, batch: int) -> None:
    """Time Model.embed on decoded pictures beside the same without a model: stacked, cropped, embedded."""
    spec = network.input
    model = Model(
        copy.deepcopy(network),
        centres=torch.randn(2, network.dim),
        labels=torch.tensor([0, 1]),
        theta=torch.zeros(2),
        sigma=1.0,
        class_names=["a", "b"],
        sources=["a", "b"],
        device=DEVICE,
    )
    pictures = list(torch.randint(256, (batch, 3, spec.resize, spec.resize), dtype=torch.uint8))
    transform = centre_crop(spec.size, spec.mean, spec.std)

    def plain() -> Tensor:
        with torch.inference_mode():
            return network(transform(torch.stack(pictures).to(DEVICE))).cpu()

    beside(report, f"{name}, batch {batch}, float32, Model.embed", plain, lambda: model.embed(pictures), 20)


if __name__ == "__main__":
    report_of("inference", __doc__, "results/gpu_inference.csv", inference)
