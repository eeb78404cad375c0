"""How long does one photo take from the command line, beside PyTorch's import?

    python benchmarks/promise/startup.py [--rounds 7]

A model of the default network is asked about one photo by ``nngk classify``, in turns with ``import torch`` alone, each
in a process of its own and from a warm disk. Seconds of the clock and of the processor are medians over the rounds;
the ratios are those of the medians. Rows: results/startup.csv.
"""

import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from nngk import Model, create_network
from nngk.experiments.record import append_rows, provenance
from nngk.experiments.record.benchmarks import benchmark_options, benchmark_parser

CENTRES, CLASSES = 1000, 20


def build(network_name: str, folder: Path) -> None:
    """Write a model of a network with random weights, and a photo beside it."""
    torch.manual_seed(0)
    network = create_network(network_name, weights="random")
    Model(
        network,
        centres=torch.nn.functional.normalize(torch.randn(CENTRES, network.dim)),
        labels=torch.arange(CENTRES) % CLASSES,
        theta=torch.zeros(CENTRES),
        sigma=0.3,
        class_names=[f"class {i}" for i in range(CLASSES)],
        sources=[f"{i}.jpg" for i in range(CENTRES)],
        device="cpu",
    ).save(folder / "model")
    pixels = np.random.default_rng(0).integers(0, 256, (12, 16, 3), dtype=np.uint8)
    Image.fromarray(pixels).resize((1600, 1200), Image.Resampling.BICUBIC).save(folder / "photo.jpg")


def seconds(words: list[str]) -> tuple[float, float]:
    """Return the seconds of the clock and of the processor that a process takes."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    took, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    return took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = benchmark_parser(__doc__, "results/startup.csv")
    parser.add_argument("--network", default="efficientnet-lite0")
    parser.add_argument("--rounds", type=int, default=7)
    given = benchmark_options(parser)
    rounds = 1 if given.quick else given.rounds
    with tempfile.TemporaryDirectory() as home:
        build("small" if given.quick else given.network, Path(home))
        photo = [f"{home}/model", f"{home}/photo.jpg", "--device", "cpu"]
        asked = [sys.executable, "-m", "nngk", "classify", *photo]
        alone = [sys.executable, "-c", "import torch"]
        seconds(asked), seconds(alone)  # from a warm disk
        taken = [(seconds(asked), seconds(alone)) for _ in range(rounds)]
    classify, torch_alone = ([statistics.median(kind) for kind in zip(*turns)] for turns in zip(*taken))
    row = {
        "network": "small" if given.quick else given.network,
        "rounds": rounds,
        "classify_seconds": round(classify[0], 3),
        "import_torch_seconds": round(torch_alone[0], 3),
        "ratio": round(classify[0] / torch_alone[0], 3),
        "classify_cpu_seconds": round(classify[1], 3),
        "import_torch_cpu_seconds": round(torch_alone[1], 3),
        "cpu_ratio": round(classify[1] / torch_alone[1], 3),
    }
    print(row)
    append_rows(given.out, [row | provenance("cpu", given.commit)])


if __name__ == "__main__":
    main()
