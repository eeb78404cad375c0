"""Are exact neighbours right, and how fast are they found beside the bare products and the usual way?

    PYTHONPATH=src python benchmarks/gpu/exact_neighbours.py

Rows: results/gpu_search.csv.
"""

from typing import Any

import interpreted  # noqa: F401
import torch
from measure import DEVICE, QUICK, Report, milliseconds, peak_mib, report_of, wait
from torch import Tensor

from nngk.search.cuda import nearest as search_cuda
from nngk.search.cuda.products import Tile

SMALL, LARGE = 100_000, 1_000_000  # points
Options = dict[str, Any]


def truth_of(x: Tensor, rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the neighbours of some points by float64 products, with the last doubt removed by differences."""
    q = x[rows].double()
    norms = torch.cat([part.double().square().sum(1) for part in x.split(100_000)])
    d = torch.cat([q @ part.double().T for part in x.split(100_000)], 1).mul_(-2).add_(norms)
    d.scatter_(1, rows[:, None], torch.inf)
    near = d.topk(min(k + 60, len(x) - 1), dim=1, largest=False).indices.sort(dim=1).values
    exact = torch.stack([(x[j].double() - row).square().sum(1) for j, row in zip(near, q)])
    exact, order = exact.sort(dim=1, stable=True)
    return exact[:, :k], near.gather(1, order)[:, :k]


def check_search(report: Report, name: str, x: Tensor, k: int, found: tuple[Tensor, Tensor]) -> None:
    """Compare the neighbours of some points with those by float64."""
    rows = torch.randperm(len(x), device=DEVICE)[: 16 if QUICK else 256]
    distances, indices = truth_of(x, rows, k)
    same = (found[1][rows] == indices).double().mean()
    worst = ((found[0][rows].double() - distances).abs() / distances.clamp(min=1e-30)).max()
    report(f"{name} indices equal to float64", float(same), "share", f"distances {float(worst):.1e}")


def clusters(n: int, dim: int, spread: float) -> Tensor:
    """Return normalised embeddings of classes with about 100 members, sorted by class."""
    middles = torch.nn.functional.normalize(torch.randn(max(2, n // 100), dim, device=DEVICE), dim=1)
    labels = torch.randint(0, len(middles), (n,), device=DEVICE).sort().values
    noise = torch.randn(n, dim, device=DEVICE) * (spread / dim**0.5)
    return torch.nn.functional.normalize(middles[labels] + noise, dim=1)


def bare_products(points: Tensor, step: int) -> None:
    """Compute all products of a search and nothing else."""
    for part in points.split(step):
        for columns in points.split(step):
            part @ columns.T


def ways() -> list[tuple[str, Options]]:
    """Return the ways to search: the library's products, and fused ones over the shapes of their tiles."""
    tiles = [Tile(128, 128, 64, 4, 3), Tile(128, 128, 64, 4, 3, True), Tile(128, 128, 64, 4, 4, True)]
    tiles += [Tile(128, 256, 64, 8, 3, True), Tile(128, 128, 128, 4, 2, True), Tile(128, 64, 64, 4, 4, True)]
    found = [("library products", {"fused_from": 1 << 40}), *((f"fused {tuple(t)}", {"tile": t}) for t in tiles)]
    return [(name, {"capacity": 32, "fused_from": 1, **way}) for name, way in found[1:2]] if QUICK else found


def timed(report: Report, x: Tensor, k: int, tried: list[tuple[str, Options]]) -> tuple[str, Options]:
    """Time ways to search beside the bare products; return the fastest."""
    n, dim = x.shape
    repeats = 5 if n <= SMALL else 1
    half = x.half()
    floor = milliseconds(lambda: bare_products(half, 30 if QUICK else 16384), repeats, 1)
    report(f"n={n} bare products float16", floor, "ms", f"{2e-9 * n * n * dim / floor:.0f} TFLOP/s")
    best = (float("inf"), tried[0])
    for name, way in tried:
        if report.late() and best[0] < float("inf"):
            break
        try:
            t = milliseconds(lambda way=way: search_cuda.cuda_nearest(x, x, k, True, **way), repeats, 1)
        except Exception as reason:  # a tile that this GPU has no room for; the others go on
            print(name, repr(reason)[:300], flush=True)
            continue
        report(f"n={n} k={k} exact, {name}", t, "ms", f"{t / floor:.2f}x the bare products")
        best = min(best, (t, (name, way)), key=lambda pair: pair[0])
    return best[1]


def neighbours(report: Report) -> None:
    """Time the search over tiles and sizes, and compare what it finds with float64."""
    k, dim = (3, 16) if QUICK else (100, 512)
    tried = ways()
    for n in (40,) if QUICK else (SMALL, LARGE):
        x = torch.randn(n, dim, device=DEVICE)
        fastest = timed(report, x, k, tried)
        tried = [fastest]  # the others would take minutes with more points

        def again(x: Tensor = x, way: Options = fastest[1]) -> tuple[Tensor, Tensor]:
            return search_cuda.cuda_nearest(x, x, k, True, **way)

        report(f"n={n} memory", peak_mib(again), "MiB")
        check_search(report, f"n={n} normal", x, k, again())
        if n <= SMALL:
            search_others(report, x, k, fastest[1])
            search_parts(report, x, k, fastest[1])


def search_others(report: Report, x: Tensor, k: int, way: Options) -> None:
    """Measure harder data, and the usual way."""
    n, dim = x.shape
    for spread in (1.0,) if QUICK else (1.0, 0.05):
        hard = clusters(n, dim, spread)
        t = milliseconds(lambda hard=hard: search_cuda.cuda_nearest(hard, hard, k, True, **way), 2, 1)
        report(f"n={n} clustered, spread {spread:g}", t, "ms")
        check_search(
            report, f"n={n} clustered {spread:g}", hard, k, search_cuda.cuda_nearest(hard, hard, k, True, **way)
        )
    few = torch.randint(0, 4, (2000 if not QUICK else 40, 3), device=DEVICE).float()  # many exact ties
    check_search(report, "duplicates", few, min(k, 20), search_cuda.cuda_nearest(few, few, min(k, 20), True, **way))
    same = torch.ones(3000 if not QUICK else 40, 8, device=DEVICE)  # more ties than a list holds
    found = search_cuda.cuda_nearest(same, same, 5, True, **way)[1]
    right = torch.stack([torch.tensor([j for j in range(6) if j != i][:5]) for i in range(len(same))]).to(DEVICE)
    report("all points the same, lowest indices first", float((found == right).double().mean()), "share")
    part = x[: 50_000 if not QUICK else 40]

    def usual() -> None:
        d = torch.cdist(part, part)
        d.fill_diagonal_(torch.inf)
        d.topk(k, largest=False)

    t = milliseconds(usual, 2, 1)
    report(f"n={len(part)} torch.cdist + topk", t, "ms")
    ours = milliseconds(lambda: search_cuda.cuda_nearest(part, part, k, True, **way), 2, 1)
    report(f"n={len(part)} exact", ours, "ms", f"cdist + topk takes {t / ours:.1f}x")


def search_parts(report: Report, x: Tensor, k: int, way: Options) -> None:
    """Profile the kernels of a search, to see where its time goes."""
    if DEVICE == "cpu":
        return
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        search_cuda.cuda_nearest(x, x, k, True, **way)
        wait()
    events = sorted(profile.key_averages(), key=lambda e: -e.self_device_time_total)
    for event in events[:10]:
        report(f"part: {event.key[:45]}", event.self_device_time_total / 1e3, "ms", f"{event.count} calls")


if __name__ == "__main__":
    report_of("search", __doc__, "results/gpu_search.csv", neighbours)
