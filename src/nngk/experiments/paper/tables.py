"""The tables of the report, whatever form they are written in."""

from dataclasses import dataclass, field

from nngk.data import DATASETS
from nngk.experiments.paper.scores import SHOWN, Group, comparable, published, published_rows
from nngk.experiments.paper.trial import Experiment
from nngk.experiments.record import Row
from nngk.experiments.record.seeds import Score

PRESET_NAMES = {"paper": "paper preset", "best": "our recipe", "frozen": "our recipe, network frozen"}


@dataclass
class Cell:
    """A figure, its difference from the published one, and whether that is for the better."""

    text: str
    note: str = ""
    tone: str = ""  # 'up' or 'down'
    number: bool = True


@dataclass
class Table:
    """Rows of cells under a head; ``kinds`` says whose each row is: 'rival', 'published', 'paper' or 'best'."""

    caption: str
    head: list[str]
    rows: list[list[Cell]] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)

    def add(self, kind: str, cells: list[Cell]) -> None:
        self.rows.append(cells)
        self.kinds.append(kind)


def text_cell(text: str) -> Cell:
    """Return a cell of words."""
    return Cell(text, number=False)


def score_cell(score: Score | None, printed: Row | None = None) -> Cell:
    """Return a cell with a mean, its deviation and the difference from a printed figure.

    >>> score_cell(Score(0.6, None, 1), {"value": "58.5"})
    Cell(text='60.00', note='+1.50', tone='up', number=True)
    """
    if score is None:
        return Cell("–")
    if printed is None:
        return Cell(str(score))
    difference = 100 * score.mean - float(printed["value"])
    return Cell(str(score), f"{difference:+.2f}", "up" if difference >= 0 else "down")


def build_tables(experiment: Experiment, groups: list[Group]) -> list[Table]:
    """Return the tables of an experiment, from the runs that there are."""
    if experiment.view.kind == "retrieval":
        return [_retrieval(experiment, groups, dataset) for dataset in dict.fromkeys(g.dataset for g in groups)]
    if experiment.view.kind == "losses":
        return [_losses(experiment, groups, preset) for preset in _presets(groups)]
    if experiment.view.kind == "variants":
        return [_variants(experiment, groups)]
    if experiment.view.kind == "curves":
        return [_points(experiment, groups, dataset) for dataset in dict.fromkeys(g.dataset for g in groups)]
    return []


def _presets(groups: list[Group]) -> list[str]:
    return [preset for preset in PRESET_NAMES if any(g.preset == preset for g in groups)]


def title_of(dataset: str) -> str:
    """Return the name of a dataset as people write it."""
    return DATASETS[dataset].title if dataset in DATASETS else dataset


def _failed(group: Group) -> str:
    return "" if group.seeds else "failed"


def _retrieval(experiment: Experiment, groups: list[Group], dataset: str) -> Table:
    """Return the other methods first, then size by size the published figures and ours under them."""
    metrics = experiment.view.metrics
    table = Table(title_of(dataset), ["", "size", "network", *(SHOWN[m] for m in metrics), "seeds"])
    printed = [r for r in published_rows() if r["experiment"] == experiment.name]
    for method in dict.fromkeys(r["method"] for r in printed if r["method"] != "nngk"):
        mine = {r["metric"]: r for r in printed if r["method"] == method}
        cells = [Cell(mine[m]["value"] if m in mine else "") for m in metrics]
        table.add("rival", [text_cell(f"{method}, published"), Cell("64"), text_cell("GoogLeNet"), *cells, Cell("")])
    ours = [g for g in groups if g.dataset == dataset]
    sizes = {r["dim"] for r in printed if r["method"] == "nngk"} | {g.dim for g in ours}
    for dim in sorted(sizes, key=int):
        row = {m: published(experiment.name, m, method="nngk", dim=dim) for m in metrics}
        if any(row.values()):
            cells = [Cell(found["value"] if found else "") for found in row.values()]
            table.add("published", [text_cell("NNGK, published"), Cell(dim), text_cell("GoogLeNet"), *cells, Cell("")])
        for g in sorted((g for g in ours if g.dim == dim), key=lambda g: (g.network, g.preset != "paper")):
            cells = [score_cell(g.score(m), _if_comparable(g, row[m])) for m in metrics]
            head = [text_cell(PRESET_NAMES[g.preset]), Cell(dim), text_cell(g.network)]
            table.add(g.preset, [*head, *cells, Cell(_failed(g) or str(g.seeds))])
    return table


def _if_comparable(group: Group, row: Row | None) -> Row | None:
    return row if row is not None and comparable(group.network, row) else None


def _losses(experiment: Experiment, groups: list[Group], preset: str) -> Table:
    """Return softmax and kernels side by side, with the gain of each pair, the published figures beside ours."""
    head = ["", "softmax, published", "NNGK, published", "gain", "network", "softmax", "NNGK", "gain", "seeds"]
    table = Table(PRESET_NAMES[preset].capitalize(), head)
    mine = [g for g in groups if g.preset == preset]
    printed = [r["variant"] for r in published_rows() if r["experiment"] == experiment.name]
    for variant in dict.fromkeys([*printed, *(g.variant for g in mine)]):
        old = [published(experiment.name, "accuracy", variant=variant, method=m) for m in ("softmax", "nngk")]
        left = [Cell(row["value"] if row else "") for row in old]
        gain = f"{float(old[1]['value']) - float(old[0]['value']):+.2f}" if old[0] and old[1] else ""
        for network in dict.fromkeys(g.network for g in mine if g.variant == variant) or [""]:
            pair = {g.loss: g for g in mine if (g.variant, g.network) == (variant, network)}
            scores = [pair[m].score("accuracy") if m in pair else None for m in ("softmax", "nngk")]
            seeds = ", ".join(dict.fromkeys(str(g.seeds) for g in pair.values()))
            right = [
                score_cell(s, r if network and r and comparable(network, r) else None) for s, r in zip(scores, old)
            ]
            cells = [text_cell(variant), *left, Cell(gain), text_cell(network or "not run"), *right]
            table.add(preset if network else "rival", [*cells, _gain(*scores), Cell(seeds)])
    return table


def _gain(softmax: Score | None, nngk: Score | None) -> Cell:
    if softmax is None or nngk is None:
        return Cell("")
    difference = 100 * (nngk.mean - softmax.mean)
    return Cell(f"{difference:+.2f}", tone="up" if difference >= 0 else "down")


def _variants(experiment: Experiment, groups: list[Group]) -> Table:
    columns = list(dict.fromkeys((g.preset, g.network) for g in groups))
    columns.sort(key=lambda c: c[0] != "paper")
    names = [f"{PRESET_NAMES[preset]}, {network}" for preset, network in columns]
    printed = [r for r in published_rows() if r["experiment"] == experiment.name]
    table = Table("Accuracy", ["", f"published, {printed[0]['network']}", *names])
    for variant in dict.fromkeys([*(r["variant"] for r in printed), *(g.variant for g in groups)]):
        old = published(experiment.name, "accuracy", variant=variant)
        cells = []
        for preset, network in columns:
            found = [g for g in groups if (g.preset, g.network, g.variant) == (preset, network, variant)]
            cells.append(score_cell(found[0].score("accuracy"), _if_comparable(found[0], old)) if found else Cell("–"))
        table.add("best", [text_cell(variant), Cell(old["value"] if old else ""), *cells])
    return table


def _points(experiment: Experiment, groups: list[Group], dataset: str) -> Table:
    """Return the points of a figure, for readers who want the numbers."""
    view = experiment.view
    table = Table(title_of(dataset), [view.label, "", "network", "loss", *(SHOWN[m] for m in view.metrics), "seeds"])
    for g in sorted((g for g in groups if g.dataset == dataset), key=lambda g: (g.preset, g.loss, along(g, view.x))):
        shown = g.facts[view.x] or g.variant
        head = [Cell(shown), text_cell(PRESET_NAMES[g.preset]), text_cell(g.network), text_cell(g.loss)]
        table.add(g.preset, [*head, *(score_cell(g.score(m)) for m in view.metrics), Cell(_failed(g) or str(g.seeds))])
    return table


def along(group: Group, column: str) -> float:
    """Return the place of a group on the axis of a figure; 'all' examples come last."""
    value = group.facts[column]
    return float(value) if value else float("inf")
