"""Are convolutions with bias, shortcut and ReLU fused in right, and how fast are they beside PyTorch's?

    PYTHONPATH=src python benchmarks/gpu/fused_convolutions.py

Rows: results/gpu_convolutions.csv.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import interpreted  # noqa: F401
import torch
from measure import DEVICE, QUICK, Report, error, milliseconds, poison, report_of
from torch import Tensor, nn

from nngk.accel import capturing
from nngk.networks import create_network
from nngk.networks.backbones import googlenet, torchvision
from nngk.networks.fused import convolution as fused
from nngk.training.graphs import Graphed

NETWORKS = {"googlenet-bvlc": (20, 96), "resnet50-v1": (20, 128)}  # batches of training steps
EMBEDDED = (1, 20, 128, 512)  # images embedded together, launched one kernel after the other


def convolutions(report: Report) -> None:
    """Measure errors of embeddings and gradients, times of a step's passes as graphs and of embeddings without."""
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    size = 32 if QUICK else 224
    for name, batches in NETWORKS.items():
        pictures = torch.randn(max(*batches, *EMBEDDED), 3, size, size, device=DEVICE)
        pictures = pictures.mul_(50 if name.startswith("googlenet") else 1)[: 2 if QUICK else None]
        check(report, name, pictures[:4])
        for batch in batches[: 1 if QUICK else None]:
            before, now = (step_ms(name, pictures[:batch], on) for on in (False, True))
            what = f"{name}, batch {batch}, a step's passes"
            report(f"{what}, PyTorch's", before, "ms")
            report(f"{what}, fused", now, "ms", f"{before / now:.2f}x faster")
        for batch in EMBEDDED[: 1 if QUICK else None]:
            for dtype in (torch.bfloat16, torch.float32):
                embeddings(report, name, pictures[:batch], dtype)


def trainable(name: str) -> nn.Module:
    """Return a network as a training step calls it."""
    network = create_network(name, dim=64, weights="random", pool="avg", layers=1, layer_norm=False)
    network = network.to(DEVICE).to(memory_format=torch.channels_last)
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
            with way(how == "fused"), capturing(), torch.autocast(DEVICE, dtype, enabled=dtype != torch.float32):
                y = network(pictures)
            found[how, dtype] = (y, flat(torch.autograd.grad(y, parameters, outer.to(y.dtype))))
    y = network.double()(pictures.double())
    truth = (y, flat(torch.autograd.grad(y, parameters, outer.double())))
    for (how, dtype), both in found.items():
        for what, a, b in zip(("embeddings", "gradients"), both, truth):
            report(f"{name}, {str(dtype)[6:]}, {what}, {how}", error(a, b), "rel", "against float64")


def flat(tensors: tuple[Tensor, ...]) -> Tensor:
    return torch.cat([t.flatten() for t in tensors])


def embeddings(report: Report, name: str, pictures: Tensor, dtype: torch.dtype) -> None:
    """Time embeddings without gradients, launched kernel by kernel."""
    network = trainable(name).eval()
    precision = torch.autocast(DEVICE, torch.bfloat16, enabled=dtype == torch.bfloat16)
    for how in ("PyTorch's", "as it comes", "fused"):
        captured = capturing() if how == "fused" else nullcontext()
        with way(how != "PyTorch's"), captured, precision, torch.no_grad():
            took = milliseconds(lambda: network(pictures), 10)
        report(f"{name}, batch {len(pictures)}, {str(dtype)[6:]}, embedding, {how}", took, "ms")


def step_ms(name: str, pictures: Tensor, on: bool) -> float:
    """Return the time of a step's two passes as they are captured for training."""
    network = trainable(name)
    if DEVICE == "cpu":
        return milliseconds(lambda: network(pictures))
    graphed = Graphed(network, torch.device(DEVICE))

    def step() -> None:
        with torch.autocast(DEVICE, torch.bfloat16):
            embeddings = graphed(pictures)
        embeddings.sum().backward()

    with way(on):
        return milliseconds(step, 10)


@contextmanager
def way(on: bool) -> Iterator[None]:
    """Use fused convolutions, or PyTorch's."""
    before = fused.fusable
    if not on:
        fused.fusable = googlenet.fusable = torchvision.fusable = lambda x: False
    try:
        yield
    finally:
        fused.fusable = googlenet.fusable = torchvision.fusable = before


if __name__ == "__main__":
    report_of("convolutions", __doc__, "results/gpu_convolutions.csv", convolutions)
