"""``nngk bench``: measurements on one's own machine."""

import json
from pathlib import Path
from typing import Any

import click

from nngk.cli.options import folder_or_file, json_option
from nngk.errors import InputError


@click.group("bench")
def bench_command() -> None:
    """Measure on this machine, side by side in one run."""


@bench_command.command("search", short_help="Compare the engines for neighbour search.")
@click.option(
    "--n", metavar="N", type=click.IntRange(2), default=50_000, show_default=True, help="Generate this many points."
)
@click.option(
    "--dim", metavar="N", type=click.IntRange(1), default=512, show_default=True, help="Give them this many dimensions."
)
@click.option(
    "--k", "ks", metavar="N,N,…", default="10,100", show_default=True, help="Find these numbers of neighbours."
)
@click.option(
    "--peers",
    metavar="NAME,NAME,…",
    default="exact,fanng,hnswlib,faiss-flat,faiss-hnsw,pynndescent",
    show_default=True,
    help="Compare these engines, separated by commas.",
)
@click.option(
    "--features",
    metavar="FILE",
    type=folder_or_file,
    help="Read the points from a .npy file instead of generating them.",
)
@click.option(
    "--threads",
    metavar="N",
    type=click.IntRange(1),
    help="Let every engine use this many threads.  [default: one per core]",
)
@click.option("--seed", metavar="N", default=0, show_default=True, help="Generate the points from this seed.")
@click.option("--out", metavar="FOLDER", type=folder_or_file, help="Write search.csv and the plot to this folder.")
@json_option
def search_command(
    n: int,
    dim: int,
    ks: str,
    peers: str,
    features: Path | None,
    threads: int | None,
    seed: int,
    out: Path | None,
    as_json: bool,
) -> None:
    """Measure every engine's recall against its queries per second, its build time and memory, and the time that the
    neighbour lists of all points take."""
    try:
        sizes = [int(part) for part in ks.split(",")]
    except ValueError:
        raise InputError(f"--k expects whole numbers separated by commas, such as 10,100; got '{ks}'.") from None
    from nngk.experiments.bench.search import bench_search
    from nngk.progress import say

    rows = bench_search(
        n, dim, sizes, [p.strip() for p in peers.split(",")], threads, out, seed=seed, x=_vectors(features), say=say
    )
    if as_json:
        click.echo(json.dumps(rows))


def _vectors(path: Path | None) -> Any:
    if path is None:
        return None
    import numpy as np
    import torch

    try:
        return torch.as_tensor(np.load(path, allow_pickle=False)).float()
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{path} cannot be read as a .npy file of numbers: {error}.") from None
