"""A coverage-guided fuzz of the readers that are written in Python: whatever the bytes, they work or raise InputError.

    pip install atheris
    python tests/fuzz/fuzz_readers.py -max_total_time=600 -timeout=10 -rss_limit_mb=2048 WORK tests/fuzz/corpus

The first byte of an input chooses the reader, the rest is the file that it reads. New inputs go to the folder WORK,
which must exist; those in the corpus are tried by the suite too (tests/fuzz/test_readers.py).
"""

import os
import shutil
import sys
import tempfile
import warnings
from pathlib import Path

HOME = Path(tempfile.gettempdir()) / f"nngk-fuzz-{os.getpid()}"
PICTURES = ("a.jpg", "a.png", "a.webp", "a.gif", "a.tif", "a.bmp", "a.ppm", "a.jp2", "a.tga", "a.avif")
READERS = (*PICTURES, "list.csv", "list.tsv", "table.json", "record.json", "tensors.safetensors", "archive.tar")
PACKED = bytes(3 * 8 * 8 * 2)  # two black pictures


def read(name: str, content: bytes) -> None:
    """Let the reader of a kind of file read these bytes."""
    from nngk.data import check_folder, fitted, read_images, read_pack
    from nngk.data.datasets.unpack import unpack
    from nngk.files import read_record, read_tensors

    file = HOME / name
    file.write_bytes(content)
    if name in PICTURES:
        fitted(file, 8)
    elif name.startswith("list"):
        read_images(file, allow_missing=True)
    elif name == "table.json":
        (HOME / "pixels.bin").write_bytes(PACKED)
        check_folder(HOME, decode=True)
        images, table = read_pack(HOME)
        images.batch(range(len(table)))
    elif name == "record.json":
        read_record(file, "a record", 3)
    elif name == "tensors.safetensors":
        read_tensors(file)
    else:
        unpack(file, HOME / "place")


def one_input(data: bytes) -> None:
    """Try one input: InputError is an answer, anything else a fault."""
    from nngk.errors import InputError

    if not data:
        return
    HOME.mkdir(exist_ok=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # Pillow's remarks about damaged notes
            read(READERS[data[0] % len(READERS)], data[1:])
    except InputError:
        pass
    finally:
        shutil.rmtree(HOME, ignore_errors=True)


def main() -> None:
    import atheris

    with atheris.instrument_imports(include=["nngk", "PIL"]):
        import nngk.data
        import nngk.data.datasets.unpack
        import nngk.files  # noqa: F401
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
