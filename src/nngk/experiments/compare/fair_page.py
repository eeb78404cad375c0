"""The page of a fair comparison: what every loss chose, its ranks by validation and by test, and the runs it had."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from nngk.experiments.compare.verdict import verdict
from nngk.experiments.record.seeds import Score, score_over_seeds

Row = dict[str, Any]
TESTED = ("recall@1", "map@r", "nmi")
UNIT = "unit_recall@1"  # of embeddings that training left at any length, scaled to one


@dataclass(frozen=True)
class Line:
    """A loss with settings and a start, as the page shows it."""

    loss: str
    whose: str
    start: str
    lr: float
    at_end: bool  # of the rates that were tried: a better one may lie beyond
    validation: float | None  # mean MAP@R over the folds at that rate
    tested: dict[str, Score]
    validation_runs: int
    test_runs: int

    @property
    def name(self) -> str:
        return f"{self.loss}, {'its own settings' if self.whose == 'own' else 'ours'}, {self.start}"


def fair_page(rows: Sequence[Row], rates: Sequence[float], folds: int, seeds: int) -> str:
    """Return the page, the entry with the best validation score first."""
    lines = sorted(_lines(rows), key=lambda line: -(line.validation or 0.0))
    facts = rows[0]
    preferred = list({line.loss: line for line in reversed(lines)}.values())[::-1]  # the best line of each loss
    shown = ", ".join(f"{rate:g}" for rate in rates)
    text = [
        f"# Losses compared on {facts['data']}",
        f"Network {facts['network']}, {facts['dim']} dimensions. Scores in per cent. Every entry chose its learning "
        f"rate from {shown}, and from further ones where the best lay at an end (*: it still does), by the mean MAP@R "
        f"over {folds} folds of validation classes at one seed. Test scores are means ± standard deviations over "
        f"{seeds} seed{'s' if seeds > 1 else ''}, trained on all classes that are not tested.",
        *_table(lines),
        "## Each loss as validation prefers it",
        "The settings and the start with the best validation score stand for each loss.",
        *_table(preferred),
        *(verdict({line.loss: line.tested for line in preferred}, m) for m in ("recall@1", "map@r")),
    ]
    failed = [f"- {_named(row)}: {row['error']}" for row in rows if "error" in row]
    return "\n\n".join([*text, *(["Runs that failed:\n" + "\n".join(failed)] if failed else [])]) + "\n"


def _lines(rows: Sequence[Row]) -> list[Line]:
    entries: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        entries.setdefault((row["loss"], row["settings_of"], row["start"]), []).append(row)
    return [_line(*entry, mine) for entry, mine in entries.items()]


def _line(loss: str, whose: str, start: str, rows: Sequence[Row]) -> Line:
    validated = [row for row in rows if row["part"] == "validation"]
    tested = [row for row in rows if row["part"] == "test"]
    tried = {lr: _mean([row for row in validated if row["lr"] == lr]) for lr in {row["lr"] for row in validated}}
    fit = {lr: score for lr, score in tried.items() if score is not None}
    best = max(fit, key=lambda lr: fit[lr]) if fit else min(tried)
    lr = tested[0]["lr"] if tested else best
    finished = [row for row in tested if "error" not in row]
    scores = {m: score_over_seeds([float(row[m]) for row in finished if m in row]) for m in (*TESTED, UNIT)}
    found = {metric: score for metric, score in scores.items() if score is not None}
    at_end = lr in (min(tried), max(tried))
    return Line(loss, whose, start, lr, at_end, fit.get(lr), found, len(validated), len(tested))


def _mean(rows: Iterable[Row]) -> float | None:
    """Return the mean score of the folds of a rate; None where one of them failed."""
    rows = list(rows)
    return None if any("error" in row for row in rows) else fmean(float(row["val_score"]) for row in rows)


def _table(lines: Sequence[Line]) -> list[str]:
    """Return the Markdown table of some entries, ranked among themselves."""
    ranks = [
        _ranks(lines, lambda line: line.validation),
        _ranks(lines, lambda line: _tested(line, "recall@1")),
        _ranks(lines, lambda line: _tested(line, "map@r")),
    ]
    head = [
        *("loss", "settings", "start", "rate", "validation MAP@R", "rank", "test R@1", "rank", "test MAP@R", "rank"),
        *("test NMI", "R@1 at unit length", "validation runs", "test runs"),
    ]
    body = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for place, line in enumerate(lines):
        recall, precision, nmi, unit = (str(line.tested.get(m, "–")) for m in (*TESTED, UNIT))
        validation = "–" if line.validation is None else f"{100 * line.validation:.2f}"
        cells = [line.loss, line.whose, line.start, f"{line.lr:g}{'*' if line.at_end else ''}", validation]
        cells += [ranks[0][place], recall, ranks[1][place], precision, ranks[2][place], nmi, unit]
        body.append("| " + " | ".join([*cells, str(line.validation_runs), str(line.test_runs)]) + " |")
    return ["\n".join(body)]


def _tested(line: Line, metric: str) -> float | None:
    return line.tested[metric].mean if metric in line.tested else None


def _ranks(lines: Sequence[Line], score: Callable[[Line], float | None]) -> list[str]:
    """Return the place of every line by a score, from 1; a dash where it has none."""
    values = [score(line) for line in lines]
    order = sorted((v for v in values if v is not None), reverse=True)
    return ["–" if v is None else str(order.index(v) + 1) for v in values]


def _named(row: Row) -> str:
    where = f"fold {row['fold']}" if row["part"] == "validation" else f"seed {row['seed']}"
    return f"{row['loss']}, {row['settings_of']}, {row['start']}, rate {row['lr']:g}, {where}"
