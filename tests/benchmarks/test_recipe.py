"""The search for the recipe: every variant and every cut is run once, without a look at the test classes."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import forked
from shapes import write_shapes

HOME = Path(__file__).parents[2]


def search(out: Path, *words: str, program: str = "variants.py") -> subprocess.CompletedProcess[str]:
    options = ["--data", out.parent, "--weights", "imagenet", "--quick", "--device", "cpu", "--out", out]
    return forked.run([HOME / "benchmarks" / "recipe" / program, *options, "--commit", "abc", *words])


@pytest.mark.thorough
def test_variants_are_run_once_and_written_down(tmp_path):
    out = tmp_path / "recipes.csv"
    first = search(out, "--only", "base", "two layers", "sigma learned", "all centres")
    assert first.returncode == 0, first.stderr
    assert first.stdout.startswith("40 images of 4 classes")  # half of the eight classes: the others are for testing
    with out.open() as file:
        rows = {row["variant"]: row for row in csv.DictReader(file)}
    assert len(rows) == 4
    assert json.loads(rows["all centres"]["settings"])["n_neighbours"] is None
    assert len(json.loads(rows["base"]["recall@1_by_epoch"])) == 2
    assert 0 <= float(rows["sigma learned"]["map@r"]) <= 1
    assert "only its last one" in rows["two layers"]["error"]  # of the small network: said, and the others went on
    again = search(out, "--only", "base")
    assert again.stdout.count("\n") == 1 and again.returncode == 0


@pytest.mark.thorough
def test_a_bare_run_says_where_it_began_and_how_it_went(tmp_path):
    out = tmp_path / "recipes.csv"
    done = search(
        out, "--list", "paper", "--bare", "--only", "GoogLeNet's own dropout", "the pooled features themselves"
    )
    assert done.returncode == 0, done.stderr
    with out.open() as file:
        rows = {row["variant"]: row for row in csv.DictReader(file)}
    assert json.loads(rows["GoogLeNet's own dropout"]["settings"])["dropout"] == 0.4
    for row in rows.values():
        assert not any(name.startswith(("blend", "cut", "again", "read")) for name in row)
        assert 0 <= float(row["start_recall@1"]) <= 1
        assert all(len(json.loads(row[f"{name}_by_epoch"])) == 2 for name in ("recall@1", "loss"))


@pytest.mark.thorough
def test_every_cut_of_a_run_is_written_down(tmp_path):
    out = tmp_path / "cuts.csv"
    done = search(out, "--wide", "8", "--shrinkage", "3", "--whiten", "0", "0.5", "--shard", "1/2", program="cuts.py")
    assert done.returncode == 0, done.stderr
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["dim"], row["whiten"]) for row in rows] == [("2", "0.0"), ("2", "0.5"), ("4", "0.0"), ("4", "0.5")]
    assert {row["fold"] for row in rows} == {"1"}  # the other fold is the other program's
    assert len({row["map@r"] for row in rows}) > 1 and all(0 <= float(row["nmi"]) <= 1 for row in rows)


def list_of_shapes(folder):
    """Write pictures of training and test classes; return the options that let a benchmark read them."""
    lines = ["path,label,split"]
    for part, seed in (("train", 0), ("test", 1)):
        write_shapes(folder / part, ("disc", "frame", "cross", "stripes"), count=6, seed=seed)
        for path in sorted((folder / part).rglob("*.png")):
            lines.append(f"{path.relative_to(folder)},{part} {path.parent.name},{part}")
    (folder / "list.csv").write_text("\n".join(lines))
    return ["--quick", "--images", str(folder / "list.csv"), "--commit", "abc"]


@pytest.mark.thorough
def test_candidates_are_judged_before_the_test_classes_are_read(tmp_path):
    command = [sys.executable, str(HOME / "benchmarks" / "recipe" / "unseen.py"), "--seeds", "0"]
    command += [*list_of_shapes(tmp_path / "shapes"), "--out", str(tmp_path / "unseen.csv")]
    command += ["--try", "lr=1e-3", "train_crop_size=24", "--try", "lr=1e-2"]
    environment = {**os.environ, "PYTHONPATH": str(HOME / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    with (tmp_path / "unseen_validation.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 2 * 6  # candidates, folds, shares of whitening
    assert {row["tried"] for row in rows} == {"lr=1e-3 train_crop_size=24", "lr=1e-2"}
    sums: dict[tuple[str, str], float] = {}
    for row in rows:
        key = row["lr"], row["whiten"]
        sums[key] = sums.get(key, 0.0) + float(row["recall@1"]) + float(row["map@r"])
    with (tmp_path / "unseen.csv").open() as file:
        (tested,) = csv.DictReader(file)
    assert sums[tested["lr"], tested["whiten"]] == max(sums.values())
    assert 0 <= float(tested["recall@1"]) <= 1


@pytest.mark.thorough
def test_readings_of_the_paper_are_judged_on_both_halves_with_two_seeds(tmp_path):
    out = tmp_path / "recipes.csv"
    names = ("Adam, floor", "sigma from 10 to 30, 100 epochs")
    folds = ("--folds", "0", "1", "2", "3")
    done = search(out, "--list", "readings", "--dataset", "cars196", *folds, "--bare", "--only", *names)
    assert done.returncode == 0, done.stderr
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 4 and {row["dataset"] for row in rows} == {"cars196"}
    assert {json.loads(row["settings"])["seed"] for row in rows} == {0, 1, 2, 3}
    found = {row["variant"]: json.loads(row["settings"]) for row in rows}
    assert found["Adam, floor"]["floor"] == 1e-10 and found["Adam, floor"]["batch_size"] == 32
    assert found["sigma from 10 to 30, 100 epochs"]["sigma_end"] == 30.0
    told = done.stdout.strip().splitlines()[-2:]
    assert all(line.endswith("4 runs") for line in told)


@pytest.mark.thorough
def test_a_second_generation_is_chosen_on_validation_classes_and_scored_beside_the_first(tmp_path):
    command = [sys.executable, str(HOME / "benchmarks" / "recipe" / "taught.py"), "--seeds", "0", "1"]
    command += [*list_of_shapes(tmp_path / "shapes"), "--out", str(tmp_path / "taught.csv"), "--teachers", "1", "2"]
    command += ["--try", "lr=1e-3", "epochs=1", "--try", "lr=1e-2", "epochs=2"]
    environment = {**os.environ, "PYTHONPATH": str(HOME / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    with (tmp_path / "taught_validation.csv").open() as file:
        judged = list(csv.DictReader(file))
    second = [row for row in judged if row["generation"] == "2"]
    assert len(judged) == 2 + 2 * 2 * 2 and len(second) == 2 * 2 * 2  # folds; candidates, teachers
    sums: dict[tuple[str, str], float] = {}
    for row in second:
        key = row["tried"], row["teachers"]
        sums[key] = sums.get(key, 0.0) + float(row["recall@1"]) + float(row["map@r"])
    with (tmp_path / "taught.csv").open() as file:
        tested = list(csv.DictReader(file))
    assert [(row["generation"], row["seed"]) for row in tested] == [("1", "0"), ("2", "0"), ("1", "1"), ("2", "1")]
    for row in tested[1::2]:
        assert sums[row["tried"], row["teachers"]] == max(sums.values())
    assert all(0 <= float(row[name]) <= 1 for row in tested for name in ("recall@1", "map@r", "nmi"))


@pytest.mark.thorough
def test_a_loss_is_trained_with_the_settings_of_its_authors(tmp_path):
    given = [*list_of_shapes(tmp_path), "--own", "proxy-anchor", "--try", "epochs=6", "batch_size=8", "--seeds", "0"]
    done = forked.run([HOME / "benchmarks" / "recipe" / "unseen.py", *given, "--out", tmp_path / "published.csv"])
    assert done.returncode == 0, done.stderr
    with (tmp_path / "published.csv").open() as file:
        (row,) = csv.DictReader(file)
    settings = json.loads(row["settings"])
    assert row["loss"] == settings["loss"] == "proxy-anchor"
    assert (settings["head_epochs"], settings["schedule"], settings["batch_size"]) == (5, "steps", 8)
    assert settings["embedding_start"] == "random" and float(row["recall@1"]) > 0.5
    assert not (tmp_path / "published_validation.csv").exists()
