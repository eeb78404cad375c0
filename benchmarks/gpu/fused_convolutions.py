"""Are convolutions with bias, shortcut and ReLU fused in right, and how fast are they beside PyTorch's?

    PYTHONPATH=src python benchmarks/gpu/fused_convolutions.py

Rows: results/gpu_convolutions.csv.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import interpreted  # noqa: F401
import torch
from measure import DEVICE, QUICK, Report, error, milliseconds, poison, report_of
from torch import Tensor, nn

from nngk.networks import create_network
from nngk.networks.backbones import googlenet
from nngk.networks.fused import convolution as fused
from nngk.training.graphs import Graphed

NETWORKS = {"googlenet-bvlc": (20, 96), "resnet50-v1": (20, 128)}


def convolutions(report: Report) -> None:
    """Measure errors of embeddings and gradients, and times of an embedding and of the passes of a training step."""
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    size = 32 if QUICK else 224
    for name, batches in NETWORKS.items():
        pictures = torch.randn(max(batches), 3, size, size, device=DEVICE)
        pictures = pictures.mul_(50 if name.startswith("googlenet") else 1)[: 2 if QUICK else None]
        check(report, name, pictures[:4])
        for batch in batches[: 1 if QUICK else None]:
            theirs, ours = (passes_ms(name, pictures[:batch], on) for on in (False, True))
            for what, before, now in zip(("embedding", "a step's passes"), theirs, ours):
                report(f"{name}, batch {batch}, {what}, PyTorch's", before, "ms")
                report(f"{name}, batch {batch}, {what}, fused", now, "ms", f"{before / now:.2f}x faster")


def trainable(name: str) -> nn.Module:
    """Return a network as a training step calls it."""
    network = create_network(name, dim=64, weights="random").to(DEVICE).to(memory_format=torch.channels_last)
    network.freeze_batchnorm()
    return network.train()


def check(report: Report, name: str, pictures: Tensor) -> None:
    """Compare embeddings and all gradients with those of the same network in float64."""
    network = trainable(name)
    parameters = [p for p in network.parameters() if p.requires_grad]
    outer = torch.randn(len(pictures), 64, device=DEVICE)
    found = {}
    for how in ("fused", "PyTorch's"):
        for dtype in (torch.float32, torch.bfloat16):
            poison()
            with way(how == "fused"), torch.autocast(DEVICE, dtype, enabled=dtype != torch.float32):
                y = network(pictures)
            found[how, dtype] = (y, flat(torch.autograd.grad(y, parameters, outer.to(y.dtype))))
    y = network.double()(pictures.double())
    truth = (y, flat(torch.autograd.grad(y, parameters, outer.double())))
    for (how, dtype), both in found.items():
        for what, a, b in zip(("embeddings", "gradients"), both, truth):
            report(f"{name}, {str(dtype)[6:]}, {what}, {how}", error(a, b), "rel", "against float64")


def flat(tensors: tuple[Tensor, ...]) -> Tensor:
    return torch.cat([t.flatten() for t in tensors])


def passes_ms(name: str, pictures: Tensor, on: bool) -> tuple[float, float]:
    """Return the times of an embedding without gradients and of the two passes of a captured training step."""
    network = trainable(name)
    if DEVICE == "cpu":
        return (milliseconds(lambda: network(pictures)),) * 2
    graphed = Graphed(network, torch.device(DEVICE))

    def step() -> None:
        with torch.autocast(DEVICE, torch.bfloat16):
            embeddings = graphed(pictures)
        embeddings.sum().backward()

    with way(on):
        both = milliseconds(step, 10)
        with torch.no_grad(), torch.autocast(DEVICE, torch.bfloat16):
            return milliseconds(lambda: network(pictures), 10), both


@contextmanager
def way(on: bool) -> Iterator[None]:
    """Use fused convolutions, or PyTorch's."""
    before = fused.fusable
    if not on:
        fused.fusable = googlenet.fusable = lambda x: False
    try:
        yield
    finally:
        fused.fusable = googlenet.fusable = before


if __name__ == "__main__":
    report_of("convolutions", __doc__, "results/gpu_convolutions.csv", convolutions)
