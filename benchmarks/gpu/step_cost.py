"""What does a training step with the kernel loss cost beside one with softmax, and how fast is a refresh?

    PYTHONPATH=src python benchmarks/gpu/step_cost.py [--commit HASH]

The bars: a step with the kernel loss takes at most 1.05 of one with softmax; a refresh runs at 3 times the images/s of
training. Rows: results/gpu_training.csv, with the section 'step'.
"""

import statistics
import time
from typing import Any

import torch
from measure import DEVICE, QUICK, Report, report_of, wait
from torch import Tensor

from nngk import CentreBank, GaussianKernelLoss, Settings, create_network
from nngk.data import Augmentation, batches, centre_crop, random_batches
from nngk.losses import create_loss
from nngk.networks.embed import embed
from nngk.search import Exact
from nngk.training.optimiser import create_optimiser


class Noise:
    """Random pictures: what is in them does not change how long they take."""

    def __init__(self, count: int, size: int) -> None:
        self.pixels = torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8, device=DEVICE)
        self.device = self.pixels.device

    def __len__(self) -> int:
        return len(self.pixels)

    def batch(self, indices: Any) -> Tensor:
        return self.pixels[torch.as_tensor(indices).to(self.device)]


class Stepper:
    """A network and a loss on random pictures, trained as the loop trains."""

    def __init__(self, kind: str, pictures: Noise) -> None:
        m, classes, batch = (200, 10, 8) if QUICK else (100_000, 1000, 128)
        self.s = Settings(
            lr=3e-5, network="small" if QUICK else "resnet50-v1", dim=8 if QUICK else 64, batch_size=batch
        )
        self.pictures, self.batch = pictures, batch
        device = self.device = torch.device(DEVICE)
        network = create_network(self.s.network, dim=self.s.dim, weights="random", pool="avg", layers=1)
        self.network = network.to(device).to(memory_format=torch.channels_last).train()
        size = 16 if QUICK else network.input.size
        self.augment = Augmentation(size=size, mean=network.input.mean, std=network.input.std)
        self.plain = centre_crop(size, network.input.mean, network.input.std)
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
        """Return milliseconds per step of some in a row, with the augmentation of their batches."""
        order = random_batches(self.labels.cpu() * 0, self.batch, 0, 0)[:count]
        given = [chosen % len(self.pictures) for chosen in order]
        coming = batches(self.pictures, self.labels.cpu(), given, self.augment, device=self.device)
        wait()
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
        wait()
        return 1e3 * (time.perf_counter() - begin) / len(order)


def steps(report: Report) -> None:
    """Time both losses in turns, and a refresh."""
    count, rounds = (2, 1) if QUICK else (12, 7)
    pictures = Noise(16 if QUICK else 2048, 18 if QUICK else 256)
    steppers = {kind: Stepper(kind, pictures) for kind in ("softmax", "kernel")}
    times: dict[str, list[float]] = {kind: [] for kind in steppers}
    for stepper in steppers.values():
        stepper.steps(count)  # warm-up
    for _ in range(rounds):  # in turns, so that a drifting clock meets both
        for kind, stepper in steppers.items():
            times[kind].append(stepper.steps(count))
    middle = {kind: statistics.median(values) for kind, values in times.items()}
    for kind, value in middle.items():
        report(f"ResNet50, {steppers[kind].batch} images, {kind} loss", value, "ms")
    report("kernel / softmax", middle["kernel"] / middle["softmax"], "x", "bar: at most 1.05")
    stepper = steppers["kernel"]
    training = 1e3 * stepper.batch / middle["kernel"]
    report("ResNet50 training, 128 at a time", training, "images/s")
    for batch in (8,) if QUICK else (256, 512):
        given = (stepper.network, pictures, stepper.plain)
        for timed in (False, True):
            wait()
            begin = time.perf_counter()
            for _ in range(4 if timed and not QUICK else 1):
                embed(*given, batch_size=batch, device=DEVICE, amp=True)
            wait()
        speed = (1 if QUICK else 4) * len(pictures) / (time.perf_counter() - begin)
        note = f"{speed / training:.2f}x training; bar: at least 3"
        report(f"ResNet50 refresh, {batch} at a time", speed, "images/s", note)


if __name__ == "__main__":
    report_of("step", __doc__, "results/gpu_training.csv", steps)
