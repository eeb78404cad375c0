"""What the timings of training share: rows of figures, settings of this machine, random pictures."""

import argparse
import time
from typing import Any

import torch
from record import append_rows, circumstances
from torch import Tensor

from nngk.training.settings import Settings

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
