"""Pictures in tar and Parquet shards are those of a folder, and what is wrong with a shard is said in a sentence."""

import json
import os

import numpy as np
import pytest
import torch

from nngk.data import Images, read_images
from nngk.data.packs.keys import picture_keys
from nngk.errors import InputError
from shapes import write_shapes
from shards import samples_of, write_tar


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return write_shapes(tmp_path_factory.mktemp("shapes"), ("cross", "disc"), count=3)


def require_same_pictures(table, photos, cache=None):
    whole = read_images(photos)
    assert table.class_names == whole.class_names and table.labels.tolist() == whole.labels.tolist()
    found, wanted = Images(table, 16, cache, squash=True), Images(whole, 16, squash=True)
    assert torch.equal(found.batch(range(len(whole))), wanted.batch(range(len(whole))))


def test_tar_shards_are_a_table(photos, tmp_path):
    files = list(samples_of(photos).items())
    write_tar(tmp_path / "train-000.tar", dict(files[:8]))
    write_tar(tmp_path / "test-000.tar", dict(files[8:]))
    (tmp_path / "README.md").write_text("about them")
    table = read_images(tmp_path)
    assert table.splits == ["test"] * 2 + ["train"] * 4 and len(set(picture_keys(table))) == 6
    order = np.array([2, 3, 4, 5, 0, 1])
    require_same_pictures(table.select(order), photos, tmp_path / "cache")
    before = picture_keys(table)
    os.utime(tmp_path / "test-000.tar", (1, 1))
    assert [a == b for a, b in zip(picture_keys(table), before)] == [False] * 2 + [True] * 4


def test_classes_are_said_in_several_ways(photos, tmp_path):
    picture = next(photos.rglob("*.png")).read_bytes()
    said = {"a.jpg": picture, "a.json": json.dumps({"label": 7}).encode(), "owls/b.png": picture, "b.txt": b"no class"}
    table = read_images(write_tar(tmp_path / "x.tar", said))
    assert table.class_names == ["7", "owls"] and table.splits is None
    assert Images(table, 8).batch([0, 1]) is not None


def write_parquet(path, photos, **changes):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    files = sorted(photos.rglob("*.png"))
    columns = {
        "image": [{"bytes": file.read_bytes(), "path": file.name} for file in files],
        "label": [["cross", "disc"].index(file.parent.name) for file in files],
    }
    features = {"label": {"names": ["cross", "disc"], "_type": "ClassLabel"}, "image": {"_type": "Image"}}
    about = {"huggingface": json.dumps({"info": {"features": features}})}
    table = arrow.table({name: value for name, value in (columns | changes).items() if value is not None})
    parquet.write_table(table.replace_schema_metadata(about), path, row_group_size=4)
    return path


def test_parquet_shards_are_a_table(photos, tmp_path):
    require_same_pictures(read_images(write_parquet(tmp_path / "x.parquet", photos)), photos, tmp_path / "cache")
    texts = read_images(write_parquet(tmp_path / "y.parquet", photos, label=None, labels=list("ababab")))
    assert texts.class_names == ["a", "b"]


def test_what_datasets_writes_is_read(photos, tmp_path):
    datasets = pytest.importorskip("datasets")
    files = sorted(photos.rglob("*.png"))
    rows = {"image": [{"bytes": file.read_bytes()} for file in files], "label": [file.parent.name for file in files]}
    whole = datasets.Dataset.from_dict(rows).cast_column("image", datasets.Image()).class_encode_column("label")
    (tmp_path / "data").mkdir()
    whole.to_parquet(tmp_path / "data" / "train-00000-of-00001.parquet")
    table = read_images(tmp_path / "data")
    assert set(table.splits) == {"train"}
    require_same_pictures(table, photos)


def test_what_is_wrong_is_said(photos, tmp_path):
    picture = next(photos.rglob("*.png")).read_bytes()
    with pytest.raises(InputError, match=r"holds a without a class: expected a\.cls"):
        read_images(write_tar(tmp_path / "a.tar", {"a.png": picture}))
    with pytest.raises(InputError, match="should say a class"):
        read_images(write_tar(tmp_path / "b.tar", {"a.png": picture, "a.cls": b"\xff\xfe\x00"}))
    with pytest.raises(InputError, match="holds no pictures"):
        read_images(write_tar(tmp_path / "c.tar", {"a.cls": b"x"}))
    (tmp_path / "d.tar").write_bytes(b"not a tar file" * 100)
    with pytest.raises(InputError, match="uncompressed tar file"):
        read_images(tmp_path / "d.tar")
    whole = write_tar(tmp_path / "e.tar", {"x/a.png": picture, "y/b.png": picture})
    table = read_images(whole)
    whole.write_bytes(whole.read_bytes()[:600])
    with pytest.raises(InputError, match=r"e\.tar/.* cannot be read"):
        Images(table, 8).batch([1])
    with pytest.raises(InputError, match="There is no image"):
        Images(table.__class__([whole / "c.png"], np.array([0]), ["x"]), 8).batch([0])


def test_what_is_wrong_with_parquet_is_said(photos, tmp_path):
    with pytest.raises(InputError, match="has no column 'label': expected 'image' and 'label'; it has image"):
        read_images(write_parquet(tmp_path / "a.parquet", photos, label=None))
    with pytest.raises(InputError, match="says 5 in the column label of row 2, which is no class"):
        read_images(write_parquet(tmp_path / "b.parquet", photos, label=[0, 1, 5, 0, 1, 0]))
    (tmp_path / "c.parquet").write_bytes(b"nothing")
    with pytest.raises(InputError, match="cannot be read as a Parquet file"):
        read_images(tmp_path / "c.parquet")
    file = write_parquet(tmp_path / "d.parquet", photos, image=[None] * 5 + [{"bytes": b"no picture", "path": ""}])
    for row in (0, 5):
        with pytest.raises(InputError, match="cannot be read"):
            Images(read_images(file), 8).batch([row])
