from pathlib import Path

import numpy as np
import pytest

from nngk.data import read_images
from nngk.errors import InputError


def relative(table, folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in table.paths]


def test_folder_is_sorted_and_skips_what_is_not_an_image(pets: Path, make_picture) -> None:
    make_picture(pets / "owl" / "young" / "a.PNG")
    make_picture(pets / "owl" / ".hidden" / "a.png")
    make_picture(pets / ".thumbnails" / "a.png")
    (pets / "owl" / "notes.txt").write_text("owls")
    (pets / "owl" / "._0.png").write_bytes(b"junk")
    (pets / "empty").mkdir()
    table = read_images(pets)
    assert table.class_names == ["cat", "dog", "owl"] and table.name == "pets" and table.splits is None
    want = [f"cat/{i}.png" for i in range(4)] + [f"dog/{i}.png" for i in range(3)]
    assert relative(table, pets) == want + [f"owl/{i}.png" for i in range(5)] + ["owl/young/a.PNG"]
    assert table.labels.tolist() == [0] * 4 + [1] * 3 + [2] * 6
    assert read_images(str(pets)).paths == table.paths


def test_train_val_and_test_folders(tmp_path: Path, make_picture) -> None:
    for place in ("train/b/1.png", "train/a/1.png", "Validation/a/2.png", "test/c/3.png", "test/b/4.png"):
        make_picture(tmp_path / place)
    table = read_images(tmp_path)
    assert table.class_names == ["a", "b", "c"]
    rows = sorted(zip(relative(table, tmp_path), table.labels.tolist(), table.splits or []))
    assert rows == [
        ("Validation/a/2.png", 0, "val"),
        ("test/b/4.png", 1, "test"),
        ("test/c/3.png", 2, "test"),
        ("train/a/1.png", 0, "train"),
        ("train/b/1.png", 1, "train"),
    ]


def test_folders_without_pictures_do_not_count_beside_parts(tmp_path: Path, make_picture) -> None:
    for place in ("train/a/1.png", "train/b/1.png", "train/loose.png", "test/a/2.png"):
        make_picture(tmp_path / place)
    (tmp_path / "annotations").mkdir()
    (tmp_path / "annotations" / "x.txt").write_text("1 2 3 4")
    table = read_images(tmp_path)
    assert table.class_names == ["a", "b"] and sorted(table.splits or []) == ["test", "train", "train"]


def test_a_class_may_be_called_test(tmp_path: Path, make_picture) -> None:
    for place in ("test/1.png", "other/1.png"):
        make_picture(tmp_path / place)
    assert read_images(tmp_path).class_names == ["other", "test"]


@pytest.mark.parametrize(
    ("prepare", "says"),
    [
        (lambda d, make: None, "has no images: expected a sub-folder for each class"),
        (lambda d, make: make(d / "1.png"), "1 images but no sub-folders"),
        (lambda d, make: make(d / "cat" / "1.png"), "one class only .*'cat'.*add images of another class"),
        (lambda d, make: (d / "cat").mkdir(), "has no images"),
        (
            lambda d, make: [make(d / place) for place in ("train/a/1.png", "test/a/1.png", "extra/1.png")],
            "has parts \\('test', 'train'\\) beside other folders with images \\('extra'\\)",
        ),
        (lambda d, make: [make(d / place) for place in ("val/a/1.png", "test/a/1.png")], "no folder 'train'"),
    ],
)
def test_folders_that_cannot_be_used(tmp_path: Path, make_picture, prepare, says: str) -> None:
    prepare(tmp_path, make_picture)
    with pytest.raises(InputError, match=says):
        read_images(tmp_path)


def test_a_file_called_like_a_pack_s_does_not_make_a_pack(pets: Path) -> None:
    (pets / "table.json").write_text('{"legs": 4}')
    assert read_images(pets).class_names == ["cat", "dog", "owl"]


def test_a_missing_folder_and_a_wrong_source(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no folder or file .*nowhere.*by name are cub200"):
        read_images(tmp_path / "nowhere")
    (tmp_path / "a.zip").write_bytes(b"")
    with pytest.raises(InputError, match="neither a folder nor a CSV, tar or Parquet file"):
        read_images(tmp_path / "a.zip")
    with pytest.raises(InputError, match="Cannot read images from int"):
        read_images(7)
    with pytest.raises(InputError, match="'classify' or 'metric'"):
        read_images(tmp_path, task="sort")


def test_csv_is_relative_to_itself(pets: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = pets / "list.csv"
    file.write_text(
        f"\ufeffpath,label,split\ncat/0.png,10,train\n{pets / 'dog/1.png'},9,Validation\n\nowl/2.png,10,test\n",
        encoding="utf-8",
    )
    monkeypatch.chdir(tmp_path)
    table = read_images(file)
    assert relative(table, pets) == ["cat/0.png", "dog/1.png", "owl/2.png"]
    assert table.class_names == ["9", "10"] and table.labels.tolist() == [1, 0, 1]
    assert table.splits == ["train", "val", "test"] and table.name == "list"


def test_csv_with_boxes_and_tabs(pets: Path) -> None:
    file = pets / "list.tsv"
    file.write_text("x_1\tx_2\ty_1\ty_2\tlabel\tpath\n1\t5\t2\t8\ta\tcat/0.png\n\t\t\t\tb\tcat/1.png\n")
    boxes = read_images(file).boxes
    assert boxes is not None and boxes[0].tolist() == [1, 2, 5, 8] and np.isnan(boxes[1]).all()
    assert read_images(file, crop_boxes=False).boxes is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("path,label,label\na,b,c\n", "has 2 columns named label: keep one"),
        ("file,class\na,b\n", "no column named path and none named label.*it has 'file', 'class'"),
        ("", "it has none"),
        ("path,label\n", "has no images"),
        ("path,label\ncat/0.png,\n", r"no label in row\(s\) 2"),
        ("path,label,split\ncat/0.png,a,train\ncat/1.png,b,exam\n", r"'exam' in row\(s\) 3"),
        ("path,label\ncat/0.png,a\ncat/1.png,b,c\n", r"not in row\(s\) 3"),
        ("path,label\ncat/0.png,a\ncat/9.png,b\ncat/8.png,b\n", r"2 image\(s\) that do not exist, in row\(s\) 3, 4: "),
        ("path,label\ncat/0.png,a\ncat/1.png,a\n", "one class only"),
        ("path,label,x_1\ncat/0.png,a,3\n", "some columns of a box"),
        ("path,label,x_1,y_1,x_2,y_2\ncat/0.png,a,1,1,inf,5\n", "'inf' for x_2 in row 2: a box is four numbers"),
        ("path,label,x_1,x_2,y_1,y_2\ncat/0.png,a,3,1,0,9\n", r"x_1 >= x_2.*row\(s\) 2"),
        ("path,label,x_1,x_2,y_1,y_2\ncat/0.png,a,wide,1,0,9\n", "'wide' for x_1 in row 2"),
    ],
)
def test_csv_files_that_cannot_be_used(pets: Path, text: str, says: str) -> None:
    file = pets / "list.csv"
    file.write_text(text)
    with pytest.raises(InputError, match=says):
        read_images(file)


def test_csv_that_is_not_text(pets: Path) -> None:
    (pets / "list.csv").write_bytes(b"\xff\xfe\x00path")
    with pytest.raises(InputError, match="not a CSV file in UTF-8"):
        read_images(pets / "list.csv")


def test_missing_files_may_be_allowed(pets: Path) -> None:
    (pets / "list.csv").write_text("path,label\ncat/0.png,a\ncat/9.png,b\ncat/1.png,b\n")
    assert relative(read_images(pets / "list.csv", allow_missing=True), pets) == ["cat/0.png", "cat/1.png"]


def test_data_frame_with_the_columns_of_open_metric_learning(pets: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {
            "label": [3.0, 3.0, 12.0],
            "path": ["cat/0.png", "cat/1.png", "dog/0.png"],
            "split": ["train", "validation", "validation"],
            "is_query": [None, True, True],
            "is_gallery": [None, True, True],
            "x_1": [1, None, 0],
            "x_2": [9, None, 5],
            "y_1": [2, None, 0],
            "y_2": [8, None, 5],
        },
        index=["x", "y", "z"],
    )
    table = read_images(frame, data_dir=pets)
    assert relative(table, pets) == ["cat/0.png", "cat/1.png", "dog/0.png"]
    assert table.class_names == ["3", "12"] and table.splits == ["train", "val", "val"]
    assert table.boxes is not None and table.boxes[0].tolist() == [1, 2, 9, 8] and np.isnan(table.boxes[1]).all()
    with pytest.raises(InputError, match="The data frame has 2 columns named path"):
        read_images(pandas.concat([frame, frame["path"]], axis=1), data_dir=pets)
    with pytest.raises(InputError, match="The data frame has no column named path"):
        read_images(frame.drop(columns="path"))
    with pytest.raises(InputError, match="do not exist"):
        read_images(frame, data_dir=pets / "cat")


def test_a_name_that_is_too_long_for_the_system():
    with pytest.raises(InputError, match="too long"):
        read_images("a" * 5000)
