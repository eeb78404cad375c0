"""Are GoogLeNet's fused passes right, and how fast are they beside PyTorch's?

    PYTHONPATH=src python benchmarks/gpu/googlenet_passes.py

Rows: results/gpu_googlenet.csv.
"""

import interpreted  # noqa: F401
import torch
from measure import DEVICE, QUICK, Report, error, milliseconds, poison, report_of

from nngk.networks.backbones.googlenet import GoogLeNetBVLC

IMAGES, SIZE = (1, 32) if QUICK else (256, 224)


def normalisation_and_pooling(report: Report, network: GoogLeNetBVLC) -> None:
    """Compare the two fused passes with PyTorch's own."""
    side = SIZE // 4
    for channels in (64,) if QUICK else (64, 192):
        maps = torch.randn(IMAGES, channels, side, side, device=DEVICE).mul_(50).to(torch.bfloat16)
        maps = maps.contiguous(memory_format=torch.channels_last)
        leaf, exact = maps.clone().requires_grad_(), maps[:8].double().requires_grad_()
        outer = torch.randn_like(maps)
        norm, plain = network.lrn, torch.nn.LocalResponseNorm(5, alpha=1e-4, beta=0.75, k=1.0)
        poison()
        y, truth = norm(leaf), plain(exact)
        y.backward(outer)
        truth.backward(outer[:8].double())
        assert leaf.grad is not None and exact.grad is not None
        name = f"normalisation, {channels} channels"
        report(f"{name}, error of the value", error(y[:8], truth), "rel", "bfloat16, against float64")
        report(f"{name}, error of the gradient", error(leaf.grad[:8], exact.grad), "rel")
        for what, run in ((f"{name}, fused", norm), (f"{name}, PyTorch", plain)):
            with torch.no_grad(), torch.autocast(DEVICE, torch.bfloat16):
                report(what, milliseconds(lambda r=run, m=maps: r(m)), "ms", "value alone")
        with torch.no_grad():
            same = torch.equal(network.pool(maps), torch.nn.functional.max_pool2d(maps, 3, 2, ceil_mode=True))
        report(f"pooling, {channels} channels, equal", float(same), "bool")


def whole_network(report: Report, network: GoogLeNetBVLC) -> None:
    """Measure the network without gradients, and as training calls it."""
    pictures = 50 * torch.randn(IMAGES, 3, SIZE, SIZE, device=DEVICE)
    few = pictures[:8]
    with torch.no_grad():
        fused = network(few)
        with torch.autocast(DEVICE, torch.bfloat16):
            half = network(few).float()
            quick = milliseconds(lambda: network(pictures), 10)
    with torch.autocast(DEVICE, torch.bfloat16):  # gradients are to follow, so it goes the ordinary way
        ordinary = milliseconds(lambda: network(pictures), 10)
    with torch.no_grad():
        truth = network.double()(few.double())
    report("the network, float32, error", error(fused, truth), "rel", "TF32 off")
    report("the network, bfloat16, error", error(half, truth), "rel")
    report(f"the network, {IMAGES} pictures, fused", quick, "ms")
    note = "pooling PyTorch's, gradients to follow"
    report(f"the network, {IMAGES} pictures, as training calls it", ordinary, "ms", note)


def passes(report: Report) -> None:
    """Measure the fused passes of GoogLeNet, then the whole network."""
    torch.backends.cudnn.allow_tf32 = False  # of float32 convolutions; those in bfloat16 do not mind
    network = GoogLeNetBVLC().to(DEVICE).to(memory_format=torch.channels_last).eval()
    normalisation_and_pooling(report, network)
    whole_network(report, network)


if __name__ == "__main__":
    report_of("googlenet", __doc__, "results/gpu_googlenet.csv", passes)
