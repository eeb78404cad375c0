import sys

from nngk.experiments.compare.verdict import markdown, summarise, verdict, write_verdict
from nngk.experiments.record.seeds import Score, within_noise


def rows(**scores):
    return [
        {
            "loss": loss,
            "seed": i,
            "lr": 1e-3,
            "seconds": 2.0,
            "data": "birds",
            "network": "net",
            "dim": 64,
            "recall@1": v,
        }
        for loss, values in scores.items()
        for i, v in enumerate(values)
    ]


def test_one_seed_says_nothing_about_noise():
    assert within_noise(Score(0.5, None, 1), Score(0.9, 0.1, 3)) is None
    text = verdict(summarise(rows(a=[0.5], nngk=[0.4]), ("recall@1",)), "recall@1")
    assert "One seed does not tell" in text
    assert "'nngk' is 10.00 points below" in text


def test_verdict_names_who_is_near_and_who_is_behind():
    scores = summarise(rows(best=[0.8, 0.81, 0.82], near=[0.79, 0.8, 0.81], far=[0.5, 0.51, 0.52]), ("recall@1",))
    text = verdict(scores, "recall@1")
    assert "'best' is highest with 81.00 ± 1.00" in text
    assert "Within noise of it (Welch's test at 95%): near." in text
    assert "Behind it by more than noise: far." in text


def test_without_scipy_the_table_is_written_and_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.stats", None)
    write_verdict(tmp_path, rows(a=[0.5, 0.6, 0.7], b=[0.1, 0.2, 0.3]), "metric")
    text = (tmp_path / "comparison.md").read_text()
    assert "| a | **60.00 ± 10.00** |" in text and "pip install 'nngk[datasets]'" in text
    assert "'a' is highest" in text and "noise" not in text


def test_table_is_ordered_and_marks_the_best():
    text = markdown(rows(low=[0.1, 0.2], high=[0.8, 0.9]), "metric")
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    assert lines[1].startswith("| high | **85.00 ± 7.07**")
    assert lines[2].startswith("| low | 15.00 ± 7.07")
    assert lines[1].endswith("| 0.001 | 2 | 2 |")


def test_failed_runs_do_not_count():
    failed = rows(a=[0.5, 0.6], b=[0.7])
    failed.append(
        {"loss": "b", "seed": 1, "lr": 1e-3, "error": "diverged", "data": "birds", "network": "net", "dim": 64}
    )
    text = markdown(failed, "metric")
    assert "| 1 of 2 |" in text
    assert "- b, seed 1: diverged" in text
