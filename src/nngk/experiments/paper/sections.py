"""What the report shows of each experiment, read from the results alone."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nngk.experiments.paper import maps, svg
from nngk.experiments.paper.distances import CURVE
from nngk.experiments.paper.results import experiment_rows
from nngk.experiments.paper.scores import SHOWN, Group, comparable, group_rows, published
from nngk.experiments.paper.tables import PRESET_NAMES, Table, build_tables, title_of
from nngk.experiments.paper.trial import Experiment
from nngk.experiments.record import Row, read_rows
from nngk.experiments.record.provenance import short_commit


@dataclass
class MapView:
    """An embedding as the page shows it."""

    title: str
    scores: str
    picture: str  # data URI, empty without scikit-learn
    dots: bytes  # PNG of dots, without anybody's pictures, for a repository
    sheet: str  # data URI of the gallery's pictures, empty where they are not at hand
    gallery: list[list[dict[str, Any]]]


@dataclass
class Section:
    """An experiment as the report shows it; without rows it says how to run it."""

    experiment: Experiment
    groups: list[Group]
    tables: list[Table] = field(default_factory=list)
    figures: dict[str, str] = field(default_factory=dict)  # name: SVG
    maps: list[MapView] = field(default_factory=list)
    headline: str = ""

    @property
    def rows(self) -> list[Row]:
        return [row for group in self.groups for row in group.rows]

    @property
    def command(self) -> str:
        return f"nngk paper run {self.experiment.name} --data DIR --weights DIR"

    @property
    def seconds(self) -> float:
        return total_seconds(self.rows)

    @property
    def commits(self) -> list[str]:
        """The commits behind the rows, the latest first."""
        return latest_commits(self.rows)

    @property
    def failures(self) -> list[str]:
        return list(dict.fromkeys(row["error"] for row in self.rows if row.get("error")))

    @property
    def quick(self) -> bool:
        return any(row.get("quick") for row in self.rows)


def total_seconds(rows: Iterable[Row]) -> float:
    """Return the seconds that runs and the choices for them took; a wide run that sizes were cut from counts once.

    >>> whole = {"key": "a", "seed": "0", "seconds": "90", "selection_seconds": "10"}
    >>> total_seconds([whole, {**whole, "key": "b", "seconds": "91", "wide_run": "a", "wide_seconds": "90"}])
    101.0
    """
    training: dict[tuple[str, str], float] = {}
    cuts = 0.0
    for row in rows:
        seconds = float(row.get("seconds") or 0)
        shared = float(row["wide_seconds"]) if row.get("wide_run") else seconds
        run = row.get("wide_run") or row["key"], row["seed"]
        training[run] = max(training.get(run, 0.0), shared + float(row.get("selection_seconds") or 0))
        cuts += seconds - shared
    return sum(training.values()) + cuts


def latest_commits(rows: Iterable[Row]) -> list[str]:
    """Return the commits behind rows, the latest first, as people read them.

    >>> latest_commits([{"commit": "0123456789ab+changes", "finished": "1"}, {"commit": "abc", "finished": "2"}])
    ['abc', '0123456789+changes']
    """
    latest = sorted(rows, key=lambda row: row.get("finished") or "", reverse=True)
    return list(dict.fromkeys(short_commit(row["commit"]) for row in latest if row.get("commit")))


def build_section(experiment: Experiment, results: Path) -> Section:
    """Return what the results say about one experiment."""
    groups = group_rows(experiment_rows(results, experiment.name))
    section = Section(experiment, groups)
    if not groups:
        return section
    section.tables = build_tables(experiment, groups)
    if experiment.view.kind == "curves":
        section.figures = svg.curve_figures(experiment, groups)
    elif experiment.view.kind == "distances":
        section.figures = svg.distance_figures(groups, read_rows(results / CURVE))
    elif experiment.view.kind == "embedding":
        section.maps = [view for group in groups if (view := _map_view(group, results, experiment)) is not None]
    section.headline = headline(section)
    return section


def headline(section: Section) -> str:
    """Return the figure of an experiment that a reader wants first: our best one, and the published one."""
    metric = section.experiment.view.metrics[0]
    scored = [(score, g) for g in section.groups if g.loss == "nngk" and (score := g.score(metric)) is not None]
    if not scored:
        return "no run has finished"
    score, group = max(scored, key=lambda pair: pair[0].mean)
    title = title_of(group.dataset)
    variant = group.variant.removeprefix(title).strip(", ")  # where the lines of a table are datasets
    what = [title, variant, f"{group.dim} dimensions" if group.dim else "", group.network, PRESET_NAMES[group.preset]]
    text = f"{SHOWN[metric]} {score} ({', '.join(w for w in what if w)})"
    where = {"dim": group.dim} if group.dim else {"variant": group.variant}
    for name in section.experiment.view.published or (section.experiment.name,):
        old = published(name, metric, method="nngk", dataset=group.dataset, **where)
        if old and comparable(group.network, old):
            text += f"; published {old['value']}"
    return text


def map_name(view: MapView) -> str:
    """Return the file name of a map, without its ending."""
    return "embedding-" + "-".join(word for word in view.title.lower().replace(",", "").split())


def _map_view(group: Group, results: Path, experiment: Experiment) -> MapView | None:
    content = maps.read_embedding(results, group)
    if content is None:
        return None
    xy = content.coordinates()
    everything, gallery_sheet = content.sheet("all"), content.sheet("gallery")
    dots = maps.dot_map(xy, content.labels) if xy is not None else None
    picture = (
        "" if xy is None or dots is None else maps.data_uri(maps.picture_map(xy, everything) if everything else dots)
    )
    scores = ", ".join(f"{SHOWN[m]} {group.score(m)}" for m in experiment.view.metrics if group.score(m))
    tiles = [
        [
            vars(found) | ({"at": maps.tile_position(found.tile, gallery_sheet)} if gallery_sheet else {})
            for found in row
        ]
        for row in content.gallery()
    ]
    return MapView(
        title=f"{title_of(group.dataset)}, {PRESET_NAMES[group.preset]}, {group.network}, {group.dim} dimensions",
        scores=f"{len(content.labels)} images of {int(content.labels.max()) + 1} unseen classes; {scores}",
        picture=picture,
        dots=maps.encoded(dots, "PNG") if dots is not None else b"",
        sheet=maps.data_uri(gallery_sheet) if gallery_sheet else "",
        gallery=tiles,
    )
