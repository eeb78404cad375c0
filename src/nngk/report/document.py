"""A report as one HTML file that asks no other host for anything."""

import base64
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from nngk.files import parse_json, require_regular, write_atomically
from nngk.metrics import wilson_interval
from nngk.model.model import Model
from nngk.report.drawings import bar, confusion, curve, histogram, safe
from nngk.report.findings import Findings, Mistake

MOST_IN_MATRIX = 40  # classes; beyond, the pairs are listed alone
PAIRS = 12
WORST = 100  # classes that are listed


def write_report(model: Model, findings: Findings, run: Path, out: Path) -> None:
    """Write the page about a model; ``run`` is the folder with the log of its training, where there is one."""
    sections = [
        _figures(model, findings),
        _training(run),
        _classes(model, findings),
        _confusions(model, findings),
        _mistakes(findings),
        _unknown(model, findings),
    ]
    page = files("nngk.report").joinpath("report.html").read_text(encoding="utf-8")
    title = f"{model.info.get('data', 'images')}: {len(model.class_names)} classes"
    about = f"{model.network.config['name']}, {len(model.centres)} images, σ = {model.sigma:.3g}. {findings.about}"
    parts = {
        "TITLE": safe(title),
        "HEADING": safe(title),
        "ABOUT": safe(about),
        "SECTIONS": "\n".join(filter(None, sections)),
    }
    for key, value in parts.items():
        page = page.replace(f"<!--{key}-->", value, 1)
    write_atomically(out, lambda part: part.write_text(page, encoding="utf-8"))


def _figures(model: Model, findings: Findings) -> str:
    n, right = len(findings.truth), findings.truth == findings.said
    low, high = wilson_interval(findings.accuracy, n)
    cards = [
        (f"{findings.accuracy:.1%}", f"of {n} answers are right (95% interval {low:.1%} to {high:.1%})"),
        (
            f"{findings.probability.mean():.1%}",
            "is the mean probability of the answers: equal to the share of right ones "
            "where probabilities mean what they say",
        ),
    ]
    if (~right).any():
        cards.append(
            (f"{findings.probability[~right].mean():.1%}", f"is that of the {int((~right).sum())} wrong answers")
        )
    if len(findings.unknown):
        cards.append(
            (f"{(findings.unknown > 0.5).mean():.1%}", "of these photos of known classes would be called unknown")
        )
    test = model.info.get("test", {}).get("accuracy")
    if test is not None:
        count = model.info.get("measured", {}).get("test", 0)
        cards.append((f"{test:.1%}", f"was measured at the end of training, on {count} photos held out"))
    shown = "".join(f'<div class="card"><b>{value}</b><span>{safe(text)}</span></div>' for value, text in cards)
    return f'<div class="cards" id="figures">{shown}</div>'


def _training(run: Path) -> str:
    rows = _log(run / "log.jsonl")
    if len(rows) < 2:
        return ""
    drawn = []
    for key, title, percent in (
        ("loss", "Training loss", False),
        ("val_accuracy", "Validation accuracy", True),
        ("val_loss", "Validation loss", False),
        ("val_recall@1", "Validation Recall@1", True),
    ):
        points = [(row["epoch"], row[key]) for row in rows if isinstance(row.get(key), int | float)]
        if len(points) > 1:
            xs, ys = zip(*points)
            drawn.append(f"<figure><figcaption>{title}</figcaption>{curve(title, xs, ys, percent)}</figure>")
    said = (
        "One point for each epoch. Where validation gets worse while the training loss still falls, training went on "
        "for too long."
    )
    return _section("Training", said, f'<div class="row" id="curves">{"".join(drawn)}</div>')


def _log(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a log; none where it is missing or damaged, since the page is about the model."""
    try:
        require_regular(path, "a log")
        rows = [parse_json(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError):  # an InputError too
        return []
    return [row for row in rows if isinstance(row, dict) and isinstance(row.get("epoch"), int)]


def _classes(model: Model, findings: Findings) -> str:
    rows = []
    for place, name in enumerate(model.class_names):
        of = findings.truth == place
        if of.any():
            share, count = float((findings.said[of] == place).mean()), int(of.sum())
            rows.append((share, count, name, wilson_interval(share, count)))
    rows.sort(key=lambda row: (row[0], -row[1]))
    lines = "".join(
        f"<tr><td>{safe(name)}</td><td class=n>{share:.0%}</td><td>{bar(share, low, high)}</td>"
        f"<td class=n>{count}</td></tr>"
        for share, count, name, (low, high) in rows[:WORST]
    )
    more = f"<p>{len(rows) - WORST} better classes are not listed.</p>" if len(rows) > WORST else ""
    said = (
        "The share of each class's images that were answered right, the worst first. The thin line is the 95% interval."
    )
    head = "<tr><th>class</th><th class=n>right</th><th></th><th class=n>images</th></tr>"
    return _section("Classes", said, f'<div class="scroll"><table id="classes">{head}{lines}</table></div>{more}')


def _confusions(model: Model, findings: Findings) -> str:
    n = len(model.class_names)
    counts = np.zeros((n, n), dtype=np.int64)
    np.add.at(counts, (findings.truth, findings.said), 1)
    apart = counts - np.diag(np.diag(counts))
    worst = [divmod(int(flat), n) for flat in np.argsort(-apart, axis=None, kind="stable")[:PAIRS]]
    names = model.class_names
    lines = "".join(
        f"<tr><td>{safe(names[row])}</td><td>{safe(names[column])}</td>"
        f"<td class=n>{apart[row, column]} of {counts[row].sum()}</td></tr>"
        for row, column in worst
        if apart[row, column]
    )
    head = "<tr><th>shows</th><th>was called</th><th class=n>how often</th></tr>"
    pairs = f'<table id="pairs">{head}{lines}</table>' if lines else "<p>No class was taken for another.</p>"
    drawn = ""
    if n <= MOST_IN_MATRIX:
        drawn = f'<div class="scroll" id="confusion">{confusion("Confusion of classes", counts, names)}</div>'
    said = "Which classes are taken for which others: rows are what images show, columns what was said."
    return _section("Confusions", said, drawn + pairs)


def _mistakes(findings: Findings) -> str:
    if not findings.mistakes:
        return _section("Mistakes", "Every answer was right.", "")
    said = (
        "The wrong answers that were given most surely, with the model's images that decided them and their shares. "
        "Some of them may be photos with a wrong label."
    )
    return _section("Mistakes", said, f'<div id="mistakes">{"".join(map(_mistake, findings.mistakes))}</div>')


def _mistake(one: Mistake) -> str:
    evidence = "".join(
        f'<figure class="{"same" if label == one.truth else "other"}">{_image(small, label)}'
        f"<figcaption>{safe(label)}<br>{share:.0%}</figcaption></figure>"
        for small, label, share in one.evidence
    )
    return (
        f'<div class="mistake">{_image(one.image, one.name)}'
        f'<div><b class="bad">{safe(one.said)}</b> {one.probability:.1%}'
        f"<small>it is {safe(one.truth)}</small><small>{safe(one.name)}</small></div>"
        f'<div class="evidence">{evidence}</div></div>'
    )


def _image(data: bytes, name: str) -> str:
    if not data:
        return '<span class="gone">no picture</span>'
    return f'<img alt="{safe(name)}" src="data:image/jpeg;base64,{base64.b64encode(data).decode("ascii")}">'


def _unknown(model: Model, findings: Findings) -> str:
    scores, of = findings.unknown, "the photos that were asked about"
    if not len(scores):
        familiar = model.familiar
        scores = familiar.score(familiar.alike(familiar.values)).cpu().numpy()
        of = "the photos that set the threshold"
    if not len(scores):
        return ""
    said = (
        f"The unknown score of {of}, all of them of known classes. Beyond one half an answer is 'unknown', which "
        f"is set so that about {model.familiar.false_alarms:.1%} of the photos of known classes lie there. It was "
        f"{(scores > 0.5).mean():.1%} of these {len(scores)}. 'nngk calibrate' sets it from your own photos."
    )
    return _section("Unknown", said, f'<div id="unknown">{histogram("Unknown scores", scores, 0.5)}</div>')


def _section(title: str, said: str, inner: str) -> str:
    return f"<section><h2>{title}</h2><p>{safe(said)}</p>{inner}</section>"
