"""What becomes of packs and caches of decoded images when their writers are killed, and when a bit is flipped?

    python benchmarks/reliability/pack_faults.py [--kills 200] [--flips 2000]

A picture that is read and is not what its file decodes to is wrong. A pack that a writer was told is finished and that
cannot be read afterwards is lost. Rows: results/faults.csv.
"""

import os
import random
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from nngk import InputError, progress
from nngk.data import Images, ImageTable, fitted, pack, read_images, read_pack
from nngk.data.packs.layout import finished
from nngk.experiments.record import provenance
from nngk.experiments.record.benchmarks import benchmark_options, benchmark_parser
from nngk.experiments.record.csv_rows import put_row

SIZES = (16, 18)


def photos(folder: Path) -> ImageTable:
    """Write 64 pictures of two classes and return their table."""
    rng = np.random.default_rng(0)
    for name in "ab":
        (folder / name).mkdir(parents=True)
        for number in range(32):
            noise = rng.integers(0, 256, (24, 32, 3), dtype=np.uint8)
            Image.fromarray(noise).save(folder / name / f"{number}.png")
    return read_images(folder)


def right(images: Images, table: ImageTable, size: int) -> bool:
    """Return whether every picture is what its file decodes to."""
    found = images.batch(range(len(table)))
    return all(torch.equal(found[i], fitted(path, size)) for i, path in enumerate(table.paths))


def kills(count: int, table: ImageTable, home: Path, rng: random.Random) -> dict[str, int]:
    """Kill writers of packs of two sizes in one folder at random moments; now and then let one finish."""
    counts = dict.fromkeys(("injected", "lost", "wrong", "errors"), 0)
    folder = home / "pack"
    for number in range(count):
        child = os.fork()
        if not child:
            for size in SIZES * 100:
                pack(table, folder, size, threads=2)
            os._exit(0)
        time.sleep(rng.uniform(0, 0.15))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        counts["injected"] += 1
        found = finished(folder)
        try:
            counts["wrong"] += found is not None and not right(read_pack(folder)[0], table, found.size)
            if number % 4 == 0:
                size = rng.choice(SIZES)
                pack(table, folder, size)
                found = finished(folder)
                counts["lost"] += found is None or not right(read_pack(folder)[0], table, size)
                counts["wrong"] += {path.name for path in folder.iterdir()} != {".lock", "pixels.bin", "table.json"}
        except InputError as error:
            print(error)
            counts["errors"] += 1
    return counts


def flips(count: int, table: ImageTable, home: Path, rng: random.Random) -> dict[str, int]:
    """Flip one bit of a pack or of a cache; it must be refused, or read as if nothing had happened."""
    counts = dict.fromkeys(("injected", "refused", "wrong", "errors"), 0)
    folder, cache = pack(table, home / "flipped", SIZES[0]), home / "cache"
    Images(table, SIZES[0], cache)
    for number in range(count):
        (shard,) = cache.glob("cache-*")
        path = (shard if number % 2 else folder) / ("pixels.bin", "table.json")[number // 2 % 2]
        data = path.read_bytes()
        bad = bytearray(data)
        bad[rng.randrange(len(bad))] ^= 1 << rng.randrange(8)
        path.write_bytes(bytes(bad))
        counts["injected"] += 1
        try:
            if number % 2:
                counts["wrong"] += not right(Images(table, SIZES[0], cache), table, SIZES[0])
            else:
                images, again = read_pack(folder)
                counts["wrong"] += again.labels.tolist() != table.labels.tolist() or not right(images, table, SIZES[0])
        except InputError:
            counts["refused"] += 1
        except Exception as error:  # counting these is what this is for
            print(f"{path.name}: {type(error).__name__}: {error}")
            counts["errors"] += 1
        if number % 2 == 0:
            path.write_bytes(data)
        else:
            Images(table, SIZES[0], cache)  # it mends itself
    return counts


def main() -> None:
    parser = benchmark_parser(__doc__, "results/faults.csv")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--flips", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    options = benchmark_options(parser)
    if options.quick:
        options.kills, options.flips = 5, 12
    progress.quiet = True
    torch.set_num_threads(1)
    rng, failed = random.Random(options.seed), 0
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        table = photos(home / "photos")
        faults: dict[str, Callable[[], dict[str, int]]] = {
            "writer of a pack killed with SIGKILL": lambda: kills(options.kills, table, home, rng),
            "one bit of a pack or a cache flipped": lambda: flips(options.flips, table, home, rng),
        }
        for fault, inject in faults.items():
            begun = time.perf_counter()
            counts = inject()
            row = {"fault": fault, **counts, "seconds": round(time.perf_counter() - begun, 1), "seed": options.seed}
            print("  ".join(f"{key} {value}" for key, value in row.items()))
            put_row(options.out, row | provenance("cpu", options.commit), lambda old, new: old["fault"] == new["fault"])
            failed += sum(counts.get(name, 0) for name in ("lost", "wrong", "errors"))
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
