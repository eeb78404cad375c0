"""What a comparison says: a CSV of its runs, a Markdown table, a plot, and which differences are within noise."""

import csv
import io
import math
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

from nngk.files import write_atomically
from nngk.progress import say

SHOWN = {
    "metric": ("recall@1", "recall@2", "recall@4", "recall@8", "map@r", "nmi"),
    "classify": ("accuracy", "top5_accuracy", "calibration_error", "recall@1", "map@r"),
}
PRIMARY = {"metric": "recall@1", "classify": "accuracy"}
LESS_IS_MORE = {"calibration_error"}
# Two-sided 95% points of Student's t, by degrees of freedom; between two of them the smaller, which claims less.
STUDENT = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 8: 2.306, 10: 2.228, 15: 2.131, 30: 2.042}


class Score(NamedTuple):
    """Mean and standard deviation over seeds; no deviation from one seed."""

    mean: float
    deviation: float | None
    seeds: int

    def __str__(self) -> str:
        spread = "" if self.deviation is None else f" ± {100 * self.deviation:.2f}"
        return f"{100 * self.mean:.2f}{spread}"


def summarise(rows: list[dict[str, Any]], metrics: tuple[str, ...]) -> dict[str, dict[str, Score]]:
    """Scores of every loss, over its seeds that finished.

    >>> rows = [{"loss": "a", "nmi": 0.5}, {"loss": "a", "nmi": 0.7}]
    >>> str(summarise(rows, ("nmi",))["a"]["nmi"])
    '60.00 ± 14.14'
    """
    out: dict[str, dict[str, Score]] = {}
    for loss in dict.fromkeys(row["loss"] for row in rows):
        mine = [row for row in rows if row["loss"] == loss and "error" not in row]
        scores = {}
        for metric in metrics:
            values = [float(row[metric]) for row in mine if metric in row]
            if values:
                scores[metric] = Score(fmean(values), stdev(values) if len(values) > 1 else None, len(values))
        out[loss] = scores
    return out


def within_noise(a: Score, b: Score) -> bool | None:
    """Whether Welch's test at 95% sees no difference between two means; None where there is one seed only.

    >>> within_noise(Score(0.5, 0.01, 3), Score(0.51, 0.01, 3)), within_noise(Score(0.5, 0.01, 3), Score(0.6, 0.01, 3))
    (True, False)
    """
    if a.deviation is None or b.deviation is None:
        return None
    parts = [s.deviation**2 / s.seeds for s in (a, b) if s.deviation is not None]
    variance = sum(parts)
    if variance == 0:
        return a.mean == b.mean
    freedom = variance**2 / sum(part**2 / (s.seeds - 1) for part, s in zip(parts, (a, b)))
    critical = STUDENT[max(df for df in STUDENT if df <= max(1.0, freedom))]
    return abs(a.mean - b.mean) <= critical * math.sqrt(variance)


def verdict(scores: dict[str, dict[str, Score]], metric: str) -> str:
    """One paragraph: who is best by ``metric``, who cannot be told from it, and who is behind."""
    found = {loss: mine[metric] for loss, mine in scores.items() if metric in mine}
    if len(found) < 2:
        return f"There is nothing to compare by {metric}."
    best = max(found, key=lambda loss: found[loss].mean)
    text = f"By {metric}, '{best}' is highest with {found[best]}."
    others = {loss: within_noise(found[best], score) for loss, score in found.items() if loss != best}
    near = [loss for loss, noise in others.items() if noise]
    behind = [loss for loss, noise in others.items() if noise is False]
    unknown = [loss for loss, noise in others.items() if noise is None]
    if near:
        text += f" Within noise of it (Welch's test at 95%, degrees of freedom rounded down): {', '.join(near)}."
    if behind:
        text += f" Behind it by more than noise: {', '.join(behind)}."
    if unknown:
        text += f" One seed does not tell whether the difference from {', '.join(unknown)} is more than noise."
    if best != "nngk" and "nngk" in found:
        gap = 100 * (found[best].mean - found["nngk"].mean)
        text += f" 'nngk' is {gap:.2f} points below."
    return text


def markdown(rows: list[dict[str, Any]], task: str) -> str:
    """The table, best loss first, and what can be said of it."""
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
        "in per cent, mean ± standard deviation over seeds; the epoch is chosen by validation, and the test part is "
        "looked at once a run.\n"
    )
    failed = [f"- {row['loss']}, seed {row['seed']}: {row['error']}" for row in rows if "error" in row]
    tail = [verdict(scores, metric) for metric in (primary, "map@r") if metric in metrics]
    if failed:
        tail += ["Runs that failed:\n" + "\n".join(failed)]
    return head + "\n" + "\n".join(lines) + "\n\n" + "\n\n".join(tail) + "\n"


def write_report(folder: Path, rows: list[dict[str, Any]], task: str) -> None:
    """``runs.csv``, ``comparison.md`` and, where matplotlib is installed, ``comparison.png``."""
    table = io.StringIO()
    writer = csv.DictWriter(table, list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    text = markdown(rows, task)
    write_atomically(folder / "runs.csv", lambda part: part.write_text(table.getvalue(), encoding="utf-8"))
    write_atomically(folder / "comparison.md", lambda part: part.write_text(text, encoding="utf-8"))
    try:
        write_atomically(folder / "comparison.png", lambda part: plot(rows, task, part))
    except ImportError:
        say("No plot without matplotlib: pip install 'nngk[demo]'.")


def plot(rows: list[dict[str, Any]], task: str, path: Path) -> None:
    """Mean and deviation of the main scores, with the seeds as grey dots."""
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
