"""One door for every source of images."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from nngk.data.datasets.by_name import DATASETS, read_named, recognise
from nngk.data.datasets.official import read_official
from nngk.data.folder import read_folder
from nngk.data.images import Images
from nngk.data.packs.layout import open_pack, pack_table, was_pack
from nngk.data.rows import read_csv, read_frame
from nngk.data.shards.shard_files import is_shard, read_shards, shards_in
from nngk.data.splits import require_task
from nngk.data.table import ImageTable, require_classes
from nngk.errors import InputError
from nngk.files import readable


def read_images(
    source: Any,
    *,
    data_dir: str | Path | None = None,
    task: str = "classify",
    seed: int = 0,
    allow_missing: bool = False,
    crop_boxes: bool | None = None,
) -> ImageTable:
    """Return the table of a folder, a CSV file, a data frame, a pack, tar or Parquet shards, or a dataset by name.

    A folder has one sub-folder per class, or train/, val/ and test/ folders of those; or it holds shards. `task` and
    `seed` choose the splits of a named dataset; `crop_boxes` says whether images are cropped to their boxes; None does
    as the paper does.

    >>> import tempfile
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as home:
    ...     for name in ("cat", "dog"):
    ...         Path(home, name).mkdir()
    ...         Image.new("RGB", (5, 4)).save(f"{home}/{name}/1.png")
    ...     read_images(home).class_names
    ['cat', 'dog']
    """
    require_task(task)
    base = None if data_dir is None else Path(data_dir)
    with readable():
        if hasattr(source, "columns"):
            table = read_frame(source, data_dir=base, allow_missing=allow_missing)
            return _finish(table, "The data frame", crop_boxes)
        if not isinstance(source, (str, Path)):
            raise InputError(
                f"Cannot read images from {type(source).__name__}: give a folder, a CSV file, a data frame or a "
                "dataset's name."
            )
        # A folder that happens to bear a dataset's name is the folder, unless a data folder was named too.
        how: dict[str, Any] = {"task": task, "seed": seed, "allow_missing": allow_missing, "crop_boxes": crop_boxes}
        if source in DATASETS and (base is not None or not Path(source).exists()):
            return read_named(str(source), base, **how)
        path = Path(source)
        dataset = recognise(path)
        if dataset is not None:
            return read_official(dataset, path, **how)
        return _finish(_read_path(path, base, allow_missing), str(path), crop_boxes)


def read_pack(folder: str | Path) -> tuple[Images, ImageTable]:
    """Return the images of a pack, ready for `.batch()`, and their table."""
    table, opened = pack_table(Path(folder)), open_pack(Path(folder))
    return Images(table, opened.size, squash=opened.squash), table


def _read_path(path: Path, data_dir: Path | None, allow_missing: bool) -> ImageTable:
    if path.is_dir():
        if was_pack(path):
            return pack_table(path)
        shards = shards_in(path)
        return read_shards(shards, path.resolve().name) if shards else read_folder(path)
    if not path.is_file():
        raise InputError(
            f"There is no folder or file {path}: check the path. The datasets known by name are {', '.join(DATASETS)}."
        )
    if is_shard(path):
        return read_shards([path], path.stem)
    if path.suffix.lower() not in (".csv", ".tsv", ".txt"):
        raise InputError(f"{path} is neither a folder nor a CSV, tar or Parquet file: give one of these.")
    return read_csv(path, data_dir=data_dir, allow_missing=allow_missing)


def _finish(table: ImageTable, source: str, crop_boxes: bool | None) -> ImageTable:
    if crop_boxes is False and table.boxes is not None:
        table = replace(table, boxes=None)
    return require_classes(table, source)
