"""The benchmark measures what it says."""

import csv
from pathlib import Path

import pytest
import torch

from nngk.errors import InputError
from nngk.experiments.bench.points import clustered_features
from nngk.experiments.bench.search import at_recall, bench_search
from nngk.search.native import core

pytestmark = pytest.mark.skipif(core() is None, reason="the compiled core is not built")


def test_rows_and_files(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    said: list[str] = []
    rows = bench_search(3000, 16, k=(5, 10), peers=("exact", "fanng"), threads=1, out=tmp_path, say=said.append)
    assert {row["task"] for row in rows} == {"queries", "all pairs"}
    for row in rows:
        assert (
            row["commit"] is not None and row["command"] and row["machine"] and row["threads"] == 1 and row["seed"] == 0
        )
        if row["engine"] == "exact":
            assert row["recall"] == 1.0
    fanng = [row for row in rows if row["engine"] == "fanng" and row["task"] == "queries" and row["k"] == 10]
    assert [r["recall"] for r in fanng] == sorted(r["recall"] for r in fanng) or fanng[-1]["recall"] > 0.99
    assert all(0 < row["distances_per_query"] < 3000 for row in fanng)
    bench_search(3000, 16, k=5, peers=("exact",), threads=1, out=tmp_path, pairs=False, say=said.append)
    with (tmp_path / "search.csv").open() as file:
        assert len(list(csv.DictReader(file))) == len(rows) + 1
    assert (tmp_path / "search_3000x16.png").stat().st_size > 1000
    assert any("fanng" in line for line in said)


def test_queries_per_second_between_two_measurements() -> None:
    rows = [
        {"task": "queries", "engine": "a", "k": 10, "recall": 0.9, "queries_per_second": 1000},
        {"task": "queries", "engine": "a", "k": 10, "recall": 1.0, "queries_per_second": 500},
    ]
    assert at_recall(rows, "a", 10, 0.95) == pytest.approx(750)
    assert at_recall(rows, "a", 10, 0.8) == 1000
    assert at_recall(rows, "b", 10, 0.8) is None and at_recall(rows[:1], "a", 10, 0.95) is None


def test_features_are_repeatable_unit_vectors() -> None:
    x = clustered_features(500, 24, seed=3)
    assert torch.equal(x, clustered_features(500, 24, seed=3))
    torch.testing.assert_close(x.norm(dim=1), torch.ones(500))


def test_unknown_peer() -> None:
    with pytest.raises(InputError, match="no peer 'annoy'"):
        bench_search(500, 4, k=2, peers=("annoy",), say=lambda line: None)
