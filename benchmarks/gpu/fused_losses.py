"""Fused losses and exact search on a GPU: right first, then how fast, beside what the hardware and the eager way give.

    PYTHONPATH=src python benchmarks/gpu.py --out results/gpu --commit $(git rev-parse --short HEAD)

Writes one CSV file a section and prints the figures at the end. Floors: a pass over the gathered rows cannot be faster
than their bytes at the bandwidth of a device copy; a search cannot be faster than its products alone. ``--quick`` walks
through the same code with tiny sizes on the CPU, in Triton's interpreter.
"""

import traceback
from typing import Any

import torch
from gpu_convolutions import section_convolutions
from gpu_googlenet import section_googlenet
from gpu_search import section_search
from gpu_tools import (
    ARGS,
    DEVICE,
    ROWS,
    error,
    host_ms,
    late,
    milliseconds,
    peak_mib,
    poison,
    record,
    replayed,
    write,
)
from torch import Tensor

from nngk.accel import Tiles
from nngk.kernel import formulas as kernel
from nngk.kernel.triton import dense as kernel_triton_dense
from nngk.kernel.triton import lists_backward as kernel_triton_backward
from nngk.kernel.triton import lists_forward as kernel_triton_lists
from nngk.kernel.triton.losses import fused_all_centres_loss, fused_neighbour_loss


def problem(n: int, m: int, k: int, dim: int, sigma: float, dtype: torch.dtype, classes: int = 10) -> list[Tensor]:
    x = torch.randn(n, dim, device=DEVICE)
    centres = torch.randn(m, dim, device=DEVICE)
    neighbours = torch.randint(0, m, (n, k), device=DEVICE)
    own = neighbours[:, k // 2].clone()
    neighbours[:, -1] = torch.where(torch.arange(n, device=DEVICE) % 3 == 0, -1, neighbours[:, -1])
    labels, centre_labels = (torch.randint(0, classes, (size,), device=DEVICE) for size in (n, m))
    theta = torch.randn(m, device=DEVICE) * 0.5
    width = torch.tensor(sigma, device=DEVICE)
    return [x.to(dtype), centres.to(dtype), theta, width, neighbours, labels, centre_labels, own]


def gradients(loss: Any, given: list[Tensor], outer: Tensor, wide: bool, centres: bool = False) -> list[Tensor]:
    leaves = [t.detach().clone() for t in given[:4]]
    leaves = [t.double() if wide else t for t in leaves]
    for i, leaf in enumerate(leaves):
        leaf.requires_grad_(i != 1 or centres)
    value = loss(*leaves, *given[4:])
    value = value[0] if isinstance(value, tuple) else value
    value.backward(outer.to(value.dtype))
    return [value.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


def eager_lists(x: Tensor, c: Tensor, theta: Tensor, sigma: Tensor, *ids: Tensor) -> Tensor:
    """The eager loss with the masks that it needs built around it."""
    neighbours, labels, centre_labels, own = ids
    present = (neighbours >= 0) & (neighbours != own[:, None])
    same = present & (centre_labels[neighbours.clamp(min=0)] == labels[:, None])
    return kernel.neighbour_loss(x, c, theta, sigma, neighbours.masked_fill(~present, -1), same)


def gather_lists(x: Tensor, c: Tensor, theta: Tensor, sigma: Tensor, *ids: Tensor) -> Tensor:
    """The usual way: gather a (batch, neighbours, dim) tensor and let autograd keep it."""
    neighbours, labels, centre_labels, own = ids
    index = neighbours.clamp(min=0)
    present = (neighbours >= 0) & (neighbours != own[:, None])
    same = present & (centre_labels[index] == labels[:, None])
    squared = (x.float()[:, None] - c[index].float()).square().sum(2)
    values = (theta[index] - squared / (2 * sigma**2)).masked_fill(~present, -torch.inf)
    return values.logsumexp(1) - values.masked_fill(~same, -torch.inf).logsumexp(1)


def section_machine() -> None:
    size = 1 << 16 if ARGS.quick else 1 << 30
    a, b = torch.randn(size, device=DEVICE), torch.empty(size, device=DEVICE)
    record("machine", "copy bandwidth (read + write)", 8e-9 * size / milliseconds(lambda: b.copy_(a), 10), "TB/s")
    n = 64 if ARGS.quick else 8192
    for name, dtype in (("float16", torch.float16), ("bfloat16", torch.bfloat16), ("float32", torch.float32)):
        p, q = (torch.randn(n, n, device=DEVICE, dtype=dtype) for _ in range(2))
        rate = 2e-9 * n**3 / milliseconds(lambda p=p, q=q: p @ q, 10)
        record("machine", f"matrix product {name}", rate, "TFLOP/s", f"{n}^3")


def section_correct() -> None:
    f32, bf16, f16 = torch.float32, torch.bfloat16, torch.float16
    cases = [
        (64, 1000, 50, 64, 8.0, f32),
        (33, 1000, 77, 515, 20.0, f32),
        (64, 5000, 200, 512, 15.0, f32),
        (16, 5000, 200, 2048, 30.0, f32),
        (16, 3000, 1500, 128, 10.0, f32),
        (64, 1000, 50, 64, 1e-3, f32),
        (64, 1000, 50, 64, 1e5, f32),
        (64, 1000, 50, 64, 1e-20, f32),
        (64, 5000, 200, 512, 15.0, bf16),
        (33, 1000, 77, 515, 20.0, bf16),
        (64, 1000, 50, 64, 1e-3, bf16),
        (64, 1000, 50, 64, 1e5, bf16),
        (64, 1000, 50, 64, 1e-20, bf16),
        (64, 5000, 200, 512, 15.0, f16),
    ]
    for n, m, k, dim, sigma, dtype in cases[: 2 if ARGS.quick else None]:
        given = problem(n, m, k, dim, sigma, dtype)
        outer = torch.randn(n, device=DEVICE)
        poison()
        found = gradients(fused_neighbour_loss, given, outer, wide=False)
        name = f"lists B={n} K={k} D={dim} sigma={sigma:g} {str(dtype)[6:]}"
        if sigma < 1e-10:
            record("correct", name, float(sum(t.isnan().sum() for t in found)), "NaNs", "must be 0")
            continue
        truth = gradients(eager_lists, given, outer, wide=True)
        each = [error(a, b) for a, b in zip(found, truth)]
        record("correct", name, max(each[:3]), "rel", "value x theta sigma: " + " ".join(f"{e:.1e}" for e in each))
        again = gradients(fused_neighbour_loss, given, outer, wide=False)
        same = all(torch.equal(a, b) for a, b in zip(found, again))
        record("correct", name + " second run equal", float(same), "bool")
    cases = [(33, 1000, 65, 8.0), (64, 5000, 512, 15.0), (64, 5000, 512, 1.0), (64, 5000, 512, 1e3)]
    for n, m, dim, sigma in cases[: 1 if ARGS.quick else None]:
        given = problem(n, m, 1, dim, sigma, f32)
        del given[4]
        outer = torch.randn(n, device=DEVICE)
        truth = gradients(kernel.all_centres_loss, given, outer, wide=True, centres=True)
        for precision in ("ieee", "tf32x3", "tf32", "bf16"):
            poison()
            loss = lambda *a, p=precision: fused_all_centres_loss(*a, precision=p)  # noqa: E731
            found = gradients(loss, given, outer, wide=False, centres=True)
            each = [error(a, b) for a, b in zip(found, truth)]
            note = "value x c theta sigma: " + " ".join(f"{e:.1e}" for e in each)
            record(
                "correct", f"all centres B={n} m={m} D={dim} sigma={sigma:g} {precision}", max(each[:4]), "rel", note
            )


def loss_variants(given: list[Tensor], bytes_a_pass: float, name: str) -> None:
    """Forward and backward kernels alone, over the shapes of their tiles."""
    x, c, theta, sigma, neighbours, labels, centre_labels, own = given
    shapes = [(8192, 512, 8), (8192, 512, 4), (4096, 512, 4), (4096, 512, 8)]
    forward = [(Tiles(*shape), kernel_triton_lists.ONE_PROGRAM) for shape in shapes]
    forward += [(Tiles(4096, 512, 4), 0)]  # softmaxes in a second kernel
    backward = [Tiles(*s) for s in [(4096, 512, 4), (8192, 512, 8), (8192, 256, 4)]]
    grad = torch.randn(len(x), device=DEVICE)
    rest = (neighbours, labels, centre_labels, own)
    weights = kernel_triton_lists.forward(x, c, theta, sigma, *rest)[2]
    for tiles, limit in forward:
        if late():
            return
        run = lambda t=tiles, o=limit: kernel_triton_lists.forward(  # noqa: E731
            x, c, theta, sigma, *rest, tiles=t, one_program=o
        )
        t = replayed(run)
        how = "one program" if limit else "two kernels"
        record("loss", f"{name} forward, {how} {tuple(tiles)}", t * 1e3, "us", f"{bytes_a_pass / t / 1e9:.2f} TB/s")
    for tiles in backward:
        if late():
            return
        run = lambda tiles=tiles: kernel_triton_backward.backward(  # noqa: E731
            x, c, theta, sigma, neighbours, weights, grad, need_x=True, need_theta=True, tiles=tiles
        )
        t = replayed(run)
        record("loss", f"{name} backward {tuple(tiles)}", t * 1e3, "us", f"{bytes_a_pass / t / 1e9:.2f} TB/s")


def section_loss() -> None:
    n, m, k = (8, 50, 10) if ARGS.quick else (512, 100_000, 200)
    for dim, dtype in [(512, torch.float32), (2048, torch.float32), (512, torch.bfloat16)]:
        dim = 32 if ARGS.quick else dim
        given = problem(n, m, k, dim, dim**0.5 * 2, dtype)
        name = f"D={dim} {str(dtype)[6:]}"
        bytes_a_pass = float(n * k * dim * given[1].element_size())
        outer = torch.randn(n, device=DEVICE)
        leaves = [t.detach().requires_grad_(i in (0, 2)) for i, t in enumerate(given[:4])]

        def step(loss: Any, leaves: list[Tensor] = leaves, given: list[Tensor] = given, outer: Tensor = outer) -> None:
            value = loss(*leaves, *given[4:])
            value = value[0] if isinstance(value, tuple) else value
            torch.autograd.grad(value, [leaves[0], leaves[2]], outer.to(value.dtype))

        def bare(given: list[Tensor] = given, outer: Tensor = outer) -> None:
            x, c, theta, sigma, *ids = given
            weights = kernel_triton_lists.forward(x, c, theta, sigma, *ids)[2]
            kernel_triton_backward.backward(x, c, theta, sigma, ids[0], weights, outer, need_x=True, need_theta=True)

        kept = kernel_triton_lists.forward(*given)[2]
        record("loss", f"{name} weights that are not zero", float((kept != 0).double().mean()), "share")
        graph = replayed(bare)
        two = f"{2 * bytes_a_pass / graph / 1e9:.2f} TB/s of gathered rows"
        record("loss", f"{name} fused forward + backward, graph", graph * 1e3, "us", two)
        fused = milliseconds(lambda step=step: step(fused_neighbour_loss))
        record("loss", f"{name} fused forward + backward, launched", fused * 1e3, "us")
        host = host_ms(lambda step=step: step(fused_neighbour_loss))
        record(
            "loss", f"{name} fused forward + backward, host alone", host * 1e3, "us", "what Python takes to launch it"
        )
        memory = peak_mib(lambda step=step: step(fused_neighbour_loss))
        record("loss", f"{name} fused memory", memory, "MiB")
        for peer, loss in (("eager", eager_lists), ("gather + autograd", gather_lists)):
            t = milliseconds(lambda step=step, loss=loss: step(loss), 10)
            record(
                "loss", f"{name} {peer} forward + backward", t * 1e3, "us", f"{t / graph:.1f}x, {t / fused:.1f}x fused"
            )
            mib = peak_mib(lambda step=step, loss=loss: step(loss))
            record("loss", f"{name} {peer} memory", mib, "MiB", f"{mib / max(memory, 1e-9):.1f}x fused")
        loss_variants(given, bytes_a_pass, name)


def section_dense() -> None:
    n, dim = (4, 16) if ARGS.quick else (512, 512)
    for m in (100,) if ARGS.quick else (100_000, 1_000_000):
        given = problem(n, m, 1, dim, dim**0.5, torch.float32, classes=max(2, m // 100))
        del given[4]
        leaves = [t.detach().requires_grad_(i in (0, 2)) for i, t in enumerate(given[:4])]
        outer = torch.randn(n, device=DEVICE)
        floor = 2e-9 * n * m * dim

        def step(loss: Any, leaves: list[Tensor] = leaves, given: list[Tensor] = given, outer: Tensor = outer) -> None:
            torch.autograd.grad(loss(*leaves, *given[4:]), [leaves[0], leaves[2]], outer)

        variants = {
            p: (lambda *a, p=p: fused_all_centres_loss(*a, precision=p)) for p in ("tf32x3", "tf32", "bf16", "ieee")
        }
        for name, loss in {"eager": kernel.all_centres_loss, **variants}.items():
            if late():
                return
            t = milliseconds(lambda step=step, loss=loss: step(loss), 5, 2)
            forward = milliseconds(lambda loss=loss, leaves=leaves, given=given: loss(*leaves, *given[4:]), 5, 1)
            record("dense", f"m={m} {name} forward + backward", t, "ms", f"{3 * floor / t:.0f} TFLOP/s")
            record("dense", f"m={m} {name} forward", forward, "ms", f"{floor / forward:.0f} TFLOP/s")
            record("dense", f"m={m} {name} memory", peak_mib(lambda step=step, loss=loss: step(loss)), "MiB")
        if m == 100_000:
            usual = dict(kernel_triton_dense.BLOCKS)
            for blocks in [(128, 64, 32, 8, 3), (128, 64, 64, 4, 2), (128, 128, 32, 8, 3), (128, 32, 32, 4, 4)]:
                if late():
                    break
                kernel_triton_dense.BLOCKS[True] = blocks
                try:
                    t = milliseconds(lambda step=step, loss=variants["tf32x3"]: step(loss), 5, 1)
                    record(
                        "dense", f"m={m} tf32x3 forward + backward {blocks}", t, "ms", f"{3 * floor / t:.0f} TFLOP/s"
                    )
                except Exception as problem_found:
                    print("dense", blocks, repr(problem_found)[:300], flush=True)
            kernel_triton_dense.BLOCKS.update(usual)


SECTIONS = {
    "machine": section_machine,
    "correct": section_correct,
    "loss": section_loss,
    "search": section_search,
    "dense": section_dense,
    "googlenet": section_googlenet,
    "convolutions": section_convolutions,
}


def main() -> None:
    torch.manual_seed(0)
    for name, run in SECTIONS.items():
        if ARGS.only and name not in ARGS.only:
            continue
        try:
            run()
        except Exception:
            traceback.print_exc()
            record(name, "FAILED", float("nan"), "")
        if DEVICE == "cuda":
            torch.cuda.empty_cache()
        write()
    print("\n" + "\n".join(f"{r['what']:62}|{r['value']:11.4g} {r['unit']:7}|{r['note']}" for r in ROWS))


if __name__ == "__main__":
    main()
