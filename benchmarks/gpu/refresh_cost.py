"""What does a refresh of the bank cost training on CUB: none, one that waits, and one in the background?

    PYTHONPATH=src python benchmarks/gpu/refresh_cost.py --data DIR --weights DIR [--commit HASH]

The bars: in the background it keeps 90% of the throughput of none at a batch of 20, and is never slower than blocking
at 128. Also how often the host waits in a step, a profile of steps, and memory. Rows: results/gpu_training.csv, with
the sections 'refresh', 'training' and 'profile'.
"""

import copy
import time
import traceback
import warnings
from dataclasses import replace
from pathlib import Path

import torch
from measure import QUICK, Report
from training_measure import (
    NEVER,
    images_at_hand,
    is_gpu,
    new_run,
    refresh_every,
    settings,
    timed_epochs,
    training_report,
)

from nngk.data import batches
from nngk.training import loop
from nngk.training.profile import StepProfile
from nngk.training.run import Run, unprofiled
from nngk.training.step_batches import seeded

# The two that have bars come first, each with the seconds it needs.
CASES = (
    ("googlenet-bvlc", 20, 40),
    ("resnet50-v1", 128, 40),
    ("googlenet-bvlc", 128, 110),
    ("resnet50-v1", 20, 140),
)


def compare_refreshes(report: Report, run: Run, name: str) -> None:
    """Measure none, blocking and background side by side, each after an epoch of warm-up."""
    speeds = {}
    for mode in ("none", "blocking", "background"):
        refresh_every(run, NEVER if mode == "none" else run.steps_per_epoch, mode == "background")
        timed_epochs(run, 1)
        before = len(run.refresher.history)
        images, seconds = timed_epochs(run, 1 if QUICK else 3)
        speeds[mode] = images / seconds
        history = run.refresher.history[before:]
        run.refresher.finish(run.at.step)
        note = f"{speeds[mode] / speeds['none']:.1%} of none"
        if history:
            took, stale = history[-1].seconds, history[-1].staleness
            note += f"; {len(history)} refreshes, the last {took:.2f} s, {stale} steps old when it came"
        report(f"{name}, refresh {mode}", speeds[mode], "images/s", note)
    share = speeds["background"] / speeds["none"]
    report(f"{name}, background / none", share, "x", "bar at 20: at least 0.9")
    report(f"{name}, background / blocking", speeds["background"] / speeds["blocking"], "x", "bar at 128: 1")


def replays(report: Report, run: Run, name: str) -> None:
    """Measure how far a replayed refresh is from the network itself once the weights have changed."""
    if run.refresher.prepare is None:
        return
    shadow = copy.deepcopy(run.network).requires_grad_(False)
    called = run.refresher.prepare(shadow)
    run.embed(run.feed.train, called)  # captured here
    with torch.no_grad():
        for parameter in shadow.parameters():
            parameter.mul_(1.01)
    found, expected = (run.embed(run.feed.train, which) for which in (called, shadow))
    error = float((found - expected).norm() / expected.norm())
    report(f"{name}, replayed, error of the centres", error, "rel", "against the network itself")


def waits(report: Report, run: Run, name: str, count: int = 6) -> None:
    """Count how often the host waits for the GPU in a step; the first step may, to place what stays there."""
    if not is_gpu():
        return
    given = (run.feed.train.source, run.feed.train.labels, run.index_batches(0)[:count])
    augment = seeded(run.feed.augment, 0, 0)
    found: list[int] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            for images, labels, indices in batches(*given, augment, device=run.device):
                loop.take_step(run, images, labels, indices)
                run.at.step += 1
                found.append(len(caught))
        finally:
            torch.cuda.set_sync_debug_mode("default")
    places = {f"{Path(w.filename).name}:{w.lineno}" for w in caught[found[0] :]}
    report(f"{name}, waits per step", (found[-1] - found[0]) / (count - 1), "", " ".join(sorted(places)), "training")


def profiled(report: Report, run: Run, name: str, folder: Path) -> None:
    """Profile ten steps, stage by stage."""
    watcher = StepProfile(folder, run.device, 3, 10)
    run.stage = watcher.stage
    loop.train_epoch(run, lambda: False, time.perf_counter(), watcher)
    run.at = replace(run.at, epoch=run.at.epoch + 1, batch=0, loss_sum=0.0)
    watcher.finish()
    run.refresher.finish(run.at.step)
    run.stage = unprofiled
    for row in watcher.rows:
        report(f"{name}, {row['stage']}", row["device_ms"], "ms", f"host {row['host_ms']:.3f} ms", "profile")


def refreshes(report: Report) -> None:
    """Measure every network and batch size."""
    with images_at_hand(report) as (sources, table):
        for network, batch, needed in CASES[: 2 if QUICK else None]:
            if report.late(needed):
                continue
            name = f"{network}, batch {batch}"
            begin = time.perf_counter()
            # The rate stays low and level: what is timed does not depend on it, and nothing can diverge.
            s = settings(report, sources, network, batch, lr=1e-6, schedule="constant", epochs=100)
            run = new_run(report, table, s, f"{network}-{batch}")
            note = f"images read by {type(run.feed.train.source).__name__}, {len(run.feed.train)} in all"
            report(f"{name}, ready after", time.perf_counter() - begin, "s", note, "training")
            replays(report, run, name)
            compare_refreshes(report, run, name)
            try:
                waits(report, run, name)
                profiled(report, run, name, run.folder / "profile")
            except Exception:  # the figures before it stay
                traceback.print_exc()
            if is_gpu():
                report(f"{name}, memory", torch.cuda.max_memory_allocated() / 2**30, "GiB", "", "training")
                del run
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()


if __name__ == "__main__":
    training_report("refresh", __doc__, refreshes)
