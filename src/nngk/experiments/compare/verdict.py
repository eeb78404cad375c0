"""What a comparison says: a CSV of its runs, a Markdown table, a plot, and which differences are within noise."""

import math
from pathlib import Path
from statistics import fmean
from typing import Any

from nngk.errors import MissingExtra
from nngk.experiments.record.csv_rows import write_rows
from nngk.experiments.record.seeds import Score, score_over_seeds, within_noise
from nngk.files import write_atomically
from nngk.progress import say

SHOWN = {
    "metric": ("recall@1", "recall@2", "recall@4", "recall@8", "map@r", "nmi"),
    "classify": ("accuracy", "top5_accuracy", "calibration_error", "recall@1", "map@r"),
}
PRIMARY = {"metric": "recall@1", "classify": "accuracy"}
LESS_IS_MORE = {"calibration_error"}


def summarise(rows: list[dict[str, Any]], metrics: tuple[str, ...]) -> dict[str, dict[str, Score]]:
    """Return the scores of every loss, over its seeds that finished.

    >>> rows = [{"loss": "a", "nmi": 0.5}, {"loss": "a", "nmi": 0.7}]
    >>> str(summarise(rows, ("nmi",))["a"]["nmi"])
    '60.00 ± 14.14'
    """
    out: dict[str, dict[str, Score]] = {}
    for loss in dict.fromkeys(row["loss"] for row in rows):
        mine = [row for row in rows if row["loss"] == loss and "error" not in row]
        found = {m: score_over_seeds([float(row[m]) for row in mine if m in row]) for m in metrics}
        out[loss] = {metric: score for metric, score in found.items() if score is not None}
    return out


def verdict(scores: dict[str, dict[str, Score]], metric: str) -> str:
    """Return a paragraph: which loss is best by ``metric``, which cannot be told from it, and which are behind."""
    found = {loss: mine[metric] for loss, mine in scores.items() if metric in mine}
    if len(found) < 2:
        return f"There is nothing to compare by {metric}."
    best = max(found, key=lambda loss: found[loss].mean)
    text = f"By {metric}, '{best}' is highest with {found[best]}."
    try:
        others = {loss: within_noise(found[best], score) for loss, score in found.items() if loss != best}
    except MissingExtra as error:
        return f"{text} {error}"
    near = [loss for loss, noise in others.items() if noise]
    behind = [loss for loss, noise in others.items() if noise is False]
    unknown = [loss for loss, noise in others.items() if noise is None]
    if near:
        text += f" Within noise of it (Welch's test at 95%): {', '.join(near)}."
    if behind:
        text += f" Behind it by more than noise: {', '.join(behind)}."
    if unknown:
        text += f" One seed does not tell whether the difference from {', '.join(unknown)} is more than noise."
    if best != "nngk" and "nngk" in found:
        gap = 100 * (found[best].mean - found["nngk"].mean)
        text += f" 'nngk' is {gap:.2f} points below."
    return text


def markdown(rows: list[dict[str, Any]], task: str) -> str:
    """Return the table, best loss first, and the verdict on it."""
    metrics = tuple(m for m in SHOWN[task] if any(m in row for row in rows))
    scores = summarise(rows, metrics)
    primary = PRIMARY[task]
    order = sorted(scores, key=lambda loss: -scores[loss][primary].mean if primary in scores[loss] else math.inf)
    best = {m: _best([scores[loss][m] for loss in order if m in scores[loss]], m) for m in metrics}
    lines = [
        "| loss | " + " | ".join(metrics) + " | learning rate | seconds | seeds |",
        "|---" * (len(metrics) + 4) + "|",
    ]
    for loss in order:
        mine = [row for row in rows if row["loss"] == loss]
        finished = [row for row in mine if "error" not in row]
        cells = [_cell(scores[loss].get(m), best[m]) for m in metrics]
        rates = ", ".join(dict.fromkeys(f"{row['lr']:g}" for row in mine))
        seconds = f"{fmean(row['seconds'] for row in finished):.0f}" if finished else "–"
        count = f"{len(finished)}" + (f" of {len(mine)}" if len(finished) < len(mine) else "")
        lines.append(f"| {loss} | " + " | ".join(cells) + f" | {rates} | {seconds} | {count} |")
    facts = rows[0]
    head = (
        f"# Losses compared on {facts['data']}\n\nNetwork {facts['network']}, {facts['dim']} dimensions. Test scores "
        "in per cent, mean ± standard deviation over seeds; the epoch and the rate are chosen by validation, and "
        "the test part is scored at the end of each run.\n"
    )
    failed = [f"- {row['loss']}, seed {row['seed']}: {row['error']}" for row in rows if "error" in row]
    tail = [verdict(scores, metric) for metric in (primary, "map@r") if metric in metrics]
    if failed:
        tail += ["Runs that failed:\n" + "\n".join(failed)]
    return head + "\n" + "\n".join(lines) + "\n\n" + "\n\n".join(tail) + "\n"


def write_verdict(folder: Path, rows: list[dict[str, Any]], task: str) -> None:
    """Write ``runs.csv``, ``comparison.md`` and, where matplotlib is installed, ``comparison.png``."""
    text = markdown(rows, task)
    write_rows(folder / "runs.csv", rows)
    write_atomically(folder / "comparison.md", lambda part: part.write_text(text, encoding="utf-8"))
    try:
        write_atomically(folder / "comparison.png", lambda part: plot(rows, task, part))
    except ImportError:
        say("No plot without matplotlib: pip install 'nngk[demo]'.")


def plot(rows: list[dict[str, Any]], task: str, path: Path) -> None:
    """Draw mean and deviation of the main scores, with the seeds as grey dots."""
    from matplotlib.figure import Figure

    metrics = [m for m in (PRIMARY[task], "map@r", "nmi") if any(m in row for row in rows)]
    scores = summarise(rows, tuple(metrics))
    order = sorted(
        (loss for loss in scores if scores[loss]), key=lambda loss: scores[loss][metrics[0]].mean if metrics else 0
    )
    figure = Figure(figsize=(4 * max(1, len(metrics)), 1 + 0.35 * len(order)), layout="constrained")
    axes = figure.subplots(1, max(1, len(metrics)), sharey=True, squeeze=False)[0]
    for axis, metric in zip(axes, metrics):
        for place, loss in enumerate(order):
            score, colour = scores[loss][metric], "#c44e52" if loss == "nngk" else "#4c72b0"
            dots = [100 * row[metric] for row in rows if row["loss"] == loss and metric in row]
            axis.plot(dots, [place] * len(dots), ".", color="#aaaaaa", markersize=5)
            # Points, not bars: the axis need not begin at zero.
            axis.errorbar(100 * score.mean, place, xerr=100 * (score.deviation or 0), fmt="o", color=colour, capsize=3)
        axis.set_yticks(range(len(order)), order)
        axis.grid(axis="x", alpha=0.3)
        axis.set_xlabel(f"{metric} (%)")
    figure.savefig(path, format="png", dpi=150)


def _best(scores: list[Score], metric: str) -> float:
    means = [score.mean for score in scores]
    return min(means) if metric in LESS_IS_MORE else max(means)


def _cell(score: Score | None, best: float) -> str:
    if score is None:
        return "–"
    return f"**{score}**" if score.mean == best else str(score)
