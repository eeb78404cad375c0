"""Fused losses and exact search on a GPU: right first, then how fast, beside what the hardware and the eager way give.

    PYTHONPATH=src python benchmarks/gpu.py --out results/gpu --commit $(git rev-parse --short HEAD)

Writes one CSV file a section and prints the figures at the end. Floors: a pass over the gathered rows cannot be faster
than their bytes at the bandwidth of a device copy; a search cannot be faster than its products alone. ``--quick`` walks
through the same code with tiny sizes on the CPU, in Triton's interpreter.
"""

import argparse
import csv
import os
import platform
import sys
import time
import traceback
from pathlib import Path
from typing import Any

PARSER = argparse.ArgumentParser(description=__doc__)
PARSER.add_argument("--out", type=Path, required=True)
PARSER.add_argument("--commit", default="")
PARSER.add_argument("--only", nargs="*", default=[])
PARSER.add_argument("--quick", action="store_true")
PARSER.add_argument("--budget", type=float, default=225, help="seconds after which no new variant is tried")
ARGS = PARSER.parse_args()
if ARGS.quick:
    os.environ["TRITON_INTERPRET"] = "1"

import torch  # noqa: E402
import triton  # noqa: E402
from torch import Tensor  # noqa: E402

from nngk import kernel, kernel_triton_backward, kernel_triton_dense, kernel_triton_lists  # noqa: E402
from nngk.kernel_triton import fused_all_centres_loss, fused_neighbour_loss  # noqa: E402
from nngk.kernel_triton_launch import Tiles  # noqa: E402
from nngk.networks.googlenet import GoogLeNetBVLC  # noqa: E402
from nngk.search import cuda as search_cuda  # noqa: E402
from nngk.search.cuda_kernels import Tile  # noqa: E402

DEVICE = "cpu" if ARGS.quick else "cuda"
START = time.time()
ROWS: list[dict[str, Any]] = []


def record(section: str, what: str, value: float, unit: str, note: str = "") -> None:
    ROWS.append({"section": section, "what": what, "value": value, "unit": unit, "note": note})
    print(f"[{time.time() - START:6.1f}s] {section:9} {what:58} {value:12.5g} {unit:8} {note}", flush=True)


def late() -> bool:
    return time.time() - START > ARGS.budget


def wait() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def milliseconds(run: Any, repeats: int = 20, warm: int = 3) -> float:
    """Median time of a run between device events."""
    if DEVICE == "cpu":
        begin = time.perf_counter()
        run()
        return 1e3 * (time.perf_counter() - begin)
    for _ in range(warm):
        run()
    marks = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
    for first, last in marks:
        first.record()
        run()
        last.record()
    wait()
    times = sorted(first.elapsed_time(last) for first, last in marks)
    return times[len(times) // 2]


def host_ms(run: Any, repeats: int = 30) -> float:
    """Time until a run is queued, whatever the device does meanwhile."""
    repeats = 1 if ARGS.quick else repeats
    run()
    wait()
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        run()
        times.append(1e3 * (time.perf_counter() - begin))
    wait()
    return sorted(times)[repeats // 2]


def replayed(run: Any, repeats: int = 20) -> float:
    """The same for a captured graph: the kernels without the time Python takes to launch them."""
    if DEVICE == "cpu":
        return milliseconds(run)
    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return milliseconds(graph.replay, repeats)


def peak_mib(run: Any) -> float:
    """Memory that a run takes beyond what is there before it."""
    if DEVICE == "cpu":
        return 0.0
    run()
    wait()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    wait()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def poison() -> None:
    """Leave NaN in the memory that the allocator hands out next, so that an element nobody wrote is seen."""
    parts = [torch.full((n,), torch.nan, device=DEVICE) for n in [1 << 22, 1 << 18] + [1 << 12] * 64]
    del parts


def error(found: Tensor, truth: Tensor) -> float:
    found, truth = found.detach().double(), truth.detach()
    if not torch.isfinite(found).all():
        return float("nan")
    return float((found - truth).norm() / truth.norm().clamp(min=1e-300))


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


def truth_of(x: Tensor, rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Neighbours of some points by float64 products, with the last doubt removed by differences."""
    q = x[rows].double()
    norms = torch.cat([part.double().square().sum(1) for part in x.split(100_000)])
    d = torch.cat([q @ part.double().T for part in x.split(100_000)], 1).mul_(-2).add_(norms)
    d.scatter_(1, rows[:, None], torch.inf)
    near = d.topk(min(k + 60, len(x) - 1), dim=1, largest=False).indices.sort(dim=1).values
    exact = torch.stack([(x[j].double() - row).square().sum(1) for j, row in zip(near, q)])
    exact, order = exact.sort(dim=1, stable=True)
    return exact[:, :k], near.gather(1, order)[:, :k]


def check_search(name: str, x: Tensor, k: int, found: tuple[Tensor, Tensor]) -> None:
    rows = torch.randperm(len(x), device=DEVICE)[: 16 if ARGS.quick else 256]
    distances, indices = truth_of(x, rows, k)
    same = (found[1][rows] == indices).double().mean()
    worst = ((found[0][rows].double() - distances).abs() / distances.clamp(min=1e-30)).max()
    record("search", f"{name} indices equal to float64", float(same), "share", f"distances {float(worst):.1e}")


def clusters(n: int, dim: int, spread: float) -> Tensor:
    """Normalised embeddings of classes with about 100 members, sorted by class."""
    middles = torch.nn.functional.normalize(torch.randn(max(2, n // 100), dim, device=DEVICE), dim=1)
    labels = torch.randint(0, len(middles), (n,), device=DEVICE).sort().values
    noise = torch.randn(n, dim, device=DEVICE) * (spread / dim**0.5)
    return torch.nn.functional.normalize(middles[labels] + noise, dim=1)


def section_search() -> None:
    k, dim, small, large = (3, 16, 60, 80) if ARGS.quick else (100, 512, 100_000, 1_000_000)
    for n in (small, large):
        x = torch.randn(n, dim, device=DEVICE)
        half = x.half()
        step = 30 if ARGS.quick else 16384

        def bare(points: Tensor, step: int = step) -> None:
            for part in points.split(step):
                for columns in points.split(step):
                    part @ columns.T

        repeats = 5 if n == small else 1
        floor = milliseconds(lambda half=half: bare(half), repeats, 1)
        note = f"{2e-9 * n * n * dim / floor:.0f} TFLOP/s"
        record("search", f"n={n} bare products float16", floor, "ms", note)
        tiles = [Tile(128, 128, 64, 4, 3), Tile(128, 128, 64, 4, 3, True), Tile(128, 128, 64, 4, 4, True)]
        tiles += [Tile(128, 256, 64, 8, 3, True), Tile(128, 128, 128, 4, 2, True), Tile(128, 64, 64, 4, 4, True)]
        variants: list[tuple[str, dict[str, Any]]] = [(f"fused {tuple(t)}", {"tile": t}) for t in tiles]
        variants = [("library products", {"fused_from": 1 << 40}), *variants]
        if ARGS.quick:
            variants = [(name, {"capacity": 32, "fused_from": 1, **v}) for name, v in variants[:2]]
        best = (float("inf"), variants[0])
        for name, extra in variants if n == small else [BEST.get("variant", variants[1])]:
            if late() and n == small and best[0] < float("inf"):
                break
            try:
                run = lambda extra=extra, x=x: search_cuda.cuda_nearest(x, x, k, True, **extra)  # noqa: E731
                t = milliseconds(run, repeats, 1)
                record("search", f"n={n} k={k} exact, {name}", t, "ms", f"{t / floor:.2f}x the bare products")
                best = min(best, (t, (name, extra)), key=lambda pair: pair[0])
            except Exception as problem_found:
                print("search", name, repr(problem_found)[:300], flush=True)
        BEST["variant"] = best[1]
        extra = best[1][1]
        again = lambda x=x, extra=extra: search_cuda.cuda_nearest(x, x, k, True, **extra)  # noqa: E731
        record("search", f"n={n} memory", peak_mib(again), "MiB")
        check_search(f"n={n} normal", x, k, again())
        if n == small:
            search_others(x, k, extra)
            try:
                search_parts(x, k)
            except Exception:
                traceback.print_exc()


BEST: dict[str, Any] = {}


def search_others(x: Tensor, k: int, extra: dict[str, Any]) -> None:
    """Harder data, and the usual way."""
    n, dim = x.shape
    for spread in (1.0, 0.05):
        hard = clusters(n, dim, spread)
        t = milliseconds(lambda hard=hard: search_cuda.cuda_nearest(hard, hard, k, True, **extra), 2, 1)
        record("search", f"n={n} clustered, spread {spread:g}", t, "ms")
        check_search(f"n={n} clustered {spread:g}", hard, k, search_cuda.cuda_nearest(hard, hard, k, True, **extra))
    few = torch.randint(0, 4, (2000 if not ARGS.quick else 40, 3), device=DEVICE).float()  # many exact ties
    check_search("duplicates", few, min(k, 20), search_cuda.cuda_nearest(few, few, min(k, 20), True, **extra))
    same = torch.ones(3000 if not ARGS.quick else 40, 8, device=DEVICE)  # more ties than a list holds
    found = search_cuda.cuda_nearest(same, same, 5, True, **extra)[1]
    right = torch.stack([torch.tensor([j for j in range(6) if j != i][:5]) for i in range(len(same))]).to(DEVICE)
    record("search", "all points the same, lowest indices first", float((found == right).double().mean()), "share")
    part = x[: 50_000 if not ARGS.quick else 40]

    def usual() -> None:
        d = torch.cdist(part, part)
        d.fill_diagonal_(torch.inf)
        d.topk(k, largest=False)

    t = milliseconds(usual, 2, 1)
    record("search", f"n={len(part)} torch.cdist + topk", t, "ms")
    ours = milliseconds(lambda: search_cuda.cuda_nearest(part, part, k, True, **extra), 2, 1)
    record("search", f"n={len(part)} exact", ours, "ms", f"cdist + topk takes {t / ours:.1f}x")


def search_parts(x: Tensor, k: int) -> None:
    """Where the time of a search goes, from a profile of its kernels."""
    if DEVICE == "cpu":
        return
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        search_cuda.cuda_nearest(x, x, k, True, **BEST["variant"][1])
        wait()
    events = sorted(profile.key_averages(), key=lambda e: -e.self_device_time_total)
    for event in events[:10]:
        record("search", f"part: {event.key[:45]}", event.self_device_time_total / 1e3, "ms", f"{event.count} calls")


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
    note = "convolutions, biases, ReLU and pooling PyTorch's, gradients to follow"
    record("googlenet", f"the network, {images} pictures, as training calls it", ordinary, "ms", note)


def write() -> None:
    ARGS.out.mkdir(parents=True, exist_ok=True)
    device = torch.cuda.get_device_name() if DEVICE == "cuda" else platform.processor() or "cpu"
    same = {
        "commit": ARGS.commit,
        "command": " ".join(["benchmarks/gpu.py", *sys.argv[1:]]),
        "machine": platform.machine(),
        "device": device,
        "torch": torch.__version__,
        "triton": triton.__version__,
    }
    for section in {row["section"] for row in ROWS}:
        with (ARGS.out / f"gpu_{section}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, ["section", "what", "value", "unit", "note", *same])
            writer.writeheader()
            writer.writerows({**row, **same} for row in ROWS if row["section"] == section)


def main() -> None:
    torch.manual_seed(0)
    sections = {name[8:]: run for name, run in globals().items() if name.startswith("section_")}
    for name, run in sections.items():
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
