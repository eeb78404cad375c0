"""A training step with the kernel loss beside one with softmax, and a refresh beside both."""

import argparse
import statistics
import time
from typing import Any

import torch
from gpu_runs import Noise, Report, settings, wait

from nngk.bank.centres import CentreBank
from nngk.data import Augmentation, ImageTable, batches, evaluation, random_batches
from nngk.losses import create_loss
from nngk.losses.gaussian import GaussianKernelLoss
from nngk.networks import create_network
from nngk.networks.embed import embed
from nngk.search import Exact
from nngk.training.optimiser import create_optimiser


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
