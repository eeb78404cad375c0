"""The report: published figures beside ours, nothing typed in, and what is missing is said."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from nngk.cli.paper import paper_command, parse_only
from nngk.errors import InputError
from nngk.experiments.paper import run_experiments
from nngk.experiments.paper.contents import EXPERIMENTS, find_experiment
from nngk.experiments.paper.report import write_report
from nngk.experiments.paper.scores import group_rows, published, published_rows
from nngk.experiments.paper.sections import build_section
from nngk.experiments.paper.tables import build_tables, score_cell
from nngk.experiments.record import write_rows
from nngk.experiments.record.seeds import Score

COMMON = {
    "dataset": "cub200",
    "variant": "",
    "loss": "nngk",
    "examples": "",
    "key": "k",
    "finished": "2026-01-01 00:00",
}
COMMON |= {"commit": "c" * 40, "settings": "{}", "machine": "m", "device": "d", "epochs": "5", "lr": "0.1", "error": ""}


def metric_row(recall, **changes):
    row = COMMON | {"experiment": "birds-metric", "preset": "best", "network": "googlenet-bvlc", "dim": "64"}
    row |= {"seed": "0", "recall@1": str(recall), "nmi": "0.62", "seconds": "30", "selection_seconds": "10"}
    return row | changes


def test_published_figures_are_the_papers():
    assert published("cars-metric", "nmi", method="nngk", dim="1024")["value"] == "65.30"
    assert published("birds-architectures", "accuracy", method="softmax", variant="VGG16")["value"] == "75.37"
    assert published("fine-grained", "accuracy", method="nngk", dataset="leafsnap")["value"] == "75.96"
    assert len(published_rows()) == 2 * 11 * 5 + 6 + 6 + 5
    names = {experiment.name for experiment in EXPERIMENTS}
    assert {row["experiment"] for row in published_rows()} <= names
    # Every line that the paper prints for its own method has a trial that answers it.
    for row in published_rows():
        if row["method"] == "nngk":
            trials = find_experiment(row["experiment"]).trials("best")
            assert any(
                t.dataset == row["dataset"]
                and (t.variant == row["variant"] if row["variant"] else str(t.settings.dim) == row["dim"])
                for t in trials
            ), row


def test_mean_deviation_and_difference():
    groups = group_rows([metric_row(0.50), metric_row(0.54, seed="1")])
    (group,) = groups
    score = group.score("recall@1")
    assert score == Score(pytest.approx(0.52), pytest.approx(0.0282843, abs=1e-6), 2)
    cell = score_cell(score, published("birds-metric", "recall@1", method="nngk", dim="64"))
    assert (cell.text, cell.note, cell.tone) == ("52.00 ± 2.83", "+0.85", "up")


def test_seeds_of_older_settings_are_not_mixed_in():
    old = metric_row(0.1, key="old", seed="1", finished="2025-01-01 00:00")
    (group,) = group_rows([old, metric_row(0.5)])
    assert group.seeds == 1 and group.score("recall@1").mean == 0.5


def test_another_network_has_no_difference():
    rows = [metric_row(0.66, network="resnet50-v1"), metric_row(0.52)]
    (table,) = build_tables(find_experiment("birds-metric"), group_rows(rows))
    ours = {row[2].text: row[3] for row, kind in zip(table.rows, table.kinds) if kind == "best"}
    assert ours["resnet50-v1"].note == "" and ours["googlenet-bvlc"].note == "+0.85"
    assert table.kinds.count("rival") == 6 and table.kinds.count("published") == 5


def test_a_failed_run_is_shown_as_one(tmp_path):
    write_rows(tmp_path / "birds-metric.csv", [metric_row("", nmi="", error="training diverged")])
    section = build_section(find_experiment("birds-metric"), tmp_path)
    assert section.failures == ["training diverged"] and section.headline == "no run has finished"
    assert section.tables[0].rows[7][-1].text == "failed"


def test_without_results_every_experiment_says_how_to_run_it(tmp_path):
    (tmp_path / "results").mkdir()
    page, text = write_report(tmp_path / "results", tmp_path / "report.html")
    for experiment in EXPERIMENTS:
        assert f"nngk paper run {experiment.name} " in page.read_text()
        assert f"nngk paper run {experiment.name} " in text.read_text()


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    home = tmp_path_factory.mktemp("report")
    names = ["neighbours", "distances", "ablation", "embedding"]
    options = {"results": home / "results", "work": home / "work", "only": {"dataset": ["cub200"]}}
    run_experiments(names, quick=True, seeds=1, preset="best", **options)
    runner = CliRunner()
    arguments = ["report", "--results", str(home / "results"), "--out", str(home / "report.html"), "--quiet"]
    done = runner.invoke(paper_command, arguments, catch_exceptions=False)
    assert done.exit_code == 0
    return home, done.output.split()


@pytest.mark.thorough
def test_the_page_holds_everything(written):
    home, files = written
    page = (home / "report.html").read_text()
    assert page.count("<svg") == 2 and page.count("data:image/jpeg;base64,") == 2
    assert "A trial run." in page
    # Self-contained: no file, script or address is loaded from elsewhere (namespaces are names, not addresses).
    assert not re.findall(r'(?:src|href)="(?!data:|#)[^"]+"', page)
    assert "<script" not in page and "@import" not in page
    assert "tile query" in page and "tile right" in page and "tile wrong" in page
    assert {Path(file).suffix for file in files} == {".html", ".md", ".svg", ".png"}
    assert all(Path(file).stat().st_size > 500 for file in files)
    assert (home / "results" / "embedding" / "pictures" / ".gitignore").read_text() == "*\n"


@pytest.mark.thorough
def test_the_markdown_links_the_figures_that_were_written(written):
    home, _ = written
    links = re.findall(r"!\[.*?\]\((.*?)\)", (home / "report.md").read_text())
    assert len(links) == 3 and all((home / link).exists() for link in links)


@pytest.mark.thorough
def test_figures_of_the_page_are_those_of_the_rows(written):
    home, _ = written
    section = build_section(find_experiment("ablation"), home / "results")
    shown = {row[0].text: row[2].text for row in section.tables[0].rows}
    for group in section.groups:
        assert shown[group.variant] == f"{100 * float(group.rows[0]['accuracy']):.2f}"


def test_the_command_line(tmp_path):
    runner = CliRunner()
    listed = runner.invoke(paper_command, ["list", "--results", str(tmp_path)], catch_exceptions=False)
    assert all(experiment.name in listed.output for experiment in EXPERIMENTS)
    words = ["run", "birds-metric", "--quick", "--seeds", "1", "--preset", "paper", "--only", "dim=64", "--quiet"]
    words += ["--results", str(tmp_path / "r"), "--work", str(tmp_path / "w")]
    ran = runner.invoke(paper_command, words, catch_exceptions=False)
    assert ran.output.startswith("1 runs, 0 of them failed")
    with pytest.raises(InputError, match="COLUMN=VALUES"):
        parse_only(("dim",))
    with pytest.raises(InputError, match=r"ends in \.html"):
        write_report(tmp_path, tmp_path / "report.pdf")
    with pytest.raises(InputError, match="no folder"):
        write_report(tmp_path / "nowhere", tmp_path / "report.html")
