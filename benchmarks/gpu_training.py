"""Training on a GPU: what the kernel loss, the refresh of the bank and the input cost, and how fast CUB is learned.

    PYTHONPATH=src python benchmarks/gpu_training.py --data DIR --weights DIR --out results/gpu --commit HASH

``--data`` is the folder that holds CUB_200_2011, or a pack of it; ``--weights`` the one with the weights of the two
networks. The bars: a step with the kernel loss takes at most 1.05 of one with softmax; a refresh runs at 3 times the
images/s of training; in the background it keeps 90% of the throughput of none at a batch of 20 and is never slower than
blocking at 128. The run that is timed to the paper's Recall@1 is that of our recipe at 64 dimensions, chosen elsewhere
(``--settings``, JSON, changes it): the test classes are looked at here to stop a clock, not to choose. ``--quick`` goes
through all of it on the CPU.
"""

import argparse
import copy
import json
import statistics
import tempfile
import time
import traceback
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from record import append_rows, circumstances
from torch import Tensor

from nngk import progress
from nngk.bank import CentreBank
from nngk.data import Augmentation, ImageTable, batches, evaluation, random_batches, read_images, split
from nngk.embedding import embed
from nngk.loss import GaussianKernelLoss
from nngk.metrics import evaluate
from nngk.networks import EmbeddingNetwork, create_network
from nngk.networks.reduction import reduce_embedding
from nngk.paper.presets import metric_settings
from nngk.refresh import Refresher
from nngk.rivals import create_loss
from nngk.search import Exact
from nngk.training import loop
from nngk.training.config import Settings
from nngk.training.optimiser import create_optimiser
from nngk.training.parts import Features
from nngk.training.profile import StepProfile, unwatched
from nngk.training.run import Run

PAPER = 0.5115  # Recall@1 on CUB of the paper's GoogLeNet with 64 dimensions
NEVER = 1 << 40  # steps between two refreshes
FILES = {"googlenet-bvlc": "googlenet_bvlc_fp16.safetensors", "resnet50-v1": "resnet50_v1_fp16.safetensors"}


class Report:
    """Rows of figures, printed as they come and written after every section."""

    def __init__(self, args: argparse.Namespace, device: torch.device) -> None:
        self.args, self.device, self.begun = args, device, time.time()
        self.rows: list[dict[str, Any]] = []
        self.written = 0

    def __call__(self, section: str, what: str, value: float, unit: str, note: str = "") -> None:
        self.rows.append({"section": section, "what": what, "value": value, "unit": unit, "note": note})
        print(f"[{time.time() - self.begun:6.1f}s] {section:10} {what:52} {value:10.5g} {unit:8} {note}", flush=True)

    def late(self, needed: float = 0.0) -> bool:
        return time.time() - self.begun + needed > self.args.budget

    def write(self) -> None:
        same = circumstances(str(self.device), self.args.commit or None)
        append_rows(self.args.out / "gpu_training.csv", [{**row, **same} for row in self.rows[self.written :]])
        self.written = len(self.rows)


class Noise:
    """Random pictures: what is in them does not change how long they take."""

    def __init__(self, count: int, size: int, device: torch.device) -> None:
        self.pixels = torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8, device=device)
        self.device = device

    def __len__(self) -> int:
        return len(self.pixels)

    def batch(self, indices: Any) -> Tensor:
        return self.pixels[torch.as_tensor(indices).to(self.device)]


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def settings(args: argparse.Namespace, network: str, batch: int, **changes: Any) -> Settings:
    """Metric learning on all training classes."""
    values: dict[str, Any] = {"task": "metric", "val_fraction": 0.0, "patience": 0, "batch_size": batch, "threads": 16}
    values["cache"] = str(args.cache)
    if args.quick:
        values |= {"network": "small", "weights": "random", "dim": 8, "resize": 18, "crop_size": 16, "device": "cpu"}
        values |= {"n_neighbours": 6, "batch_size": min(batch, 8), "threads": 1, "epochs": 4}
    else:
        values |= {"network": network, "weights": str(args.weights / FILES[network]), "dim": 64, "freeze": False}
    return Settings(**(values | changes))


# -- a step: the kernel loss beside softmax


class Stepper:
    """A network and a loss on random pictures, trained as the loop trains."""

    def __init__(self, args: argparse.Namespace, kind: str, device: torch.device, pictures: Noise) -> None:
        m, classes, batch = (200, 10, 8) if args.quick else (100_000, 1000, 128)
        self.s = settings(args, "resnet50-v1", batch)
        self.device, self.pictures, self.batch = device, pictures, batch
        network = create_network(self.s.network, dim=self.s.dim, weights="random", layer_norm=True)
        self.network = network.to(device).to(memory_format=torch.channels_last).train()
        size = 16 if args.quick else network.input.size
        self.augment = Augmentation(size=size, mean=network.input.mean, std=network.input.std)
        self.plain = evaluation(size, network.input.mean, network.input.std)
        self.labels = torch.arange(m, device=device) % classes
        if kind == "kernel":
            bank = CentreBank(self.labels, network.dim, min(100, m - 1)).to(device)
            bank.renew(torch.nn.functional.normalize(torch.randn(m, network.dim, device=device)), Exact())
            self.loss: Any = GaussianKernelLoss(bank, 0.3).to(device)
            extra = self.loss.parameter_groups(self.s.lr, 100.0)
        else:
            self.loss = create_loss("softmax", dim=network.dim, n_classes=classes).to(device)
            extra = self.loss.parameter_groups(self.s.lr)
        self.optimiser = create_optimiser(network.backbone_parameters(), network.embedding_parameters(), extra, self.s)

    def steps(self, count: int) -> float:
        """Milliseconds a step of some in a row, the augmentation of their batches included."""
        order = random_batches(self.labels.cpu() * 0, self.batch, 0, 0)[:count]
        given = [chosen % len(self.pictures) for chosen in order]
        coming = batches(self.pictures, self.labels.cpu(), given, self.augment, device=self.device)
        wait(self.device)
        begin = time.perf_counter()
        for chosen in order:
            images = next(coming)[0]
            rows = chosen.pin_memory().to(self.device, non_blocking=True) if self.device.type == "cuda" else chosen
            with torch.autocast(self.device.type, torch.bfloat16):
                embeddings = self.network(images)
            loss = self.loss(embeddings, self.labels[rows], rows)
            self.optimiser.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_([p for g in self.optimiser.param_groups for p in g["params"]], 1.0)
            self.optimiser.step()
        wait(self.device)
        return 1e3 * (time.perf_counter() - begin) / len(order)


def section_step(args: argparse.Namespace, report: Report, device: torch.device, table: ImageTable) -> None:
    count, rounds = (2, 1) if args.quick else (12, 7)
    pictures = Noise(16 if args.quick else 2048, 18 if args.quick else 256, device)
    steppers = {kind: Stepper(args, kind, device, pictures) for kind in ("softmax", "kernel")}
    times: dict[str, list[float]] = {kind: [] for kind in steppers}
    for stepper in steppers.values():
        stepper.steps(count)  # warm-up
    for _ in range(rounds):  # in turns, so that a drifting clock meets both
        for kind, stepper in steppers.items():
            times[kind].append(stepper.steps(count))
    middle = {kind: statistics.median(values) for kind, values in times.items()}
    for kind, value in middle.items():
        report("step", f"ResNet50, {steppers[kind].batch} images, {kind} loss", value, "ms")
    report("step", "kernel / softmax", middle["kernel"] / middle["softmax"], "x", "bar: at most 1.05")
    stepper = steppers["kernel"]
    training = 1e3 * stepper.batch / middle["kernel"]
    report("step", "ResNet50 training, 128 at a time", training, "images/s")
    for batch in (8,) if args.quick else (256, 512):
        given = (stepper.network, pictures, stepper.plain)
        for timed in (False, True):
            wait(device)
            begin = time.perf_counter()
            for _ in range(4 if timed and not args.quick else 1):
                embed(*given, batch_size=batch, device=device, amp=True)
            wait(device)
        speed = (1 if args.quick else 4) * len(pictures) / (time.perf_counter() - begin)
        note = f"{speed / training:.2f}x training; bar: at least 3"
        report("step", f"ResNet50 refresh, {batch} at a time", speed, "images/s", note)


# -- real training: CUB, with and without a refresh


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


def section_target(args: argparse.Namespace, report: Report, device: torch.device, table: ImageTable) -> None:
    """Seconds of training until the test classes are retrieved as well as in the paper."""
    s = of_this_machine(args, metric_settings("best", 64))
    s = replace(s, **(json.loads(args.settings.read_text(encoding="utf-8")) if args.settings else {}))
    with tempfile.TemporaryDirectory() as home:
        begin = time.perf_counter()
        folder = Path(home) / "run"
        folder.mkdir()
        run = Run(split(table, s.task, s.val_fraction, s.test_fraction, s.seed), s, folder)
        wait(device)
        report("target", "decoding, network and images on the device", time.perf_counter() - begin, "s")
        begin = time.perf_counter()
        run.begin()
        wait(device)
        trained = time.perf_counter() - begin
        report("target", "the start of the embedding layer", trained, "s")
        for epoch in range(s.epochs + 1):  # the first look is before any of them
            begin, speed = time.perf_counter(), 0.0
            if epoch:
                _, speed = loop.train_epoch(run, lambda: False, begin)
                run.at = replace(run.at, epoch=epoch, batch=0, loss_sum=0.0)
            network = narrowed(run)
            wait(device)
            trained += time.perf_counter() - begin
            x = run.embed(run.parts.test, network)
            recall = evaluate(x, run.parts.test.labels.to(x.device), ks=(1,), nmi_seeds=0)["recall@1"]
            report("target", f"epoch {epoch}, Recall@1", 100 * recall, "%", f"{trained:.2f} s, {speed:.0f} images/s")
            if recall >= PAPER:
                report("target", f"Recall@1 of {100 * PAPER:.2f} reached after", trained, "s", "training and refreshes")
                return
            if report.late():
                break
        report("target", f"Recall@1 of {100 * PAPER:.2f} reached after", float("nan"), "s", f"not in {trained:.1f} s")


def narrowed(run: Run) -> EmbeddingNetwork:
    """The network as it would be if training ended here."""
    network = copy.deepcopy(run.network)
    if run.settings.wide and run.settings.dim:
        features = run.embed(run.parts.train, Features(network, pooled=False))
        reduce_embedding(network, features, run.settings.dim, run.settings.whiten)
    return network


def of_this_machine(args: argparse.Namespace, recipe: Settings) -> Settings:
    """A recipe with what it leaves open: where the weights and the decoded images are, and no class held out."""
    given = settings(args, "googlenet-bvlc", recipe.batch_size)
    place = {name: getattr(given, name) for name in ("network", "weights", "cache", "val_fraction", "threads")}
    if args.quick:  # the recipe's course, small
        small = ("dim", "resize", "crop_size", "n_neighbours", "batch_size", "device", "epochs")
        place |= {name: getattr(given, name) for name in small} | {"wide": 12, "layers": 1}
    return replace(recipe, **place)


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


def images_table(args: argparse.Namespace, home: Path) -> ImageTable:
    if not args.quick:
        named = (args.data / "CUB_200_2011").is_dir() or args.data.name == "CUB_200_2011"
        return (
            read_images("cub200", data_dir=args.data, task="metric") if named else read_images(args.data, task="metric")
        )
    from PIL import Image

    rng = np.random.default_rng(0)
    for label in range(6):
        (home / f"class{label}").mkdir(parents=True)
        for i in range(8):
            pixels = np.clip(rng.normal(40 * label, 30, (18, 18, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(home / f"class{label}" / f"{i}.png")
    return read_images(home, task="metric")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--weights", type=Path, default=Path("weights"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--commit", default="")
    parser.add_argument("--settings", type=Path, help="JSON of the run that is timed to the paper's Recall@1")
    parser.add_argument("--cache", type=Path, help="folder of decoded images, where there is one")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--budget", type=float, default=270, help="seconds after which nothing new is begun")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    progress.quiet = True
    torch.manual_seed(0)
    device = torch.device("cpu" if args.quick else "cuda")
    report = Report(args, device)
    sections = {name[8:]: run for name, run in globals().items() if name.startswith("section_")}
    with tempfile.TemporaryDirectory() as home:
        args.cache = args.cache or Path(home) / "cache"
        table = images_table(args, Path(home) / "images")
        for name, run in sections.items():
            if args.only and name not in args.only:
                continue
            try:
                run(args, report, device, table)
            except Exception:
                traceback.print_exc()
                report(name, "FAILED", float("nan"), "")
            if device.type == "cuda":
                torch.cuda.empty_cache()
            report.write()
    print("\n" + "\n".join(f"{r['what']:52}|{r['value']:10.4g} {r['unit']:8}|{r['note']}" for r in report.rows))


if __name__ == "__main__":
    main()
