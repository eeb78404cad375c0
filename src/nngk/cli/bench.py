"""``nngk bench``: measurements on your own machine."""

import json
from pathlib import Path
from typing import Any

import click

from nngk.cli.options import json_option


@click.group("bench")
def bench_command() -> None:
    """Measure on this machine, side by side in one run."""


@bench_command.command("search")
@click.option("--n", type=click.IntRange(2), default=50_000, show_default=True, help="Points.")
@click.option("--dim", type=click.IntRange(1), default=512, show_default=True, help="Their dimensions.")
@click.option("--k", "ks", default="10,100", show_default=True, help="Neighbours, with commas between.")
@click.option("--peers", default="exact,fanng,hnswlib,faiss-flat,faiss-hnsw,pynndescent", show_default=True)
@click.option("--features", type=click.Path(path_type=Path), help="A .npy file of vectors in place of made ones.")
@click.option("--threads", type=click.IntRange(1), help="For every engine.  [default: as many as there are cores]")
@click.option("--seed", default=0, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), help="Folder for search.csv and the plot.")
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
    """Neighbour search: recall against queries a second, build time and memory of every engine, and the time of all
    points' neighbour lists."""
    from nngk.errors import InputError

    try:
        sizes = [int(part) for part in ks.split(",")]
    except ValueError:
        raise InputError(f"--k expects whole numbers with commas between, such as 10,100; got '{ks}'.") from None
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

    from nngk.errors import InputError

    try:
        return torch.as_tensor(np.load(path, allow_pickle=False)).float()
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{path} is not a .npy file of numbers: {error}.") from None
