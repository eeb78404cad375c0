"""How many images a second does a CPU embed: from files to answers, beside the bare network, onnxruntime and compiled?

    python benchmarks/networks/cpu_inference.py --networks efficientnet-lite0 --threads 2 --compile
    python benchmarks/networks/cpu_inference.py --networks efficientnet-lite0 --threads 2 --folder PHOTOS

Photos are those of a folder, of 1600 × 1200 pixels in JPEG, or generated; generated ones have more detail, and take
longer to decode. The bare networks get a batch that is decoded already, of 8 images where nothing else is said, and go
through it with all threads or, each with one thread, with a pass per core. `nothing fused` is the network as PyTorch
computes it by itself. Rows: results/cpu_inference.csv. The ways take turns, and medians are compared: of the rate, of
its share of the bare network's and of PyTorch's (whichever of its ways was faster in that turn) and of the processors'
time, which other programs on the machine disturb least. `ceiling` is the share of the bare network's rate that is left
if photos are decoded by libjpeg, on the same cores, and nothing else is done besides the network's pass.
"""

import io
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from nngk import Model, create_network, read_images
from nngk.data import Images, centre_crop
from nngk.errors import MissingExtra
from nngk.experiments.record import append_rows, provenance
from nngk.experiments.record.benchmarks import benchmark_options, benchmark_parser
from nngk.model.export import export_onnx
from nngk.model.stream import classify_each
from nngk.networks.backbones import lite0
from nngk.networks.embed import at_once, embed
from nngk.networks.fused.chain import core

ROUNDS = 5
BARE, PER_CORE = "bare network", ", a pass per core"
AT_A_TIME = (1, 2, 32)  # images, besides the number that is usual
PYTORCH = "nothing fused"
DECODER = "decoder alone"
WIDTH, HEIGHT = 1600, 1200


def write_photos(folder: Path, count: int, width: int, height: int) -> None:
    """Write photos of two classes whose detail is distributed as in real ones: less of it the finer it is."""
    random = np.random.default_rng(0)
    rows, columns = np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None]
    fade = 1 / np.maximum(np.hypot(rows, columns), 1 / width) ** 1.1
    for number in range(count):
        noise = random.normal(size=(3, *fade.shape)) + 1j * random.normal(size=(3, *fade.shape))
        waves = np.fft.irfft2(noise * fade, s=(height, width))
        pixels = 128 + 45 * waves / waves.std(axis=(1, 2), keepdims=True)
        place = folder / f"class {number % 2}"
        place.mkdir(exist_ok=True)
        picture = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8).transpose(1, 2, 0))
        picture.save(place / f"{number}.jpg", quality=90)


def model_of(name: str) -> Model:
    """Return a model with a network of random weights and two hundred centres of two classes."""
    network = create_network(name, dim=128, weights="random")
    return Model(
        network,
        centres=torch.randn(200, network.dim),
        labels=torch.arange(200) % 2,
        theta=torch.zeros(200),
        sigma=1.0,
        class_names=["class 0", "class 1"],
        sources=[str(i) for i in range(200)],
        device="cpu",
    )


def per_core(works: Sequence[Callable[[], object]], threads: int) -> None:
    """Do each piece of work in threads that have one core each."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # new threads begin with what was set last
    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(work) for work in works]:
            done.result()
    torch.set_num_threads(before)


def decode(photo: bytes, side: int) -> None:
    """Decode a photo, with libjpeg alone, at the part of its size at which it is decoded to be brought to a side."""
    with Image.open(io.BytesIO(photo)) as image:
        image.draft(None, (image.width * 2 * side // min(image.size), image.height * 2 * side // min(image.size)))
        image.load()


def unfused(work: Callable[[], object]) -> Callable[[], object]:
    """Return work in which the default network computes layer by layer, as PyTorch does by itself."""
    return patch.object(lite0, "packable", lambda x: False)(work)


def in_bfloat16(run: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
    """Return a network that computes in bfloat16 where PyTorch thinks that safe."""
    return torch.autocast("cpu", torch.bfloat16)(run)


def onnx_session(model: Model, threads: int) -> Callable[[Tensor], Any]:
    """Return the exported network, as onnxruntime runs it on pictures of bytes."""
    import onnxruntime

    with tempfile.TemporaryDirectory() as home:
        export_onnx(model, Path(home) / "network.onnx")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        content = (Path(home) / "network.onnx").read_bytes()
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return lambda pictures: session.run(None, {"pictures": pictures.numpy()})


def ways_of(model: Model, photos: Path, threads: int, compiled: bool) -> dict[str, Callable[[], object]]:
    """Return what is compared: each goes through as many images as there are photos."""
    spec, table = model.network.input, read_images(photos)
    paths = [str(path) for path in table.paths]
    images, crop = Images(table, spec.resize), centre_crop(spec.size, spec.mean, spec.std)
    many = at_once(torch.device("cpu"), spec.size)
    count = min(max(many, *AT_A_TIME), len(paths))
    decoded = crop(images.batch(torch.arange(count))).contiguous(memory_format=torch.channels_last)
    pixels = torch.randint(0, 256, tuple(decoded.shape), dtype=torch.uint8)
    network = model.network

    def bare(run: Callable[[Tensor], Any], batch: Tensor, cores: int = 1) -> Callable[[], object]:
        def once() -> None:
            with torch.inference_mode():
                run(batch)

        times = -(-len(paths) // len(batch))
        return lambda: per_core([once] * times, cores) if cores > 1 else [once() for _ in range(times)]

    def in_all_ways(name: str, run: Callable[[Tensor], Any], alone: Callable[[Tensor], Any], batch: Tensor) -> None:
        for how, work, cores in (("", run, 1), (PER_CORE, alone, threads)):
            ways[name + how] = bare(work, batch[:many], cores)
            for count in AT_A_TIME:
                if count * cores <= len(paths):  # there is a pass for each core
                    ways[f"{name}{how}, {count} at a time"] = bare(work, batch[:count], cores)

    ways: dict[str, Callable[[], object]] = {}
    in_all_ways(BARE, network, network, decoded)
    if isinstance(network.backbone, lite0.EfficientNetLite0):
        ways[PYTORCH] = unfused(bare(network, decoded[:many]))
        ways[PYTORCH + PER_CORE] = unfused(bare(network, decoded[:many], threads))
        ways[PYTORCH + ", bfloat16"] = unfused(bare(in_bfloat16(network), decoded[:many]))
        ways[PYTORCH + ", bfloat16" + PER_CORE] = unfused(bare(in_bfloat16(network), decoded[:many], threads))
    try:
        in_all_ways("onnxruntime", onnx_session(model, threads), onnx_session(model, 1), pixels)
    except (ImportError, MissingExtra) as error:
        print(f"onnxruntime: left out. {error}")
    if compiled:
        faster = torch.compile(network, dynamic=False, options={"freezing": True})
        ways["torch.compile"] = bare(faster, decoded[:many])
        ways["torch.compile" + PER_CORE] = bare(faster, decoded[:many], threads)
        ways["torch.compile, bfloat16"] = bare(in_bfloat16(faster), decoded[:many])
        ways["torch.compile, bfloat16" + PER_CORE] = bare(in_bfloat16(faster), decoded[:many], threads)
    files = [Path(path).read_bytes() for path in paths]
    ways[DECODER] = lambda: per_core([partial(decode, file, spec.resize) for file in files], threads)
    ways["Model.embed"] = lambda: model.embed(paths)
    ways["nngk classify"] = lambda: list(classify_each(model, paths))
    ways["features of nngk train"] = lambda: embed(network, images, crop)
    return ways


def measured(
    ways: dict[str, Callable[[], object]], rounds: int
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Return the seconds that each way took in each round, and the processors' time."""
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    busy: dict[str, list[float]] = {way: [] for way in ways}
    for round_number in range(1 + rounds):
        for way, work in ways.items():
            start, begun = time.perf_counter(), time.process_time()
            work()
            if round_number:  # the first one warms up
                seconds[way].append(time.perf_counter() - start)
                busy[way].append(time.process_time() - begun)
    return [seconds, busy]


def main() -> None:
    parser = benchmark_parser(__doc__, "results/cpu_inference.csv")
    parser.add_argument("--networks", nargs="+", default=["efficientnet-lite0", "resnet50"])
    parser.add_argument("--photos", type=int, default=64, help="How many photos, where they are generated.")
    parser.add_argument("--folder", type=Path, help="A folder of photos, in a folder for each class, in their place.")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--compile", action="store_true", help="Measure torch.compile as well, which takes minutes.")
    parser.add_argument("--kernels", choices=("plain", "avx2", "avx512"), help="What the compiled core computes with.")
    given = benchmark_options(parser)
    if given.kernels:
        os.environ["NNGK_KERNELS"] = given.kernels
    width, height = WIDTH, HEIGHT
    if given.quick:
        given.networks, given.photos, width, height = ["small"], 4, 64, 48
    torch.set_num_threads(given.threads)
    with tempfile.TemporaryDirectory() as home:
        folder = given.folder or Path(home)
        if given.folder is None:
            write_photos(folder, given.photos, width, height)
        files = sorted(folder.glob("*/*.jpg"))
        kilobytes = sum(file.stat().st_size for file in files) / len(files) / 1e3
        shape = {"photos": len(files), "width": width, "height": height, "kilobytes": round(kilobytes)}
        shape["kind"] = "generated" if given.folder is None else "real"
        for name in given.networks:
            ways = ways_of(model_of(name), folder, given.threads, given.compile)
            seconds, busy = measured(ways, 1 if given.quick else ROUNDS)
            fastest = [min(turn) for turn in zip(*(seconds[way] for way in ways if way.startswith(BARE)))]
            own = [way for way in (PYTORCH, PYTORCH + PER_CORE) if way in ways] or [BARE, BARE + PER_CORE]
            pytorch = [min(turn) for turn in zip(*(seconds[way] for way in own))]
            ceiling = statistics.median(a / (a + b) for a, b in zip(fastest, seconds[DECODER]))
            for way, taken in seconds.items():
                share = statistics.median(b / a for a, b in zip(taken, fastest))
                row = {"network": name, "way": way, "threads": given.threads, "rounds": len(taken)} | shape
                row["kernels"] = core() or "oneDNN"
                row["images_per_second"] = round(len(files) / statistics.median(taken), 2)
                row["of_bare_network"] = round(share, 3)
                row["of_pytorch"] = round(statistics.median(b / a for a, b in zip(taken, pytorch)), 3)
                row["ceiling"] = round(ceiling, 3)
                row["cpu_ms_per_image"] = round(1e3 * statistics.median(busy[way]) / len(files), 2)
                print(
                    f"{name:20} {way:45} {row['images_per_second']:>8} images/s, {share:.2f} of the bare network, "
                    f"{row['cpu_ms_per_image']:>7} ms of a core per image"
                )
                append_rows(given.out, [row | provenance("cpu", given.commit)])
            print(f"With libjpeg's decoder on the same cores {ceiling:.2f} of the bare network can be reached.")


if __name__ == "__main__":
    main()
