"""How much of Recall@1 is there before any training? Pooling and normalisation on birds that no network has seen.

    python benchmarks/pooling.py --data DIR --weights DIR [--part test] [--device cuda] [--out results/pooling.csv]

DIR of --data holds CUB-200-2011, or is a pack of it for the task 'metric'; DIR of --weights holds the two files named
in FILES. The training classes of the zero-shot split say which pooling to choose; its test classes (``--part test``)
only what a paper's figures start from. Every image goes through a network once; all poolings are taken from that one
feature map.
"""

import argparse
import time
from pathlib import Path

import torch
from record import append_rows, circumstances
from torch import Tensor

from nngk.data import Images, ImageTable, evaluation, read_images
from nngk.errors import InputError
from nngk.metrics import evaluate
from nngk.networks import EmbeddingNetwork, Head, create_network

FILES = {"googlenet-bvlc": "googlenet_bvlc_fp16.safetensors", "resnet50-v1": "resnet50_v1.safetensors"}
POOLS = ("avg", "max", "avg+max", "gem")
IMAGES = {"train": 5864, "test": 5924}  # of classes 1 to 100 and 101 to 200


def half_of_the_classes(data: Path, part: str, limit: int | None) -> ImageTable:
    """CUB's images of one part of the zero-shot split; `limit` keeps whole classes until that many are reached."""
    is_pack = (data / "table.json").is_file()
    table = read_images(data, task="metric") if is_pack else read_images("cub200", data_dir=data, task="metric")
    if table.splits is None:
        raise InputError(f"{data} has no splits; pack CUB with the task 'metric'.")
    half = table.where(part).compact()
    if len(half) != IMAGES[part]:
        raise InputError(
            f"The {part} classes of CUB have {IMAGES[part]} images; {data} gives {len(half)}. Is its task 'metric'?"
        )
    if limit is None:
        return half
    totals = half.counts().cumsum()
    classes = int((totals < limit).sum()) + 1
    return half.select(half.labels < classes).compact()


@torch.inference_mode()
def pooled_features(
    network: EmbeddingNetwork, images: Images, device: str, batch_size: int
) -> tuple[dict[str, Tensor], float]:
    """{pool: (n, C)} from one pass over the images, and the seconds it took."""
    heads = {pool: Head(network.dim, pool=pool).to(device).eval() for pool in POOLS}
    transform = evaluation(network.input.size, network.input.mean, network.input.std)
    parts: dict[str, list[Tensor]] = {pool: [] for pool in POOLS}
    start = time.perf_counter()
    for indices in torch.arange(len(images)).split(batch_size):
        features = network.backbone(transform(images.batch(indices).to(device)))
        for pool, head in heads.items():
            parts[pool].append(head.pool(features))
        done = int(indices[-1]) + 1
        print(f"\r{done}/{len(images)} images, {done / (time.perf_counter() - start):.0f}/s", end="", flush=True)
    print()
    return {pool: torch.cat(part) for pool, part in parts.items()}, time.perf_counter() - start


@torch.inference_mode()
def measure(name: str, weights: Path, images: Images, labels: Tensor, device: str, batch_size: int) -> list[dict]:
    """A row for each pooling, plain and normalised."""
    network = create_network(name, weights=weights).to(device).eval()
    pooled, seconds = pooled_features(network, images, device, batch_size)
    rows = []
    for pool, features in pooled.items():
        for normalised in (False, True):
            head = Head(network.dim, pool=pool, layer_norm=normalised, normalise=normalised).eval()
            scores = evaluate(head.project(features), labels, nmi_seeds=0)
            setting = "LayerNorm + L2" if normalised else "none"
            row = {"network": name, "weights": weights.name, "dim": network.dim, "pool": pool, "normalisation": setting}
            row |= {"images": len(labels), "classes": len(labels.unique())}
            row |= {metric: f"{value:.4f}" for metric, value in scores.items()}
            rows.append(row | {"images_per_second": f"{len(labels) / seconds:.1f}"})
            print(
                f"{name:15} {pool:8} {setting:15} R@1 {scores['recall@1']:.4f}  MAP@R {scores['map@r']:.4f}", flush=True
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="a pack of CUB, or the folder that holds CUB_200_2011")
    parser.add_argument("--weights", type=Path, required=True, help="the folder of the weights files")
    parser.add_argument("--out", type=Path, default=Path("results/pooling.csv"))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--networks", nargs="+", default=list(FILES), choices=list(FILES))
    parser.add_argument("--part", choices=list(IMAGES), default="train")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--limit", type=int, help="only the first classes, until that many images: a trial")
    parser.add_argument("--commit", help="the commit, where git is not there to ask")
    arguments = parser.parse_args()

    # Nothing here is drawn at random; the seed is recorded because every row of results has one.
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    table = half_of_the_classes(arguments.data, arguments.part, arguments.limit)
    images = Images(table, size=256)
    labels = torch.from_numpy(table.labels).to(arguments.device)
    run = circumstances(arguments.device, arguments.commit) | {"seed": 0, "part": arguments.part}
    for name in arguments.networks:
        weights = arguments.weights / FILES[name]
        rows = measure(name, weights, images, labels, arguments.device, arguments.batch_size)
        append_rows(arguments.out, [run | row for row in rows])


if __name__ == "__main__":
    main()
