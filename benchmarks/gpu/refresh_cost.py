"""Real training on CUB: no refresh of the bank, one that waits and one behind it; what graphs and compilation add."""

import argparse
import copy
import tempfile
import time
import traceback
import warnings
from dataclasses import replace
from pathlib import Path

import torch
from gpu_runs import Report, settings, wait

from nngk.bank.refresh import Refresher
from nngk.data import ImageTable, batches, split
from nngk.search import Exact
from nngk.training import loop
from nngk.training.profile import StepProfile, unwatched
from nngk.training.run import Run

NEVER = 1 << 40  # steps between two refreshes


def timed_epochs(run: Run, epochs: int) -> tuple[float, float]:
    """Images and seconds of some epochs in the middle of training, the refreshes that are due among them."""
    wait(run.device)
    seen, begin = 0.0, time.perf_counter()
    for _ in range(epochs):
        loop.train_epoch(run, lambda: False, begin)
        seen += run.at.batch * run.settings.batch_size
        run.at = replace(run.at, epoch=run.at.epoch + 1, batch=0, loss_sum=0.0)
    wait(run.device)
    return seen, time.perf_counter() - begin


def refresh_every(run: Run, every: int, background: bool) -> None:
    given = run.refresher
    run.refresher = Refresher(run.bank, given.embed, every, Exact(), background, given.prepare)


def compare_refreshes(args: argparse.Namespace, report: Report, run: Run, name: str) -> None:
    """None, blocking and background side by side, each after an epoch of warm-up: what is captured is captured once."""
    speeds = {}
    for mode in ("none", "blocking", "background"):
        refresh_every(run, NEVER if mode == "none" else run.steps_per_epoch, mode == "background")
        timed_epochs(run, 1)
        before = len(run.refresher.history)
        images, seconds = timed_epochs(run, 1 if args.quick else 3)
        speeds[mode] = images / seconds
        history = run.refresher.history[before:]
        run.refresher.finish(run.at.step)
        note = f"{speeds[mode] / speeds['none']:.1%} of none"
        if history:
            took, stale = history[-1].seconds, history[-1].staleness
            note += f"; {len(history)} refreshes, the last {took:.2f} s, {stale} steps old when it came"
        report("refresh", f"{name}, refresh {mode}", speeds[mode], "images/s", note)
    share = speeds["background"] / speeds["none"]
    report("refresh", f"{name}, background / none", share, "x", "bar at 20: at least 0.9")
    report("refresh", f"{name}, background / blocking", speeds["background"] / speeds["blocking"], "x", "bar at 128: 1")


def replays(report: Report, run: Run, name: str) -> None:
    """How far a replayed refresh is from the network itself once the weights have changed."""
    if run.refresher.prepare is None:
        return
    shadow = copy.deepcopy(run.network).requires_grad_(False)
    called = run.refresher.prepare(shadow)
    run.embed(run.parts.train, called)  # captured here
    with torch.no_grad():
        for parameter in shadow.parameters():
            parameter.mul_(1.01)
    found, expected = (run.embed(run.parts.train, which) for which in (called, shadow))
    error = float((found - expected).norm() / expected.norm())
    report("refresh", f"{name}, replayed, error of the centres", error, "rel", "against the network itself")


def waits(report: Report, run: Run, name: str, count: int = 6) -> None:
    """How often the host waits for the GPU in a step; the first step may, to place what stays there."""
    if run.device.type != "cuda":
        return
    given = (run.parts.train.source, run.parts.train.labels, run.index_batches(0)[:count])
    augment = loop._seeded(run.parts.augment, 0, 0)
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
    report("training", f"{name}, waits a step", (found[-1] - found[0]) / (count - 1), "", " ".join(sorted(places)))


def profiled(args: argparse.Namespace, report: Report, run: Run, name: str, folder: Path) -> None:
    watcher = StepProfile(folder, run.device, 3, 10)
    run.stage = watcher.stage
    loop.train_epoch(run, lambda: False, time.perf_counter(), watcher)
    run.at = replace(run.at, epoch=run.at.epoch + 1, batch=0, loss_sum=0.0)
    watcher.finish()
    run.refresher.finish(run.at.step)
    run.stage = unwatched
    for row in watcher.rows:
        report("profile", f"{name}, {row['stage']}", row["device_ms"], "ms", f"host {row['host_ms']:.3f} ms")


def section_training(args: argparse.Namespace, report: Report, device: torch.device, table: ImageTable) -> None:
    with tempfile.TemporaryDirectory() as home:
        # The two that have bars come first; the others must leave time for the sections that follow.
        for network, batch, needed in (
            ("googlenet-bvlc", 20, 40),
            ("resnet50-v1", 128, 40),
            ("googlenet-bvlc", 128, 110),
            ("resnet50-v1", 20, 140),
        ):
            if report.late(needed):
                continue
            name = f"{network}, batch {batch}"
            begin = time.perf_counter()
            # The rate stays low and level: what is timed does not depend on it, and nothing can diverge.
            s = settings(args, network, batch, lr=1e-6, schedule="constant", epochs=100)
            folder = Path(home) / f"{network}-{batch}"
            folder.mkdir()
            run = Run(split(table, s.task, s.val_fraction, s.test_fraction, s.seed), s, folder)
            wait(device)
            kind = type(run.parts.train.source).__name__
            note = f"images read by {kind}, {len(run.parts.train)} in all"
            report("training", f"{name}, ready after", time.perf_counter() - begin, "s", note)
            replays(report, run, name)
            compare_refreshes(args, report, run, name)
            profiles = args.out / "profile" if (network, batch) == ("googlenet-bvlc", 20) else folder / "profile"
            try:
                waits(report, run, name)
                profiled(args, report, run, name, profiles)
            except Exception:
                traceback.print_exc()
            if device.type == "cuda":
                report("training", f"{name}, memory", torch.cuda.max_memory_allocated() / 2**30, "GiB")
                del run
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()


def section_compile(args: argparse.Namespace, report: Report, device: torch.device, table: ImageTable) -> None:
    """What CUDA graphs and torch.compile add to a step, after the time that capturing or compiling takes."""
    with tempfile.TemporaryDirectory() as home:
        cases = (("googlenet-bvlc", 20, "default"), ("resnet50-v1", 128, "default"), ("googlenet-bvlc", 96, "default"))
        for network, batch, mode in cases:
            if report.late(60) or args.quick:
                return
            speeds = []
            for chosen in ("off", "graphs", mode):
                folder = Path(home) / f"{network}-{batch}-{chosen}"
                folder.mkdir()
                s = settings(args, network, batch, lr=1e-6, epochs=100, compile=chosen)
                run = Run(split(table, s.task, s.val_fraction, s.test_fraction, s.seed), s, folder)
                refresh_every(run, NEVER, False)
                _, first = timed_epochs(run, 1)
                images, seconds = timed_epochs(run, 1)
                speeds.append(images / seconds)
                note = f"first epoch {first:.1f} s; {speeds[-1] / speeds[0]:.2f}x off"
                report("compile", f"{network}, batch {batch}, compile {chosen}", speeds[-1], "images/s", note)
