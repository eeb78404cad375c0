"""Features of a frozen network for the benchmarks of this folder, computed once."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from nngk import create_network
from nngk.data import Images, centre_crop, read_images
from nngk.networks.embed import embed


def frozen_features(dataset: str, data: Path | None, folder: Path, parts: tuple[str, ...]) -> tuple[Tensor, Tensor]:
    """Return features (n, channels) and labels (n,) of some parts of a dataset.

    They are EfficientNet-Lite0's, one crop per image, as 'nngk train' caches them, and kept in ``folder``/DATASET.npz
    in half precision ('x', 'y', 'split').
    """
    path = folder / f"{dataset}.npz"
    if not path.exists():
        table = read_images(dataset, data_dir=data, task="classify")
        network = create_network().eval()
        spec, pooled = network.input, nn.Sequential(network.backbone, network.head.pool)
        rows = embed(pooled, Images(table, spec.resize), centre_crop(spec.size, spec.mean, spec.std))
        folder.mkdir(parents=True, exist_ok=True)
        np.savez(path, x=rows.numpy().astype(np.float16), y=table.labels, split=np.array(table.splits))
    with np.load(path, allow_pickle=False) as kept:
        chosen = np.isin(kept["split"], parts)
        x = torch.from_numpy(kept["x"][chosen].astype(np.float32))
        return x, torch.from_numpy(kept["y"][chosen]).unique(return_inverse=True)[1]


def generated_features(seed: int = 0, classes: int = 8, each: int = 12) -> tuple[Tensor, Tensor]:
    """Return features and labels of made-up classes, for a quick run."""
    luck = torch.Generator().manual_seed(seed)
    labels = torch.arange(classes).repeat_interleave(each)
    return 1.2 * torch.randn(classes, 24, generator=luck)[labels] + torch.randn(len(labels), 24, generator=luck), labels
