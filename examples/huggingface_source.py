"""A dataset of Hugging Face ``datasets`` as training images: columns 'image' and 'label', read when they are needed."""

import datasets
import numpy as np
import torch
from PIL import Image
from torch import Tensor

from nngk import CentreBank, create_network
from nngk.data import centre_crop, fitted_pictures
from nngk.networks.embed import embed


class HuggingFaceImages:
    """The images of a dataset as a source of batches, for ``nngk.networks.embed`` and for loops of your own."""

    def __init__(self, dataset: datasets.Dataset, size: int, column: str = "image") -> None:
        self.dataset, self.size, self.column = dataset, size, column

    def __len__(self) -> int:
        return len(self.dataset)

    def batch(self, indices):
        """Return the images at ``indices`` with shorter sides of ``size``."""
        return fitted_pictures([self.dataset[int(i)][self.column] for i in indices], self.size)


def made_up_dataset(count: int = 24) -> datasets.Dataset:
    """Return noisy pictures of three colours, as ``datasets.load_dataset`` would return them."""
    rng = np.random.default_rng(0)
    colours = np.array([[200, 40, 40], [40, 170, 60], [40, 70, 200]])
    labels = [i % 3 for i in range(count)]
    pictures = [
        Image.fromarray(np.clip(colours[c] + rng.normal(0, 12, (40, 32, 3)), 0, 255).astype(np.uint8)) for c in labels
    ]
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["red", "green", "blue"])}
    )
    return datasets.Dataset.from_dict({"image": pictures, "label": labels}, features=features)


def main() -> tuple[Tensor, Tensor]:
    dataset = made_up_dataset()
    network = create_network("small", dim=8, weights="random").eval()
    spec = network.input
    labels = torch.tensor(dataset["label"][:])
    centres = embed(network, HuggingFaceImages(dataset, spec.resize), centre_crop(spec.size, spec.mean, spec.std))
    bank = CentreBank(labels, dim=8, n_neighbours=3)
    bank.renew(centres)  # from here on it is a loop like examples/plain_loop.py
    return labels, labels[bank.neighbours[:, 0]]


if __name__ == "__main__":
    labels, nearest = main()
    print(f"{int((labels == nearest).sum())} of {len(labels)} images lie next to one of their class.")
