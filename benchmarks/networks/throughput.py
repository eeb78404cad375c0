"""How fast does each network train, and in how much memory? One epoch on CUB at full size.

    python benchmarks/networks/throughput.py --data DIR [--networks NAME ...] [--batch-size 64]

The images are decoded before the clock starts and lie as uint8 on the device; crops, flips and normalisation are
counted. The loss is a softmax over the training classes on the embedding, so that the figure is the network's.
On CUDA: bf16 autocast and channels_last unless --precision float32 says otherwise. Rows: results/networks.csv.
"""

import argparse
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nngk import create_network
from nngk.data import Augmentation, Images, random_batches
from nngk.experiments.paper.sources import Sources
from nngk.experiments.record import append_rows, provenance
from nngk.experiments.record.benchmarks import add_sources, benchmark_options, benchmark_parser
from nngk.networks import list_networks

WARM_UP = 5  # steps before the clock starts: memory is allocated and convolutions are chosen in them


def decoded_training_images(given: argparse.Namespace) -> tuple[Tensor, Tensor]:
    """Return uint8 (n, 3, side, side) and labels of CUB's training classes, on the device."""
    with tempfile.TemporaryDirectory() as home:
        table = Sources(given.data, given.weights, Path(home), given.quick).table("cub200", "metric").where("train")
        train = table.select(range(min(len(table), given.limit or len(table)))).compact()
        images = Images(train, 32 if given.quick else 256, given.cache, squash=True)
        pixels = torch.cat([images.batch(part).to(given.device) for part in torch.arange(len(train)).split(256)])
    return pixels, torch.from_numpy(train.labels).to(given.device)


def one_epoch(name: str, pixels: Tensor, labels: Tensor, options: argparse.Namespace) -> dict[str, Any]:
    """Warm up, train an epoch, and return how fast and in how much memory."""
    device, cuda = options.device, torch.device(options.device).type == "cuda"
    torch.manual_seed(options.seed)
    network = create_network(name, dim=options.dim, weights="random", pool="avg", layers=1).to(device)
    layout = torch.channels_last if options.precision == "bfloat16" else torch.contiguous_format
    network = network.to(memory_format=layout).train()
    if options.freeze_batchnorm:
        network.freeze_batchnorm()
    classes = torch.nn.Linear(options.dim, int(labels.max()) + 1, device=device)
    optimiser = torch.optim.AdamW([*network.parameters(), *classes.parameters()], lr=1e-4)
    spec = network.input
    augment = Augmentation(size=spec.size, mean=spec.mean, std=spec.std)
    generator = torch.Generator().manual_seed(options.seed)

    def step(indices: Tensor) -> Tensor:
        rows = indices.to(device)
        batch = augment(pixels[rows], generator).contiguous(memory_format=layout)
        with torch.autocast(
            device_type=torch.device(device).type, dtype=torch.bfloat16, enabled=layout is torch.channels_last
        ):
            embeddings = network(batch)
        loss = F.cross_entropy(classes(embeddings), labels[rows])
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        return loss.detach()

    batches = random_batches(labels.cpu(), options.batch_size, options.seed, 0, drop_last=True)
    for indices in batches[:WARM_UP]:
        step(indices)
    if cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    losses = torch.stack([step(indices) for indices in batches])
    if cuda:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    if not losses.isfinite().all():
        raise RuntimeError(f"the loss of {name} is not finite: the figures would be of a broken network")
    count = sum(len(indices) for indices in batches)
    return {
        "images": count,
        "seconds": f"{seconds:.2f}",
        "images_per_second": f"{count / seconds:.1f}",
        "peak_memory_mib": f"{_peak_memory(cuda, pixels):.0f}",
        "first_loss": f"{losses[0].item():.3f}",
        "last_loss": f"{losses[-1].item():.3f}",
    }


def _peak_memory(cuda: bool, pixels: Tensor) -> float:
    """Return MiB: on CUDA what torch held at most beyond the images, on the CPU the process at its largest so far."""
    if cuda:
        return (torch.cuda.max_memory_allocated() - pixels.numel()) / 2**20
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kilobytes / (2**20 if sys.platform == "darwin" else 2**10)


def main() -> None:
    parser = benchmark_parser(__doc__, "results/networks.csv")
    add_sources(parser)
    parser.add_argument("--networks", nargs="+", help="Names of 'nngk networks'.  [default: all for large images]")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--precision", choices=["bfloat16", "float32"], help="[default: bfloat16 on CUDA]")
    parser.add_argument("--freeze-batchnorm", action="store_true")
    parser.add_argument("--limit", type=int, help="Train with only as many images.")
    parser.add_argument("--seed", type=int, default=0)
    given = benchmark_options(parser)
    if given.quick:
        given.networks, given.batch_size, given.dim = ["small"], 8, 16
    cuda = given.device.startswith("cuda")
    given.precision = given.precision or ("bfloat16" if cuda else "float32")
    names = given.networks or [
        row["name"] for row in list_networks() if row["available"] and row["dim"] and row["input_size"] >= 200
    ]
    # float32 here means what people train with: TF32 where the GPU has it.
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    pixels, labels = decoded_training_images(given)
    for name in names:
        row = {"seed": given.seed, "network": name, "batch_size": given.batch_size, "dim": given.dim}
        row |= {"precision": given.precision, "frozen_batchnorm": given.freeze_batchnorm}
        row |= one_epoch(name, pixels, labels, given)
        print(f"{name:20} {row['images_per_second']:>8} images/s {row['peak_memory_mib']:>7} MiB", flush=True)
        append_rows(given.out, [row | provenance(given.device, given.commit)])
        if cuda:
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
