"""GoogLeNet's fused passes on a GPU: right against float64, then beside PyTorch's."""

import torch
from gpu_tools import ARGS, DEVICE, error, milliseconds, poison, record

from nngk.networks.backbones.googlenet import GoogLeNetBVLC


def section_googlenet() -> None:
    """The fused passes of GoogLeNet and the whole network without gradients, against PyTorch's own."""
    images, size = (1, 32) if ARGS.quick else (256, 224)
    torch.backends.cudnn.allow_tf32 = False  # of float32 convolutions; those in bfloat16 do not mind
    network = GoogLeNetBVLC().to(DEVICE).to(memory_format=torch.channels_last).eval()
    for channels, side in ((64, size // 4), (192, size // 4)):
        maps = torch.randn(images, channels, side, side, device=DEVICE).mul_(50).to(torch.bfloat16)
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
        record("googlenet", f"{name}, error of the value", error(y[:8], truth), "rel", "bfloat16, against float64")
        record("googlenet", f"{name}, error of the gradient", error(leaf.grad[:8], exact.grad), "rel")
        for what, run in ((f"{name}, fused", norm), (f"{name}, PyTorch", plain)):
            with torch.no_grad(), torch.autocast(DEVICE, torch.bfloat16):
                record("googlenet", what, milliseconds(lambda r=run, m=maps: r(m)), "ms", "value alone")
        with torch.no_grad():
            same = torch.equal(network.pool(maps), torch.nn.functional.max_pool2d(maps, 3, 2, ceil_mode=True))
        record("googlenet", f"pooling, {channels} channels, equal", float(same), "bool")
    pictures = 50 * torch.randn(images, 3, size, size, device=DEVICE)
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
    record("googlenet", "the network, float32, error", error(fused, truth), "rel", "TF32 off")
    record("googlenet", "the network, bfloat16, error", error(half, truth), "rel")
    record("googlenet", f"the network, {images} pictures, fused", quick, "ms")
    note = "pooling PyTorch's, gradients to follow"
    record("googlenet", f"the network, {images} pictures, as training calls it", ordinary, "ms", note)
