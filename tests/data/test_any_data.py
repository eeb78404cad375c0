"""Whatever a user gives to the functions of `nngk.data` either works or raises InputError.

Each property is tried with 200 examples, and with 2,000 in the slow tier.
"""

import contextlib
import csv
import io
import json
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image

from examples import try_examples
from nngk.data import (
    Images,
    ImageTable,
    check_folder,
    fitted,
    load_image,
    pack,
    read_images,
    read_pack,
    split,
    stratified,
)
from nngk.errors import InputError
from nngk.files import write_record

pytestmark = pytest.mark.thorough  # hundreds of examples each

NOISE = np.random.default_rng(0).integers(0, 256, (20, 30, 4), dtype=np.uint8)
WORDS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.binary(max_size=8),
    st.lists(st.integers(-9, 9), max_size=5), st.just({}), st.complex_numbers(),
)  # fmt: skip


@contextlib.contextmanager
def works_or_is_refused():
    """Let InputError pass, with a sentence; nothing else, and no warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        try:
            yield
        except InputError as error:
            assert str(error).endswith((".", ")", '"')) and len(str(error)) > 20


def is_rgb(image):
    assert image.mode == "RGB" and image.width > 0 and image.height > 0


# -- arrays, tensors, boxes


def any_array():
    names = "u1 u2 u4 u8 i1 i2 i4 i8 f2 f4 f8 >u2 >f4 ? c8 M8[s] U3 S3 O".split()  # noqa: SIM905
    kinds = st.sampled_from([np.dtype(name) for name in names])
    shapes = st.one_of(
        arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=6),
        st.tuples(st.integers(1, 8), st.integers(1, 8), st.sampled_from([1, 3, 4])),
    )
    whole = st.tuples(kinds, shapes).flatmap(
        lambda pair: arrays.arrays(pair[0], pair[1], elements=WORDS if pair[0].kind == "O" else None)
    )
    return whole.flatmap(lambda array: st.sampled_from([array, array[::-1], array.T] if array.ndim else [array]))


def an_array(array):
    with works_or_is_refused():
        is_rgb(load_image(array))


def any_tensor():
    kinds = [getattr(torch, name) for name in (
        "uint8", "int8", "int16", "int32", "int64", "bool", "float16", "bfloat16", "float32", "float64", "complex64",
    )]  # fmt: skip
    shapes = st.one_of(
        st.lists(st.integers(0, 5), max_size=4),
        st.tuples(st.sampled_from([1, 3, 4]), st.integers(1, 8), st.integers(1, 8)),
    )
    return st.tuples(st.sampled_from(kinds), shapes, st.sampled_from([0, 1, 7, 255, 300, -2]), st.integers(0, 3))


def a_tensor(given_tensor):
    kind, shape, value, way = given_tensor
    tensor = torch.full(tuple(shape), 1).to(kind) * value
    if way == 1 and tensor.ndim == 2:
        tensor = tensor.to_sparse()
    if way == 2:
        tensor = tensor.to("meta")
    if way == 3 and tensor.is_floating_point():
        tensor.requires_grad_()
    with works_or_is_refused():
        is_rgb(load_image(tensor))


def a_thing(thing):
    with works_or_is_refused():
        load_image(thing)


def a_size_and_a_box(question):
    size, box, squash = question
    with works_or_is_refused():
        assert min(fitted(NOISE, size, box, squash=squash).shape[1:]) == size


ANY_SIZE = st.one_of(st.integers(-2, 40), st.sampled_from([8193, 1 << 60, 2.0, float("nan"), None, True, "8", [8]]))
ANY_BOX = st.one_of(
    st.none(),
    st.lists(st.floats(), min_size=4, max_size=4),
    st.lists(st.floats(-5, 40), min_size=4, max_size=4),
    st.lists(st.floats(), max_size=6),
    WORDS,
)


# -- files


def saved(kind, mode="RGB"):
    stream = io.BytesIO()
    Image.fromarray(NOISE).convert(mode).save(stream, kind)
    return stream.getvalue()


GOOD = {
    "a.jpg": saved("JPEG"), "b.png": saved("PNG", "RGBA"), "c.webp": saved("WEBP"), "d.gif": saved("GIF", "P"),
    "e.tif": saved("TIFF"), "f.bmp": saved("BMP"), "g.ppm": saved("PPM"), "h.jp2": saved("JPEG2000"),
    "i.tga": saved("TGA"), "j.png": saved("PNG", "P"), "k.tif": saved("TIFF", "F"), "l.avif": saved("AVIF"),
}  # fmt: skip


@st.composite
def any_file(draw):
    """A good picture that was changed here and there, cut or lengthened; or bytes that never were one."""
    name = draw(st.sampled_from(sorted(GOOD)))
    content = bytearray(GOOD[name])
    for _ in range(draw(st.integers(0, 4))):
        place = draw(st.integers(0, min(len(content) - 1, draw(st.sampled_from([40, 10_000])))))
        content[place] = draw(st.integers(0, 255))
    end = draw(st.one_of(st.none(), st.integers(0, len(content))))
    bytes_ = bytes(content[:end]) + draw(st.binary(max_size=9))
    return name, draw(st.one_of(st.just(bytes_), st.just(bytes_), st.binary(max_size=60)))


def a_file(file):
    name, content = file
    with tempfile.TemporaryDirectory() as home:
        (Path(home) / name).write_bytes(content)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # Pillow's remarks about damaged notes
            with works_or_is_refused():
                assert fitted(Path(home) / name, 8).shape[0] == 3


# -- tables


CELL = st.one_of(
    st.text(max_size=6), st.sampled_from(["a.png", "cat", "train", "1", "nan", "inf", "", "-1", '"', "\0"])
)
COLUMN = st.one_of(st.sampled_from(["path", "label", "split", "x_1", "y_1", "x_2", "y_2"]), st.text(max_size=4))


@st.composite
def any_list(draw):
    """The bytes of a CSV file, of a table or of anything."""
    header = draw(st.lists(COLUMN, max_size=8))
    rows = draw(st.lists(st.lists(CELL, min_size=len(header), max_size=len(header)), max_size=5))
    text = io.StringIO()
    csv.writer(text).writerows([header, *rows])
    return draw(st.sampled_from([text.getvalue().encode("utf-8", "replace"), draw(st.binary(max_size=60))]))


def a_list(content):
    with tempfile.TemporaryDirectory() as home:
        Image.new("RGB", (5, 4)).save(f"{home}/a.png")
        (Path(home) / "list.csv").write_bytes(content)
        for allow_missing in (False, True):
            with works_or_is_refused():
                table = read_images(f"{home}/list.csv", allow_missing=allow_missing)
                assert len(table) >= 2
                split(table)


def any_frame():
    cells = st.one_of(WORDS, CELL)
    return st.dictionaries(COLUMN, st.lists(cells, min_size=3, max_size=3), max_size=6)


def a_frame(columns):
    pandas = pytest.importorskip("pandas")
    with works_or_is_refused():
        read_images(pandas.DataFrame({name: pandas.Series(values, dtype=object) for name, values in columns.items()}))


def a_source(source):
    with works_or_is_refused():
        read_images(source)
    if isinstance(source, str):
        with works_or_is_refused():
            check_folder(Path("/nowhere") / source)


def a_split(question):
    labels, fractions, share, task, seed = question
    table = ImageTable([Path(f"{i}") for i in range(len(labels))], np.array(labels, dtype=np.int64), list("abcdefgh"))
    with works_or_is_refused():
        parts = stratified(labels, fractions, seed)
        assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))
    with works_or_is_refused():
        parts = split(table, task, share, 0.2, seed)
        assert sum(map(len, parts)) == len(labels)


ANY_SPLIT = st.tuples(
    st.lists(st.integers(0, 7), max_size=30),
    st.one_of(st.lists(st.floats(), max_size=4), st.sampled_from([(0.5, 0.5), (0.8, 0.1, 0.1), (1.0,), (0, 1)])),
    st.one_of(st.floats(), st.floats(0, 1)),
    st.sampled_from(["classify", "metric"]),
    st.integers(0, 99),
)


# -- packs


with tempfile.TemporaryDirectory() as _home:
    for _name in "ab":
        (Path(_home) / "photos" / _name).mkdir(parents=True)
        for _i in range(2):
            Image.fromarray(NOISE).save(f"{_home}/photos/{_name}/{_i}.png")
    _folder = pack(read_images(f"{_home}/photos"), f"{_home}/out", 8)
    PIXELS, META = (_folder / "pixels.bin").read_bytes(), json.loads((_folder / "table.json").read_text())

ANY_VALUE = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=5)
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=5), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=8,
)


def a_table_of_a_pack(change):
    field, value, deep = change
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        (folder / "pixels.bin").write_bytes(PIXELS)
        changed = json.loads(json.dumps(META))
        if deep and isinstance(changed[field], list) and changed[field]:
            changed[field][0] = value
        else:
            changed[field] = value
        write_record(folder / "table.json", changed)  # its checksum is right
        with works_or_is_refused():
            images, table = read_pack(folder)
            assert len(images.batch(range(len(table)))) == len(table) == 4
            Images(table, 4).batch([0])
        with works_or_is_refused():
            check_folder(folder, decode=True)


PROPERTIES = {
    "array": (any_array(), an_array),
    "tensor": (any_tensor(), a_tensor),
    "thing": (WORDS, a_thing),
    "size and box": (st.tuples(ANY_SIZE, ANY_BOX, st.booleans()), a_size_and_a_box),
    "file": (any_file(), a_file),
    "list": (any_list(), a_list),
    "frame": (any_frame(), a_frame),
    "source": (st.one_of(WORDS, st.text(max_size=300)), a_source),
    "split": (ANY_SPLIT, a_split),
    "pack": (st.tuples(st.sampled_from(sorted(META)), ANY_VALUE, st.booleans()), a_table_of_a_pack),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", PROPERTIES)
def test_anything_works_or_is_refused(name):
    try_examples(*PROPERTIES[name], 200)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROPERTIES)
def test_anything_works_or_is_refused_often(name):
    try_examples(*PROPERTIES[name], 2000)
