"""The page of the demonstration: curves, a map of the embeddings, answers with the images behind them."""

import base64
import io
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from nngk.errors import MissingExtra
from nngk.experiments.demo.digits import NEW, SHOWN, Demonstration
from nngk.files import write_atomically
from nngk.model.answers import Answer

COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#76b7b2", "#9c755f", "#edc948", "#86939e", "#e15759", "#d4267f")


def require_page() -> None:
    """Raise MissingExtra if the page cannot be written, before anything is trained for it."""
    for package in ("jinja2", "matplotlib"):
        if find_spec(package) is None:
            raise MissingExtra(package, "demo", "The page of the demonstration")


def write_page(demo: Demonstration, path: Path, seconds: float) -> None:
    """Write one self-contained HTML file."""
    require_page()
    from jinja2 import Environment

    template = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(
        files("nngk.experiments.demo").joinpath("page.html").read_text(encoding="utf-8")
    )
    html = template.render(
        scores=[(n, f"{v:.1%}", said) for (n, v), said in zip(demo.scores().items(), demo.sentences(), strict=True)],
        reliability=demo.reliability(),
        curves=curves(demo.log),
        tsne=embedding_map(demo),
        examples=examples(demo),
        new=NEW,
        shown=SHOWN,
        pictures=[thumbnail(demo.table.paths[row]) for row in demo.shown],
        seconds=round(seconds),
        centres=len(demo.model.centres),
        sigma=f"{demo.model.sigma:.3f}",
    )
    write_atomically(path, lambda part: part.write_text(html, encoding="utf-8"))


def curves(log: list[dict[str, Any]]) -> str:
    """Return loss and validation accuracy by epoch, as SVG."""
    plt = _pyplot()
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 2.7), constrained_layout=True)
    epochs = [row["epoch"] for row in log]
    left.plot(epochs, [row["loss"] for row in log], color=COLOURS[0], linewidth=2)
    left.set(title="training loss", xlabel="epoch", ylim=(0, None))
    right.plot(epochs, [100 * row["val_accuracy"] for row in log], color=COLOURS[2], linewidth=2)
    right.set(title="validation accuracy (%)", xlabel="epoch")
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25)
    return _svg(figure)


def embedding_map(demo: Demonstration) -> str:
    """Return the t-SNE of the asked images' embeddings, each drawn as its digit, as SVG."""
    from sklearn.manifold import TSNE

    plt = _pyplot()
    places = TSNE(perplexity=25, init="pca", random_state=0).fit_transform(demo.embeddings.numpy())
    figure, axis = plt.subplots(figsize=(8.4, 6.2), constrained_layout=True)
    for place, name in zip(places, demo.truth()):
        new = name in NEW
        axis.text(*place, name, color=COLOURS[int(name)], fontsize=11 if new else 8, ha="center", va="center")
        if new:
            axis.plot(*place, "o", markersize=13, markerfacecolor="none", color=COLOURS[int(name)], alpha=0.35)
    axis.set(xlim=_around(places[:, 0]), ylim=_around(places[:, 1]))
    axis.axis("off")
    return _svg(figure)


def examples(demo: Demonstration, each: int = 2) -> list[dict[str, Any]]:
    """Return answers worth looking at: some of the new digits, some of the trained ones, and the surest mistakes."""
    truth = demo.truth()
    right = [answer.label == name for answer, name in zip(demo.after, truth)]
    new = [i for i, name in enumerate(truth) if name in NEW and right[i]]
    old = [i for i, name in enumerate(truth) if name not in NEW and right[i]]
    # The least certain are the ones whose evidence is worth reading.
    uncertain = sorted(old, key=lambda i: demo.after[i].probability)
    wrong = sorted((i for i in range(len(truth)) if not right[i]), key=lambda i: -demo.after[i].probability)
    chosen = [*new[:each], *[i for i in new if i not in new[:each]][-each:], *uncertain[:each], *wrong[: 2 * each]]
    return [_example(demo, i, truth[i]) for i in chosen]


def _example(demo: Demonstration, i: int, truth: str) -> dict[str, Any]:
    answer: Answer = demo.after[i]
    return {
        "image": thumbnail(demo.table.paths[demo.asked[i]]),
        "truth": truth,
        "right": answer.label == truth,
        "label": answer.label,
        "probability": f"{answer.probability:.1%}",
        "before": f"{demo.before[i].label}, {demo.before[i].unknown:.2f} unknown" if truth in NEW else "",
        "evidence": [
            {
                "image": thumbnail(Path(e.image)),
                "label": e.label,
                "share": f"{e.share:.0%}",
                "same": e.label == answer.label,
            }
            for e in answer.evidence
        ],
    }


def thumbnail(path: Path, side: int = 64) -> str:
    """Return an image as a data address, enlarged without smoothing."""
    with Image.open(path) as image:
        small = image.convert("L").resize((side, side), Image.Resampling.NEAREST)
    buffer = io.BytesIO()
    small.save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def _around(values: np.ndarray) -> tuple[float, float]:
    margin = 0.03 * float(np.ptp(values)) + 1
    return float(values.min()) - margin, float(values.max()) + margin


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")  # a window is neither wanted nor always possible
    import matplotlib.pyplot as plt

    return plt


def _svg(figure: Any) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    _pyplot().close(figure)
    text = buffer.getvalue()
    return text[text.index("<svg") :]
