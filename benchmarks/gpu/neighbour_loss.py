"""How fast is the fused loss over neighbour lists, beside the eager one and the usual gather?

    PYTHONPATH=src python benchmarks/gpu/neighbour_loss.py

Rows: results/gpu_loss.csv.
"""

from typing import Any

import interpreted  # noqa: F401
import torch
from loss_problems import eager_lists, gather_lists, problem
from measure import DEVICE, QUICK, Report, host_ms, milliseconds, peak_mib, replayed, report_of
from torch import Tensor

from nngk.accel import Tiles
from nngk.kernel.triton import lists_backward, lists_forward
from nngk.kernel.triton.losses import fused_neighbour_loss

CASES = ((512, torch.float32), (2048, torch.float32), (512, torch.bfloat16))


def tile_shapes(report: Report, given: list[Tensor], pass_bytes: float, name: str) -> None:
    """Time the forward and backward kernels alone, over the shapes of their tiles."""
    x, c, theta, sigma, neighbours, labels, centre_labels, own = given
    shapes = [(8192, 512, 8), (8192, 512, 4), (4096, 512, 4), (4096, 512, 8)]
    forward = [(Tiles(*shape), lists_forward.ONE_PROGRAM) for shape in shapes]
    forward += [(Tiles(4096, 512, 4), 0)]  # softmaxes in a second kernel
    backward = [Tiles(*s) for s in [(4096, 512, 4), (8192, 512, 8), (8192, 256, 4)]]
    grad = torch.randn(len(x), device=DEVICE)
    rest = (neighbours, labels, centre_labels, own)
    weights = lists_forward.forward(x, c, theta, sigma, *rest)[2]
    for tiles, limit in forward[-1:] if QUICK else forward:
        if report.late():
            return
        run = lambda t=tiles, o=limit: lists_forward.forward(  # noqa: E731
            x, c, theta, sigma, *rest, tiles=t, one_program=o
        )
        t = replayed(run)
        how = "one program" if limit else "two kernels"
        report(f"{name} forward, {how} {tuple(tiles)}", t * 1e3, "us", f"{pass_bytes / t / 1e9:.2f} TB/s")
    for tiles in backward[:1] if QUICK else backward:
        if report.late():
            return
        run = lambda tiles=tiles: lists_backward.backward(  # noqa: E731
            x, c, theta, sigma, neighbours, weights, grad, need_x=True, need_theta=True, tiles=tiles
        )
        t = replayed(run)
        report(f"{name} backward {tuple(tiles)}", t * 1e3, "us", f"{pass_bytes / t / 1e9:.2f} TB/s")


def speed(report: Report) -> None:
    """Time fused and eager losses, forward and backward, and measure their memory."""
    n, m, k = (8, 50, 10) if QUICK else (512, 100_000, 200)
    for dim, dtype in [(32, torch.float32)] if QUICK else CASES:
        given = problem(n, m, k, dim, dim**0.5 * 2, dtype)
        name = f"D={dim} {str(dtype)[6:]}"
        pass_bytes = float(n * k * dim * given[1].element_size())
        outer = torch.randn(n, device=DEVICE)
        leaves = [t.detach().requires_grad_(i in (0, 2)) for i, t in enumerate(given[:4])]

        def step(loss: Any, leaves: list[Tensor] = leaves, given: list[Tensor] = given, outer: Tensor = outer) -> None:
            value = loss(*leaves, *given[4:])
            value = value[0] if isinstance(value, tuple) else value
            torch.autograd.grad(value, [leaves[0], leaves[2]], outer.to(value.dtype))

        def bare(given: list[Tensor] = given, outer: Tensor = outer) -> None:
            x, c, theta, sigma, *ids = given
            weights = lists_forward.forward(x, c, theta, sigma, *ids)[2]
            lists_backward.backward(x, c, theta, sigma, ids[0], weights, outer, need_x=True, need_theta=True)

        kept = lists_forward.forward(*given)[2]
        report(f"{name} weights that are not zero", float((kept != 0).double().mean()), "share")
        graph = replayed(bare)
        two = f"{2 * pass_bytes / graph / 1e9:.2f} TB/s of gathered rows"
        report(f"{name} fused forward + backward, graph", graph * 1e3, "us", two)
        fused = milliseconds(lambda step=step: step(fused_neighbour_loss))
        report(f"{name} fused forward + backward, launched", fused * 1e3, "us")
        host = host_ms(lambda step=step: step(fused_neighbour_loss))
        report(f"{name} fused forward + backward, host alone", host * 1e3, "us", "what Python takes to launch it")
        memory = peak_mib(lambda step=step: step(fused_neighbour_loss))
        report(f"{name} fused memory", memory, "MiB")
        for peer, loss in (("eager", eager_lists), ("gather + autograd", gather_lists)):
            t = milliseconds(lambda step=step, loss=loss: step(loss), 10)
            report(f"{name} {peer} forward + backward", t * 1e3, "us", f"{t / graph:.1f}x, {t / fused:.1f}x fused")
            mib = peak_mib(lambda step=step, loss=loss: step(loss))
            report(f"{name} {peer} memory", mib, "MiB", f"{mib / max(memory, 1e-9):.1f}x fused")
        tile_shapes(report, given, pass_bytes, name)


if __name__ == "__main__":
    report_of("loss", __doc__, "results/gpu_loss.csv", speed)
