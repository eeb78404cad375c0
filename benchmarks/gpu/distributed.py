"""Do several ranks on one GPU give what one gives, and what does the code for several cost a rank that is alone?

    PYTHONPATH=src python benchmarks/gpu/distributed.py [--commit HASH] [--only differences|network|overhead]

The ranks talk by gloo, because NCCL wants a GPU for each. Differences are the largest of any value over three epochs
with refreshes, in float32 without TF32, or in float64 where that is said. A network that is shared out (FSDP2) is
compared in the same way: by two ranks over gloo, by one over NCCL, and by two over NCCL, which it may refuse. The bar:
a step of the one rank that ``torchrun --nproc-per-node 1`` starts takes at most 1.02 of a step of a plain process. It
sends nothing and wraps nothing; what DistributedDataParallel would cost it stands beside.
Rows: results/gpu_distributed.csv.
"""

import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from measure import DEVICE, QUICK, Report, report_of, wait
from PIL import Image
from torch.nn.parallel import DistributedDataParallel

from nngk import Settings
from nngk.data import ImageTable, read_images, split
from nngk.ranks import Ranks
from nngk.training import loop
from nngk.training.build import build_run
from nngk.training.distributed import joined_ranks
from nngk.training.optimiser import create_optimiser, rate_of
from nngk.training.run import Run
from nngk.training.sharded_network import in_full, sharded
from nngk.training.step_batches import step_batches
from nngk.training.validation import validate

EPOCHS = 3
VARIANTS: dict[str, dict[str, Any]] = {
    "lists, learned sigma": {"sigma": "learned"},
    "all centres": {"n_neighbours": 0},
    "lists, metric, background refresh": {"task": "metric", "background": True},
    "sharded, learned sigma": {"bank": "sharded", "sigma": "learned"},
}
NETWORK: dict[str, dict[str, Any]] = {
    "network shared out": {"shard_network": True, "sigma": "learned", "clip": 0.0},
    "network and bank shared out, float64": {"shard_network": True, "bank": "sharded", "clip": 0.0},
}
NAMES = ("loss", "gradients", "centres", "theta", "sigma", "scores", "weights")
PATIENCE = 50.0  # seconds that ranks may take for a course


def small(**changes: Any) -> Settings:
    """Return settings of a small network on small pictures, with lists that are renewed within epochs."""
    values: dict[str, Any] = {"network": "small", "weights": "random", "dim": 8 if QUICK else 64, "resize": 18}
    values |= {"crop_size": 16, "batch_size": 8 if QUICK else 60, "n_neighbours": 6 if QUICK else 50}
    values |= {"epochs": EPOCHS, "lr": 0.01, "optimiser": "sgd", "val_fraction": 0.2, "test_fraction": 0.2}
    values |= {"device": DEVICE, "amp": False, "compile": "off", "cache": "off", "threads": 1}
    return Settings(**(values | {"update_interval": "2 steps"} | changes))


def write_pictures(folder: Path) -> Path:
    """Write noisy pictures of a colour for each class."""
    rng = np.random.default_rng(0)
    for label in range(4 if QUICK else 20):
        (folder / f"{label:02d}").mkdir(parents=True)
        colour = rng.uniform(40, 215, 3)
        for number in range(8 if QUICK else 40):
            pixels = np.clip(colour + rng.normal(0, 40, (18, 18, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"{label:02d}" / f"{number}.png")
    return folder


def parts_of(table: ImageTable, s: Settings) -> Any:
    """Return the table split as training splits it."""
    return split(table, s.task, s.val_fraction, s.test_fraction, s.seed)


@contextmanager
def computing(variant: str) -> Iterator[None]:
    """Compute in the type that a variant names."""
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64 if "float64" in variant else torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def course(photos: Path, folder: Path, settings: Settings, shared: bool = False) -> dict[str, np.ndarray]:
    """Train with the ranks that this process belongs to; return what there was to see, in order.

    With ``shared`` one rank gives its network to FSDP2 as several would; its gradients cannot be clipped then.
    """
    seen: dict[str, list[Any]] = {name: [] for name in NAMES}
    table = read_images(photos, task=settings.task, seed=settings.seed)
    with joined_ranks(settings.device) as ranks:
        folder.mkdir(exist_ok=True)
        run = build_run(parts_of(table, settings), settings, folder, ranks=ranks)
        if shared:
            share_out(run)
        run.begin()
        for epoch in range(EPOCHS):
            run.trainee.train()
            for given in step_batches(run, run.index_batches(epoch)):
                seen["loss"].append(float(loop.take_step(run, *given)))
                learned = {id(p): p.grad for g in run.optimiser.param_groups for p in g["params"]}
                if run.bank.partial:
                    learned[id(run.bank.theta)] = ranks.gather(run.bank.theta.grad, len(run.bank))
                grads = [in_full(grad, ranks).flatten() for grad in learned.values() if grad is not None]
                seen["gradients"].append(torch.cat(grads).cpu().numpy())
                run.at.step += 1
                run.refresher.finish(run.at.step)  # a background refresh comes in at the same step everywhere
            run.objective.before_step(run.at.step, run.trainee)
            run.refresher.finish(run.at.step)
            seen["scores"].append(list(validate(run)[0].values()))
            bank = run.bank.whole()
            seen["centres"].append(bank.centres.cpu().numpy().copy())
            seen["theta"].append(bank.theta.detach().cpu().numpy().copy())
            seen["sigma"].append(run.objective.sigma)
        weights = [in_full(p.detach(), ranks).flatten() for p in run.network.parameters()]
        seen["weights"].append(torch.cat(weights).cpu().numpy())
    return {name: np.stack([np.asarray(value) for value in values]) for name, values in seen.items()}


def share_out(run: Run) -> None:
    """Let FSDP2 have the network of a run of one rank, which nngk itself would leave alone."""
    s, network = run.settings, run.network
    sharded(run.trainee, run.device, Ranks(via_cpu=QUICK))
    own = run.objective.parameter_groups(rate_of(s))
    run.optimiser = create_optimiser(network.backbone_parameters(), network.embedding_parameters(), own, s)


def in_ranks(count: int, variant: str, photos: Path, home: Path, nccl: bool = False) -> list[dict[str, np.ndarray]]:
    """Return what the ranks saw, each a process of its own. With ``nccl`` each believes that the GPU is its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    words = [sys.executable, __file__, "--variant", variant, "--photos", str(photos), "--home", str(home)]
    shared = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(count)}
    shared |= {"LOCAL_WORLD_SIZE": "1"} if nccl else {}
    started = [
        subprocess.Popen(words + ["--quick"] * QUICK, env=shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(count)
    ]
    until = time.monotonic() + PATIENCE
    try:
        for process in started:
            if process.wait(max(0.0, until - time.monotonic())):
                raise RuntimeError(f"A rank of {count} failed with {variant!r}; what it said is above.")
    finally:
        for process in started:
            process.kill()
    return [dict(np.load(home / f"{rank}.npz")) for rank in range(count)]


def differences(report: Report) -> None:
    """Report how far the ranks are from one process that does the same."""
    with tempfile.TemporaryDirectory() as place:
        photos = write_pictures(Path(place, "photos"))
        for variant in list(VARIANTS)[-1 if QUICK else 0 :]:
            alone = alone_course(variant, photos, Path(place))
            for count in (2,) if QUICK else (2, 3):
                compare(report, f"{variant}, rank {{}} of {count}", alone, count, variant, photos, Path(place))


def network(report: Report) -> None:
    """Report the same of ranks that share out the network; also of one, and of two that NCCL may refuse."""
    backend, through = ("gloo", "gloo") if QUICK else ("cpu:gloo,cuda:nccl", "nccl")
    with tempfile.TemporaryDirectory() as place:
        photos, home = write_pictures(Path(place, "photos")), Path(place)
        for number, variant in enumerate(NETWORK):
            alone = alone_course(variant, photos, home)
            compare(report, f"{variant}, gloo, rank {{}} of 2", alone, 2, variant, photos, home)
            dist.init_process_group(backend, init_method=f"file://{place}/meeting{number}", rank=0, world_size=1)
            with computing(variant):
                found = course(photos, home / f"one{number}", small(**NETWORK[variant]), shared=True)
            dist.destroy_process_group()
            say_how_far(report, f"{variant}, {through}, one rank", found, alone)
        if not QUICK:
            try:
                compare(report, f"{variant}, nccl, rank {{}} of 2", alone, 2, variant, photos, home, nccl=True)
            except (RuntimeError, subprocess.TimeoutExpired):
                report(f"{variant}, nccl, 2 ranks on one GPU", float("nan"), "", "refused")


def alone_course(variant: str, photos: Path, home: Path) -> dict[str, np.ndarray]:
    """Return what one plain process sees."""
    with computing(variant):
        return course(photos, Path(tempfile.mkdtemp(dir=home)), small(**(VARIANTS | NETWORK)[variant]))


def compare(
    report: Report,
    what: str,
    alone: dict[str, np.ndarray],
    count: int,
    variant: str,
    photos: Path,
    home: Path,
    nccl: bool = False,
) -> None:
    """Report how far each of some ranks is from one process."""
    folder = Path(tempfile.mkdtemp(dir=home))
    for rank, found in enumerate(in_ranks(count, variant, photos, folder, nccl)):
        say_how_far(report, what.format(rank), found, alone)


def say_how_far(report: Report, what: str, found: dict[str, np.ndarray], alone: dict[str, np.ndarray]) -> None:
    """Report the largest difference of any value of each kind."""
    for name, expected in alone.items():
        report(f"{what}, {name}", float(np.abs(found[name] - expected).max()), "abs", "from one process")


@contextmanager
def as_torchrun() -> Iterator[None]:
    """Let this process be the one rank that torchrun started."""
    told = {"WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    before = {name: os.environ.get(name) for name in told}
    os.environ.update(told)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def overhead(report: Report) -> None:
    """Time the steps of a plain process, of one rank, and of one rank that talks to itself, in turns."""
    with tempfile.TemporaryDirectory() as place:
        photos = write_pictures(Path(place, "photos"))
        s = small(task="metric", val_fraction=0.0, update_interval=1000)
        if not QUICK:
            big = {"network": "resnet50-v1", "resize": 256, "crop_size": 224, "batch_size": 128, "amp": True}
            s = replace(s, **big, freeze_batchnorm=True)
        table = read_images(photos, task=s.task, seed=s.seed)
        runs = {}
        for name in ("plain", "one rank", "one rank through DistributedDataParallel"):
            Path(place, name).mkdir()
            with as_torchrun() if name == "one rank" else nullcontext(), joined_ranks(s.device) as ranks:
                runs[name] = build_run(parts_of(table, s), s, Path(place, name), ranks=ranks)
        assert not dist.is_initialized()  # of these runs nobody has anything to say to anybody
        dist.init_process_group(
            "gloo" if QUICK else "nccl", init_method=f"file://{place}/meeting", rank=0, world_size=1
        )
        talking = runs["one rank through DistributedDataParallel"]
        talking.stepping = DistributedDataParallel(talking.trainee, static_graph=True, gradient_as_bucket_view=True)
        times: dict[str, list[float]] = {name: [] for name in runs}
        for turn in range(2 if QUICK else 9):
            for name, run in list(runs.items())[:: 1 if turn % 2 else -1]:
                milliseconds = timed_steps(run, 2 if QUICK else 10)
                if turn:  # the first warms up
                    times[name].append(milliseconds)
        dist.destroy_process_group()
    middle = {name: statistics.median(values) for name, values in times.items()}
    for name, value in middle.items():
        report(f"step, {s.network}, batch {s.batch_size}, {name}", value, "ms")
        if name != "plain":
            bar = "bar: at most 1.02" if name == "one rank" else "nngk leaves it out where there is one"
            report(f"step, {name} / plain", value / middle["plain"], "x", bar)


def timed_steps(run: Run, count: int) -> float:
    """Return the milliseconds of a step, over some on one batch, whose loading is not timed."""
    images, labels, indices = next(step_batches(run, run.index_batches(0)))
    run.trainee.train()
    loop.take_step(run, images, labels, indices)
    wait()
    begun = time.perf_counter()
    for _ in range(count):
        run.at.step += 1
        loop.take_step(run, images, labels, indices)
    wait()
    return 1e3 * (time.perf_counter() - begun) / count


def measure(report: Report) -> None:
    """Measure what ranks differ by, also with the network shared out, and what one pays."""
    for part in (differences, network, overhead):
        if report.given.only in (None, part.__name__):
            part(report)


def options(parser: argparse.ArgumentParser) -> None:
    """Let one part be measured alone."""
    parser.add_argument("--only", choices=("differences", "network", "overhead"), help="One part alone.")


def work() -> bool:
    """Be one rank, if that is what this process was started for."""
    if "--variant" not in sys.argv:
        return False
    parser = argparse.ArgumentParser()
    for name in ("--variant", "--photos", "--home"):
        parser.add_argument(name)
    given, _ = parser.parse_known_args()
    home = Path(given.home)
    with computing(given.variant):
        found = course(Path(given.photos), home / "run", small(**(VARIANTS | NETWORK)[given.variant]))
    np.savez(home / f"{os.environ['RANK']}.npz", **found)
    return True


if __name__ == "__main__" and not work():
    report_of("distributed", __doc__, "results/gpu_distributed.csv", measure, options)
