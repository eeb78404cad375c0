from pathlib import Path

import numpy as np
import pytest

from nngk.data import ImageTable, require_pairs
from nngk.errors import InputError


def table() -> ImageTable:
    return ImageTable(
        paths=[Path(f"{i}.png") for i in range(6)],
        labels=np.array([0, 0, 2, 2, 2, 3]),
        class_names=["a", "b", "c", "d"],
        splits=["train", "test", "train", "val", "test", "train"],
        boxes=np.arange(24).reshape(6, 4),
    )


def test_select_keeps_rows_together_and_all_class_names() -> None:
    for chosen in ([4, 0], np.array([4, 0])):
        part = table().select(chosen)
        assert [str(p) for p in part.paths] == ["4.png", "0.png"]
        assert part.labels.tolist() == [2, 0] and part.labels.dtype == np.int64
        assert part.splits == ["test", "train"]
        assert part.boxes is not None and part.boxes[:, 0].tolist() == [16, 0]
        assert part.class_names == ["a", "b", "c", "d"]
    mask = table().labels == 2
    assert [str(p) for p in table().select(mask).paths] == ["2.png", "3.png", "4.png"]
    assert len(table().select([])) == 0


def test_compact_drops_empty_classes_and_renumbers_in_order() -> None:
    small = table().compact()
    assert small.class_names == ["a", "c", "d"]
    assert small.labels.tolist() == [0, 0, 1, 1, 1, 2]
    assert table().counts().tolist() == [2, 0, 3, 1]
    assert table().select([]).compact().class_names == []


def test_where_is_a_split() -> None:
    assert [str(p) for p in table().where("train").paths] == ["0.png", "2.png", "5.png"]


def test_without_small_classes() -> None:
    assert table().without_small_classes(2).class_names == ["a", "c"]
    assert table().without_small_classes(3).labels.tolist() == [0, 0, 0]


def test_a_class_of_one_is_named_with_what_to_do() -> None:
    with pytest.raises(InputError, match=r"'d'.*Add images.*remove.*skip-small-classes"):
        require_pairs(table(), "training")
    require_pairs(table().without_small_classes(2), "training")


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("labels", np.array([0, 0, 2, 2, 2, 4]), "4 class names"),
        ("labels", np.array([0, -1, 2, 2, 2, 3]), "from -1"),
        ("labels", np.array([0, 1]), "one label per path"),
        ("splits", ["train"], "one split per path"),
        ("splits", ["train"] * 5 + ["exam"], "'exam'"),
        ("boxes", np.zeros((2, 4)), "one box per path"),
    ],
)
def test_columns_that_do_not_fit_are_refused(field: str, value: object, says: str) -> None:
    good = table()
    columns = {"paths": good.paths, "labels": good.labels, "class_names": good.class_names, field: value}
    with pytest.raises(InputError, match=says):
        ImageTable(**columns)
