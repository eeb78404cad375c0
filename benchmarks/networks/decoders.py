"""How long does a JPEG photo take to decode: by Pillow and by simplejpeg, at parts of its size?

    python benchmarks/networks/decoders.py
    python benchmarks/networks/decoders.py --folder PHOTOS

All of them use libjpeg-turbo, each its own copy; simplejpeg is left out where it is not installed. Photos are those of
a folder, or generated, of 1600 × 1200 pixels, with as much detail as real ones and with less. Pillow at a half is what
this library does where pictures of 256 pixels are wanted. The ways take turns in one thread; a row has the median of
the processor's time, and of its share of what Pillow takes at a half. Rows: results/decoders.csv.
"""

import io
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from cpu_inference import HEIGHT, WIDTH, write_photos
from PIL import Image

from nngk.experiments.record import append_rows, provenance
from nngk.experiments.record.benchmarks import benchmark_options, benchmark_parser

ROUNDS = 7
USUAL = "Pillow, 1/2"


def by_pillow(photo: bytes, part: int) -> None:
    with Image.open(io.BytesIO(photo)) as image:
        image.draft(None, (image.width // part, image.height // part))
        image.load()


def ways() -> dict[str, Callable[[bytes], Any]]:
    """Return what is compared; simplejpeg is told how small the shorter side may become."""
    found: dict[str, Callable[[bytes], Any]] = {
        f"Pillow, 1/{part}" if part > 1 else "Pillow": partial(by_pillow, part=part) for part in (1, 2, 4, 8)
    }
    try:
        from simplejpeg import decode_jpeg
    except ImportError as error:
        print(f"simplejpeg: left out. {error}")
    else:
        found["simplejpeg"] = decode_jpeg
        for part in (2, 4, 8):
            side = HEIGHT // part
            found[f"simplejpeg, 1/{part}"] = partial(decode_jpeg, min_height=side, min_width=side)
    return found


def measured(photos: list[bytes], rounds: int) -> dict[str, list[float]]:
    """Return the processor's seconds that each way took in each round."""
    seconds: dict[str, list[float]] = {way: [] for way in ways()}
    for number in range(1 + rounds):
        for way, decode in ways().items():
            start = time.process_time()
            for photo in photos:
                decode(photo)
            if number:  # the first one warms up
                seconds[way].append(time.process_time() - start)
    return seconds


def smaller(photo: bytes, quality: int) -> bytes:
    """Return a photo saved anew at another quality."""
    out = io.BytesIO()
    Image.open(io.BytesIO(photo)).save(out, "JPEG", quality=quality)
    return out.getvalue()


def main() -> None:
    parser = benchmark_parser(__doc__, "results/decoders.csv")
    parser.add_argument("--photos", type=int, default=8, help="How many photos, where they are generated.")
    parser.add_argument("--folder", type=Path, help="A folder of photos, in a folder for each class, in their place.")
    given = benchmark_options(parser)
    torch.set_num_threads(1)
    count, rounds = (1, 1) if given.quick else (given.photos, ROUNDS)
    with tempfile.TemporaryDirectory() as home:
        if given.folder is None:
            write_photos(Path(home), count, WIDTH, HEIGHT)
        files = [path.read_bytes() for path in sorted((given.folder or Path(home)).glob("*/*.jpg"))]
    kinds = {"real": files}
    if given.folder is None:
        kinds = {f"generated, quality {q}": [smaller(file, q) for file in files] for q in (90, 75, 50)}
    for kind, photos in kinds.items():
        kilobytes = round(sum(map(len, photos)) / len(photos) / 1e3)
        seconds = measured(photos, rounds)
        for way, taken in seconds.items():
            row: dict[str, Any] = {"way": way, "kind": kind, "photos": len(photos), "kilobytes": kilobytes}
            row["rounds"] = len(taken)
            row["cpu_ms_per_image"] = round(1e3 * statistics.median(taken) / len(photos), 2)
            row["of_usual"] = round(statistics.median(a / b for a, b in zip(taken, seconds[USUAL])), 3)
            print(f"{kind:24} {kilobytes:5} kB  {way:16} {row['cpu_ms_per_image']:6} ms  {row['of_usual']:.2f}")
            append_rows(given.out, [row | provenance("cpu", given.commit)])


if __name__ == "__main__":
    main()
