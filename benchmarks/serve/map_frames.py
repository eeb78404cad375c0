"""How fluid is the page's map of many images?

    python benchmarks/serve/map_frames.py [--points 50000] [--frames 120]

A server shows a model of made-up embeddings, and headless Chromium, which draws in software on the processor, moves the
map at every frame. Rows have the frames per second, those of the same page when nothing is drawn, and the
milliseconds that drawing took of each frame (the median), so that a slow machine can be told from a slow map. It needs
playwright and Chromium. Rows: results/map_frames.csv.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from playwright.sync_api import Page, sync_playwright

from nngk import Model, create_network
from nngk.experiments.record import append_rows, provenance
from nngk.experiments.record.benchmarks import benchmark_options, benchmark_parser

CLASSES, DIM = 100, 4
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
TIMED = """
window.drawings = [];
const before = window.requestAnimationFrame.bind(window);
window.requestAnimationFrame = (work) => before((now) => {
    const begun = performance.now();
    work(now);
    window.drawings.push(performance.now() - begun);
});
window.frame = () => new Promise(before);
"""
MOVED = """async ([frames, moves]) => {
    const canvas = document.getElementById("map-canvas");
    await frame();
    drawings.length = 0;
    const begun = performance.now();
    for (let count = 0; count < frames; count += 1) {
        if (moves) canvas.dispatchEvent(new KeyboardEvent("keydown", { key: count % 2 ? "ArrowLeft" : "ArrowRight" }));
        await frame();
    }
    return [1000 * frames / (performance.now() - begun), [...drawings]];
}"""


def write_model(points: int, folder: Path) -> None:
    """Write a model with that many centres of made-up classes."""
    luck = torch.Generator().manual_seed(0)
    labels = torch.arange(points) % CLASSES
    centres = 3 * torch.randn(CLASSES, DIM, generator=luck)[labels] + torch.randn(points, DIM, generator=luck)
    Model(
        create_network("small", dim=DIM, weights="random"),
        centres=centres,
        labels=labels,
        theta=torch.zeros(points),
        sigma=1.0,
        class_names=[f"class {i}" for i in range(CLASSES)],
        sources=[f"{i}.png" for i in range(points)],
        n_neighbours=20,
        device="cpu",
    ).save(folder)


def frames(page: Page, count: int, *, moves: bool) -> tuple[float, list[float]]:
    """Return the frames per second, and the milliseconds of each drawing."""
    rate, drawings = page.evaluate(MOVED, [count, moves])
    return rate, drawings


def main() -> None:
    parser = benchmark_parser(__doc__, "results/map_frames.csv")
    parser.add_argument("--points", type=int, default=50_000)
    parser.add_argument("--frames", type=int, default=120)
    given = benchmark_options(parser)
    if given.quick:
        given.points, given.frames = 500, 5
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or os.environ.get("CHROMIUM")
    with tempfile.TemporaryDirectory() as home, sync_playwright() as playwright:
        write_model(given.points, Path(home, "model"))
        server = subprocess.Popen(
            [sys.executable, "-m", "nngk", "serve", str(Path(home, "model")), "--port", "0", "--device", "cpu"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert server.stdout is not None
        address = server.stdout.readline().split(" at ")[1].strip()
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        page = browser.new_page(viewport={"width": 1100, "height": 900})
        page.add_init_script(TIMED)
        page.goto(f"{address}#map")
        page.get_by_text(f"{given.points} images of {CLASSES} classes.").wait_for(timeout=120_000)
        empty, _ = frames(page, given.frames, moves=False)
        rate, drawings = frames(page, given.frames, moves=True)
        box = page.locator("#map-canvas").bounding_box() or {}
        browser.close()
        server.terminate()
        server.wait(60)
        server.stdout.close()
    row = {"points": given.points, "width": round(box["width"]), "height": round(box["height"])}
    row |= {"frames": given.frames, "frames_per_second": round(rate, 1), "empty_frames_per_second": round(empty, 1)}
    row |= {"drawing_ms": round(float(np.median(drawings)), 2)}
    append_rows(given.out, [row | provenance("cpu", given.commit)])
    print(
        f"{given.points} points: {rate:.1f} frames per second ({empty:.1f} with nothing drawn), "
        f"{row['drawing_ms']} ms of each for drawing"
    )


if __name__ == "__main__":
    main()
