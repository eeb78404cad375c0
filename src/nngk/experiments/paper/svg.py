"""The curves of the report as SVG."""

import io
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from nngk.errors import MissingExtra
from nngk.experiments.paper.scores import SHOWN, Group, published_rows
from nngk.experiments.paper.tables import PRESET_NAMES, along, title_of
from nngk.experiments.paper.trial import Experiment
from nngk.experiments.record import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {"paper": "#2f6db3", "best": "#c2492f", "frozen": "#3f8f5f", "published": "#77808c"}
STYLES = {"softmax": ("--", "s"), "triplet-semihard": ("-.", "^"), "lifted-structure": ("--", "v")}
ALL = 24  # the place of 'all images' on the axis of images per class: the mean of the birds' training part


def curve_figures(experiment: Experiment, groups: list[Group]) -> dict[str, str]:
    """Return an SVG per dataset of an experiment: a panel per metric, a line per preset, loss and network."""
    return {
        f"{experiment.name}-{dataset}": _curves(experiment, [g for g in groups if g.dataset == dataset], dataset)
        for dataset in dict.fromkeys(g.dataset for g in groups if g.seeds)
    }


def _curves(experiment: Experiment, groups: list[Group], dataset: str) -> str:
    view = experiment.view
    figure = _figure(len(view.metrics))
    axes = figure.subplots(1, len(view.metrics), squeeze=False)[0]
    for axis, metric in zip(axes, view.metrics):
        _printed_line(axis, experiment, dataset, metric)
        for preset, loss, network in dict.fromkeys((g.preset, g.loss, g.network) for g in groups):
            line = [g for g in groups if (g.preset, g.loss, g.network) == (preset, loss, network) and g.score(metric)]
            _line(axis, sorted(line, key=lambda g: along(g, view.x)), metric, view.x)
        _axes(axis, view.label, f"{SHOWN[metric]} (%)", view.x != "examples")
    # Below the panels: inside, it would lie on one line or another.
    columns = 4 if len(axes) > 1 else 2
    figure.legend(
        *axes[0].get_legend_handles_labels(), loc="outside lower left", ncols=columns, frameon=False, fontsize=8
    )
    figure.suptitle(title_of(dataset), fontsize=11, x=0.01, ha="left")
    return to_svg(figure, f"{experiment.name}-{dataset}")


def _line(axis: "Axes", groups: list[Group], metric: str, x: str) -> None:
    if not groups:
        return
    first = groups[0]
    places = [min(along(g, x), ALL) if x == "examples" else along(g, x) for g in groups]
    scores = [g.score(metric) for g in groups]
    label = f"{PRESET_NAMES[first.preset]}, {first.loss}, {first.network}"
    axis.errorbar(
        places,
        [100 * s.mean for s in scores if s],
        yerr=[100 * (s.deviation or 0) for s in scores if s],
        label=label,
        color=COLOURS[first.preset],
        linestyle=STYLES.get(first.loss, ("-", "o"))[0],
        marker=STYLES.get(first.loss, ("-", "o"))[1],
        markersize=4,
        linewidth=1.6,
        capsize=2.5,
    )


def _printed_line(axis: "Axes", experiment: Experiment, dataset: str, metric: str) -> None:
    rows = [
        r
        for r in published_rows()
        if r["experiment"] in (experiment.view.published or (experiment.name,))
        and (r["dataset"], r["method"], r["metric"]) == (dataset, "nngk", metric)
        and r[experiment.view.x if experiment.view.x in r else "dim"]
    ]
    if rows:
        label = f"published, {rows[0]['network']}"
        places, values = ([float(r[column]) for r in rows] for column in ("dim", "value"))
        axis.plot(places, values, color=COLOURS["published"], linestyle=":", marker="D", markersize=4, label=label)


def distance_figures(groups: list[Group], curves: list[Row]) -> dict[str, str]:
    """Return SVGs of mean distance and mean kernel value by rank, with a line per epoch that was looked at."""
    out = {}
    for g in groups:
        mine = [row for row in curves if row["key"] == g.rows[0]["key"]]
        if not mine:
            continue
        figure = _figure(2)
        axes = figure.subplots(1, 2)
        epochs = sorted({int(row["epoch"]) for row in mine})
        for number, epoch in enumerate(epochs):
            points = [row for row in mine if int(row["epoch"]) == epoch]
            for axis, column in zip(axes, ("distance", "kernel")):
                shade = _shade(number / max(1, len(epochs) - 1))
                ranks, values = ([float(row[c]) for row in points] for c in ("rank", column))
                axis.plot(ranks, values, color=shade, linewidth=1.6, label=f"epoch {epoch}" if epoch else "before")
        for axis, label in zip(axes, ("mean distance", "mean kernel value")):
            _axes(axis, "nearest centre, by rank", label, False)
            axis.set_ylim(bottom=0)
        axes[1].legend(frameon=False, fontsize=8)
        figure.suptitle(f"{title_of(g.dataset)}, {PRESET_NAMES[g.preset]}, {g.network}", fontsize=11, x=0.01, ha="left")
        name = f"distances-{g.dataset}-{g.preset}-{g.network}"
        out[name] = to_svg(figure, name)
    return out


def _shade(share: float) -> Any:
    from matplotlib import colormaps

    return colormaps["viridis"](0.9 - 0.85 * share)


def _axes(axis: "Axes", x: str, y: str, logarithmic: bool) -> None:
    axis.set_xlabel(x)
    axis.set_ylabel(y)
    if logarithmic:
        axis.set_xscale("log", base=2)
        places = np.unique(np.concatenate([np.asarray(line.get_xdata(), dtype=float) for line in axis.get_lines()]))
        axis.set_xticks(places, [f"{place:g}" for place in places])
        axis.minorticks_off()
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)


def _figure(panels: int) -> "Figure":
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("matplotlib", "demo", "The report") from None
    return Figure(figsize=(3.7 * max(panels, 1) + (2.6 if panels == 1 else 0), 3.6), layout="constrained")


def to_svg(figure: "Figure", name: str) -> str:
    """Return the figure as an SVG element, the same bytes for the same figure."""
    import matplotlib

    text = io.StringIO()
    # Names inside an SVG are shared by the whole page: a salt of its own keeps figures apart.
    with matplotlib.rc_context({"svg.hashsalt": name, "font.size": 9}):
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    return re.sub(r"^.*?(?=<svg)", "", text.getvalue(), flags=re.DOTALL)
