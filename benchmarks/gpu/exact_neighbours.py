"""Exact neighbours on a GPU: right against float64, then beside the bare products and the usual way."""

import traceback
from typing import Any

import torch
from gpu_tools import ARGS, DEVICE, late, milliseconds, peak_mib, record, wait
from torch import Tensor

from nngk.search.cuda import nearest as search_cuda
from nngk.search.cuda.products import Tile


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
