"""What is unknown through the service is what is unknown to the library, on features of the default network."""

import io
import os
from pathlib import Path

import pytest
import torch
from PIL import Image

from leaves import leaf
from nngk import Model, create_network
from nngk.data import read_images
from nngk.metrics import auroc
from serving import serving

pytestmark = pytest.mark.slow
EACH, ASKED = 15, 5  # images of a class in the model, and asked about


def leaves():
    """Return images of three known kinds, and of one that is unknown."""
    kinds = [[leaf(kind, number) for number in range(EACH + ASKED)] for kind in ("clover", "oak", "willow")]
    return kinds, [leaf("ginkgo", number) for number in range(2 * ASKED)]


def flowers():
    """Return photos of six known flowers, and of others."""
    folder = os.environ.get("NNGK_DATA")
    if not folder or not Path(folder, "flowers-102").is_dir():
        pytest.skip("set NNGK_DATA to the folder that holds flowers-102")
    table = read_images("flowers102", data_dir=Path(folder), task="classify")
    kinds: dict[int, list[Path]] = {}
    for path, label in zip(table.paths, table.labels.tolist()):
        kinds.setdefault(label, []).append(Path(path))
    known = [paths[: EACH + ASKED] for paths in list(kinds.values())[:6]]
    return known, [paths[0] for paths in list(kinds.values())[6 : 6 + 2 * ASKED]]


def build(kinds):
    """Return a model whose centres are the network's own features of the images, and which knows what is unknown."""
    network, none = create_network(dim=None), torch.empty(0)
    shared = {"sigma": 0.5, "device": "cpu"}
    empty = {"labels": none.long(), "theta": none, "class_names": [], "sources": []}
    blank = Model(network, centres=torch.empty(0, network.dim), **empty, **shared)
    labels = torch.arange(len(kinds)).repeat_interleave(EACH)
    seen = blank.describe([image for images in kinds for image in images[:EACH]])
    model = Model(
        network,
        centres=seen.embeddings,
        labels=labels,
        theta=torch.zeros(len(labels)),
        class_names=[f"kind {i}" for i in range(len(kinds))],
        sources=[f"{i}.jpg" for i in range(len(labels))],
        **shared,
    )
    model.learn_unknown(seen.features)
    return model


def encoded(image):
    if isinstance(image, Path):
        return image.read_bytes()
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


@pytest.mark.parametrize("source", [leaves, pytest.param(flowers, marks=pytest.mark.data)])
def test_unknown_through_the_service_is_that_of_the_library(source, tmp_path):
    kinds, strange = source()
    asked = [image for images in kinds for image in images[EACH:]] + strange
    is_strange = torch.tensor([False] * (len(asked) - len(strange)) + [True] * len(strange))
    build(kinds).save(tmp_path / "model")
    model = Model.load(tmp_path / "model", "cpu")
    ours = model.classify([Image.open(io.BytesIO(encoded(image))) for image in asked])
    with serving(tmp_path / "model") as server, server.client() as client:
        theirs = [client.post("/classify", files={"image": encoded(image)}).json() for image in asked]
    assert [each["label"] for each in theirs] == [each.label for each in ours]
    assert [each["is_unknown"] for each in theirs] == [each.is_unknown for each in ours]
    scores = [torch.tensor([each["unknown"] for each in theirs]), torch.tensor([each.unknown for each in ours])]
    torch.testing.assert_close(*scores, atol=1e-3, rtol=1e-3)
    over, inside = (auroc(values[~is_strange], values[is_strange]) for values in scores)
    assert over == pytest.approx(inside, abs=1e-3) and inside > 0.8
