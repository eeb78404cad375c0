"""Drawings of a report as SVG, in the colours that the page gives them, light or dark."""

from collections.abc import Sequence
from html import escape

import numpy as np

from nngk.errors import printable

WIDE, HIGH, LEFT, BELOW = 420, 200, 46, 30


def safe(text: str) -> str:
    """Return a text from outside for the page: no markup, and nothing that changes the direction of the text."""
    return escape(printable(text), quote=True)


def curve(title: str, xs: Sequence[float], ys: Sequence[float], percent: bool = False) -> str:
    """Return a line over epochs."""
    low, high = min(0.0, *ys) if not percent else min(ys), max(ys)
    low, high = (low, high) if high > low else (low - 0.5, high + 0.5)
    across = (max(xs) - min(xs)) or 1
    places = [
        (
            LEFT + (x - min(xs)) / across * (WIDE - LEFT - 12),
            HIGH - BELOW - (y - low) / (high - low) * (HIGH - BELOW - 16),
        )
        for x, y in zip(xs, ys)
    ]
    path = " ".join(f"{'L' if i else 'M'}{x:.1f},{y:.1f}" for i, (x, y) in enumerate(places))
    ticks = "".join(
        _text(
            LEFT - 6, HIGH - BELOW - part * (HIGH - BELOW - 16) + 4, _number(low + part * (high - low), percent), "end"
        )
        + _line(LEFT, HIGH - BELOW - part * (HIGH - BELOW - 16), WIDE - 12)
        for part in (0.0, 0.5, 1.0)
    )
    ends = _text(LEFT, HIGH - 8, f"{min(xs):g}", "start") + _text(WIDE - 12, HIGH - 8, f"epoch {max(xs):g}", "end")
    dots = "".join(f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>' for x, y in places)
    return _svg(title, WIDE, HIGH, f'{ticks}{ends}<path class="line" d="{path}"/>{dots}')


def histogram(title: str, values: np.ndarray, threshold: float, bins: int = 40) -> str:
    """Return how often values from 0 to 1 occur, those beyond a threshold in another colour, and the threshold."""
    counts, edges = np.histogram(values, bins=bins, range=(0.0, 1.0))
    wide, high = 2 * WIDE, HIGH
    step, most = (wide - 24) / bins, max(1, int(counts.max()))
    bars = ""
    for count, edge in zip(counts.tolist(), edges.tolist()):
        tall = count / most * (high - BELOW - 24)
        kind = "beyond" if edge + 1e-9 >= threshold else "within"
        x, y = 12 + edge * (wide - 24), high - BELOW - tall
        bars += f'<rect class="{kind}" x="{x + 1:.1f}" y="{y:.1f}" width="{step - 2:.1f}" height="{tall:.1f}"/>'
    at = 12 + threshold * (wide - 24)
    mark = f'<line class="mark" x1="{at:.1f}" y1="6" x2="{at:.1f}" y2="{high - BELOW}"/>'
    mark += _text(at + 6, 16, "threshold", "start")
    ends = _text(12, high - 8, "0: familiar", "start") + _text(wide - 12, high - 8, "1: unlike everything known", "end")
    return _svg(title, wide, high, f"{bars}{_line(12, high - BELOW, wide - 12)}{mark}{ends}")


def confusion(title: str, counts: np.ndarray, names: Sequence[str]) -> str:
    """Return a matrix of shares: rows are what images show, columns what was said."""
    n, margin = len(names), 150
    cell = max(12, min(34, 640 // n))
    shares = counts / np.maximum(1, counts.sum(1, keepdims=True))
    parts = []
    for row in range(n):
        parts.append(_text(margin - 8, 8 + row * cell + cell * 0.65, _short(names[row]), "end"))
        for column in np.flatnonzero(counts[row]).tolist():
            kind = "within" if row == column else "beyond"
            hint = f"{names[row]} called {names[column]}: {counts[row, column]} of {counts[row].sum()}"
            place = f'x="{margin + column * cell}" y="{8 + row * cell}" width="{cell - 1}" height="{cell - 1}"'
            parts.append(
                f'<rect class="{kind}" {place} opacity="{0.15 + 0.85 * shares[row, column]:.2f}">'
                f"<title>{safe(hint)}</title></rect>"
            )
            if cell >= 20:
                x, y = margin + (column + 0.5) * cell, 8 + row * cell + cell * 0.65
                strong = "on" if shares[row, column] > 0.5 else "middle"
                parts.append(_text(x, y, str(counts[row, column]), "middle", strong))
    foot = 8 + n * cell
    for column in range(n):
        x = margin + (column + 0.6) * cell
        parts.append(
            f'<g transform="translate({x:.1f},{foot + 8}) rotate(55)">{_text(0, 0, _short(names[column]), "start")}</g>'
        )
    frame = f'<rect class="frame" x="{margin - 1}" y="7" width="{n * cell + 1}" height="{n * cell + 1}"/>'
    return _svg(title, margin + n * cell + 110, foot + 130, frame + "".join(parts))


def bar(share: float, low: float, high: float) -> str:
    """Return a share as a bar from 0 to 1 with its interval."""
    inner = '<rect class="track" x="0" y="3" width="200" height="10" rx="5"/>'
    inner += f'<rect class="within" x="0" y="3" width="{200 * share:.1f}" height="10" rx="5"/>'
    inner += f'<line class="mark" x1="{200 * low:.1f}" y1="8" x2="{200 * high:.1f}" y2="8"/>'
    return _svg(f"{share:.0%}, 95% interval {low:.0%} to {high:.0%}", 200, 16, inner)


def _svg(title: str, width: float, height: float, inner: str) -> str:
    label = safe(title)
    return f'<svg viewBox="0 0 {width:g} {height:g}" width="{width:g}" role="img" aria-label="{label}">{inner}</svg>'


def _text(x: float, y: float, text: str, anchor: str, kind: str = "") -> str:
    extra = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{extra}>{safe(text)}</text>'


def _line(x1: float, y: float, x2: float) -> str:
    return f'<line class="grid" x1="{x1:.1f}" y1="{y:.1f}" x2="{x2:.1f}" y2="{y:.1f}"/>'


def _number(value: float, percent: bool) -> str:
    return f"{value:.0%}" if percent else f"{value:.2g}"


def _short(name: str) -> str:
    return name if len(name) <= 20 else f"{name[:19]}…"
