"""How much of Recall@1 is there before any training? Pooling and normalisation on birds that no network has seen.

    python benchmarks/recipe/pooling.py --data DIR --weights DIR [--part test]

The training classes of the zero-shot split say which pooling to choose; its test classes (``--part test``) say only
what a paper's figures start from. Every image goes through a network once; all poolings are taken from that one feature
map. Rows: results/pooling.csv.
"""

import tempfile
import time
from pathlib import Path

import torch
from torch import Tensor

from nngk import InputError, create_network, evaluate
from nngk.data import Images, ImageTable, centre_crop
from nngk.experiments.paper.sources import Sources
from nngk.experiments.record import append_rows, provenance
from nngk.experiments.record.benchmarks import add_sources, benchmark_options, benchmark_parser
from nngk.networks import EmbeddingNetwork, Head

POOLS = ("avg", "max", "avg+max", "gem")
IMAGES = {"train": 5864, "test": 5924}  # of classes 1 to 100 and 101 to 200


def half_of_the_classes(sources: Sources, part: str, limit: int | None) -> ImageTable:
    """Return CUB's images of one part of the zero-shot split.

    Args:
        limit: keep only the first classes, until they have as many images.
    """
    half = sources.table("cub200", "metric").where(part).compact()
    if len(half) != IMAGES[part] and not sources.quick:
        raise InputError(f"The {part} classes of CUB have {IMAGES[part]} images; --data gives {len(half)}.")
    if limit is None:
        return half
    totals = half.counts().cumsum()
    classes = int((totals < limit).sum()) + 1
    return half.select(half.labels < classes).compact()


@torch.inference_mode()
def pooled_features(
    network: EmbeddingNetwork, images: Images, device: str, batch_size: int
) -> tuple[dict[str, Tensor], float]:
    """Return {pool: (n, C)} from one pass over the images, and the seconds it took."""
    heads = {pool: Head(network.dim, pool=pool).to(device).eval() for pool in POOLS}
    transform = centre_crop(network.input.size, network.input.mean, network.input.std)
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
def measure(name: str, weights: str, images: Images, labels: Tensor, device: str, batch_size: int) -> list[dict]:
    """Return one row per pooling, plain and normalised."""
    network = create_network(name, weights=weights, dim=None, pool="avg", layers=1, layer_norm=False).to(device).eval()
    pooled, seconds = pooled_features(network, images, device, batch_size)
    rows = []
    for pool, features in pooled.items():
        for normalised in (False, True):
            head = Head(network.dim, pool=pool, layer_norm=normalised, normalise=normalised).eval()
            scores = evaluate(head.project(features), labels, nmi_seeds=0)
            setting = "LayerNorm + L2" if normalised else "none"
            row = {
                "network": name,
                "weights": Path(weights).name,
                "dim": network.dim,
                "pool": pool,
                "normalisation": setting,
            }
            row |= {"images": len(labels), "classes": len(labels.unique())}
            row |= {metric: f"{value:.4f}" for metric, value in scores.items()}
            rows.append(row | {"images_per_second": f"{len(labels) / seconds:.1f}"})
            print(
                f"{name:15} {pool:8} {setting:15} R@1 {scores['recall@1']:.4f}  MAP@R {scores['map@r']:.4f}", flush=True
            )
    return rows


def main() -> None:
    parser = benchmark_parser(__doc__, "results/pooling.csv")
    add_sources(parser)
    parser.add_argument("--networks", nargs="+", default=["googlenet-bvlc", "resnet50-v1"])
    parser.add_argument("--part", choices=list(IMAGES), default="train")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--limit", type=int, help="Read only the first classes, until they have as many images.")
    given = benchmark_options(parser)
    # Nothing here is drawn at random; the seed is recorded because every row of results has one.
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    with tempfile.TemporaryDirectory() as home:
        sources = Sources(given.data, given.weights, Path(home), given.quick)
        table = half_of_the_classes(sources, given.part, given.limit)
        images = Images(table, 32 if given.quick else 256, given.cache, squash=True)
        labels = torch.from_numpy(table.labels).to(given.device)
        for wanted in given.networks[: 1 if given.quick else None]:
            name, weights = sources.network(wanted)
            rows = measure(name, weights, images, labels, given.device, given.batch_size)
            origin = {"seed": 0, "part": given.part} | provenance(given.device, given.commit)
            append_rows(given.out, [row | origin for row in rows])


if __name__ == "__main__":
    main()
