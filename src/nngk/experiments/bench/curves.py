"""Plots of measured search engines."""

from pathlib import Path
from typing import Any

from nngk.errors import MissingExtra


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise MissingExtra("matplotlib", "demo", "The plot of the benchmark") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def plot_queries(rows: list[dict[str, Any]], path: Path) -> None:
    """Recall against queries per second, a line an engine, a panel a k; for FANNG also its distance computations."""
    pyplot = _pyplot()
    measured = [row for row in rows if row["task"] == "queries"]
    ks = sorted({int(row["k"]) for row in measured})
    if not ks:
        return
    figure, panels = pyplot.subplots(1, len(ks) + 1, figsize=(5 * (len(ks) + 1), 4), squeeze=False)
    for panel, k in zip(panels[0], ks):
        for engine in dict.fromkeys(row["engine"] for row in measured):
            line = [row for row in measured if row["engine"] == engine and int(row["k"]) == k]
            panel.plot(
                [float(row["recall"]) for row in line],
                [float(row["queries_per_second"]) for row in line],
                ".-",
                label=engine,
            )
        panel.set(xlabel=f"recall@{k}", ylabel="queries/s", yscale="log", xlim=(0.8, 1.005), title=f"k = {k}")
        panel.legend()
    for k in ks:
        line = [row for row in measured if row["engine"] == "fanng" and int(row["k"]) == k]
        panels[0][-1].plot(
            [float(row["recall"]) for row in line],
            [float(row["distances_per_query"]) for row in line],
            ".-",
            label=f"k = {k}",
        )
    panels[0][-1].set(xlabel="recall", ylabel="distance computations a query", yscale="log", title="FANNG")
    panels[0][-1].legend()
    figure.suptitle(f"{measured[0]['n']:,} points of {measured[0]['dim']} dimensions, {measured[0]['threads']} threads")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def plot_growth(rows: list[dict[str, Any]], path: Path) -> None:
    """Seconds for the lists of all points against their number."""
    pyplot = _pyplot()
    figure, panel = pyplot.subplots(figsize=(6, 4))
    for engine, kind in dict.fromkeys((row["engine"], row.get("family")) for row in rows):
        line = sorted(
            (int(row["n"]), float(row["seconds"]))
            for row in rows
            if (row["engine"], row.get("family")) == (engine, kind)
        )
        panel.plot([n for n, _ in line], [s for _, s in line], ".-", label=f"{engine}, {kind}" if kind else engine)
    panel.set(xlabel="points", ylabel="seconds", xscale="log", yscale="log", title="neighbours of all points")
    panel.legend()
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
