"""Every command, as a person types it: in processes of their own, and its JSON parsed."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from shapes import TINY, command, environment, flags, nngk, write_shapes

pytestmark = pytest.mark.thorough  # one training serves them all


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Shapes, and a model trained on them by the command line."""
    home = tmp_path_factory.mktemp("home")
    write_shapes(home / "shapes")
    write_shapes(home / "fresh", seed=4, count=3)
    write_shapes(home / "stripes", ("stripes",), seed=4, count=5)
    (home / "run.toml").write_text(
        "\n".join(f"{k.replace('_', '-')} = {json.dumps(v)}" for k, v in TINY.items() if k != "epochs")
        + "\nepochs = 9\n"
    )
    done = nngk(
        "train", home / "shapes", "--out", home / "model", "--config", home / "run.toml", "--epochs", 3, "--json"
    )
    assert done.returncode == 0, done.stderr
    (home / "train.json").write_text(done.stdout)
    (home / "train.txt").write_text(done.stderr)
    return home


@pytest.fixture
def model(home, tmp_path):
    """A copy that may be changed."""
    return shutil.copytree(home / "model", tmp_path / "model")


# -- the walk


@pytest.mark.thorough
def test_train_answers_in_json_on_standard_output_alone(home):
    record = json.loads((home / "train.json").read_text())
    assert record["model"] == str(home / "model") and record["task"] == "classify"
    assert record["settings"]["epochs"] == 3  # the command line wins over the file
    assert record["settings"]["batch_size"] == TINY["batch_size"]
    assert {"accuracy", "recall@1"} <= record["test"].keys()
    progress = (home / "train.txt").read_text()
    assert "22 training, 7 validation and 7 test images of 3 classes" in progress and "epoch   3" in progress


@pytest.mark.thorough
def test_classify(home):
    done = nngk("classify", home / "model", home / "fresh", "--json", "--evidence", 2)
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    assert len(answers) == 9
    assert sum(a["nearest"] == Path(a["image"]).parent.name for a in answers) >= 7
    for a in answers:
        assert len(a["evidence"]) == 2 and 0 <= a["unknown"] <= 1 and 0 <= a["alike"] <= 1
        assert a["label"] == ("unknown" if a["is_unknown"] else a["nearest"])
        assert a["is_unknown"] == (a["unknown"] > 0.5)
        assert sum(a["probabilities"].values()) == pytest.approx(1, abs=1e-4)


def test_classify_for_people(home, ask):
    image = next((home / "fresh").rglob("*.png"))
    code, out, _ = ask("classify", home / "model", image)
    assert code == 0 and out.startswith(f"{image}: ") and "because of" in out and "%" in out
    assert "of the known photos look at least as strange" in out


def test_classify_rejects_what_it_does_not_know(home, ask):
    labels = []
    for threshold in (-1, 1.1):
        code, out, _ = ask("classify", home / "model", home / "fresh", "--reject", threshold, "--json")
        assert code == 0
        labels.append({a["label"] for a in json.loads(out)})
    assert labels[0] == {"unknown"} and "unknown" not in labels[1]
    out = ask("classify", home / "model", home / "fresh", "--reject", -1)[1]
    assert out.count("unknown (nearest: ") == 9


@pytest.mark.thorough
def test_calibrate_and_measure_the_unknown(home, model, ask, tmp_path):
    write_shapes(tmp_path / "own", seed=21, count=20)
    done = nngk("calibrate", model, tmp_path / "own", "--false-alarms", 0.1, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"photos": 60, "left_out": 0, "false_alarms": 0.1}
    assert json.loads(ask("info", model, "--json")[1])["unknown"]["false_alarms"] == 0.1
    answers = json.loads(ask("classify", model, tmp_path / "own", "--json")[1])
    assert 3 <= sum(a["label"] == "unknown" for a in answers) <= 6
    done = nngk("evaluate", model, tmp_path / "own", "--unknown", home / "stripes", "--json")
    assert done.returncode == 0, done.stderr
    scores = json.loads(done.stdout)
    assert scores["unknown_images"] == 5 and scores["flagged_known"] == pytest.approx(
        sum(a["label"] == "unknown" for a in answers) / 60
    )
    for name in ("flagged", "auroc", "false_alarms_at_95", "oscr"):
        assert 0 <= scores[name] <= 1
    assert scores["oscr"] <= scores["auroc"] + 1e-9
    told = ask("evaluate", model, tmp_path / "own", "--unknown", home / "stripes")[1]
    assert "false alarms at 95" in told and "oscr" in told
    code, _, err = ask("evaluate", model, home / "fresh", "--unknown", tmp_path / "nowhere")
    assert code == 1 and "There is no image" in err
    code, _, err = ask("evaluate", model, home / "fresh", "--task", "metric", "--unknown", home / "stripes")
    assert code == 1 and "--task classify" in err
    code, _, err = ask("calibrate", model, home / "fresh")
    assert code == 1 and "20 photos or more are needed" in err
    assert "will be called unknown" in ask("calibrate", model, tmp_path / "own")[1]


@pytest.mark.thorough
def test_evaluate(home):
    done = nngk("evaluate", home / "model", home / "fresh", "--json")
    assert done.returncode == 0, done.stderr
    scores = json.loads(done.stdout)
    assert scores["images"] == 9 and scores["accuracy"] >= 7 / 9
    assert {"calibration_error", "recall@1", "recall@8", "map@r", "r_precision", "nmi"} <= scores.keys()


def test_evaluate_as_metric_knows_no_classes(home, ask, tmp_path):
    write_shapes(tmp_path / "new", ("stripes", "disc"), count=4)
    code, out, _ = ask("evaluate", home / "model", tmp_path / "new", "--task", "metric", "--json")
    scores = json.loads(out)
    assert code == 0 and "accuracy" not in scores and 0 <= scores["recall@1"] <= 1
    code, out, _ = ask("evaluate", home / "model", home / "fresh")
    assert code == 0 and "recall@1" in out and "%" in out


def test_search(home, ask):
    code, out, _ = ask("search", home / "model", home / "fresh", "-k", 4, "--json")
    rows = json.loads(out)
    assert code == 0 and len(rows) == 9 and all(len(row["found"]) == 4 for row in rows)
    assert all(h["distance"] >= 0 and Path(h["image"]).exists() for row in rows for h in row["found"])
    code, out, _ = ask("search", home / "model", home / "fresh", "-k", 2)
    assert code == 0 and out.count("\n") == 9 * 3


@pytest.mark.thorough
def test_add_and_remove(home, model, ask):
    before = ask("classify", model, home / "fresh", "--json")[1]
    done = nngk("add", model, "stripes", home / "stripes", "--json")
    assert done.returncode == 0
    said = json.loads(done.stdout)
    assert set(said.pop("taken")) <= {"disc", "frame", "cross"}
    assert said == {"class": "stripes", "added": 5, "images": 5}
    assert "Every image given for 'stripes'" in ask("add", model, "stripes", home / "stripes")[2]
    code, _, err = ask("add", model, "Stripes", home / "fresh")
    assert code == 1 and "has a class 'stripes'" in err and "--yes" in err
    during = json.loads(ask("classify", model, home / "stripes", "--json")[1])
    assert sum(a["nearest"] == "stripes" for a in during) >= 3
    assert all(a["image"] in [e["image"] for e in a["evidence"]] for a in during)
    done = nngk("remove", model, "stripes", "--json")
    assert done.returncode == 0 and json.loads(done.stdout) == {"class": "stripes", "removed": 5}
    assert ask("classify", model, home / "fresh", "--json")[1] == before
    assert "has 5 images now" in ask("add", model, "stripes", home / "stripes")[1]
    assert "3 classes remain" in ask("remove", model, "stripes")[1]


@pytest.mark.thorough
def test_rename_and_merge(home, model, ask):
    done = nngk("rename", model, "disc", "ball", "--json")
    assert done.returncode == 0 and json.loads(done.stdout) == {"class": "ball", "was": "disc"}
    done = nngk("merge", model, "frame", "ball", "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(ask("info", model, "--json")[1])
    assert set(facts["classes"]) == {"ball", "cross"} and facts["classes"]["ball"] == json.loads(done.stdout)["images"]
    assert sum(facts["classes"].values()) == 22
    for words, message in (
        (("rename", model, "frame", "x"), "has no class 'frame'"),
        (("rename", model, "ball", "cross"), "Merge the two"),
        (("merge", model, "ball", "ball"), "name two to merge"),
    ):
        code, _, err = ask(*words)
        assert code == 1 and message in err
    assert "is called" in ask("rename", model, "ball", "round")[1]
    assert "1 classes remain" in ask("merge", model, "round", "cross")[1]


def test_info(home, ask):
    code, out, _ = ask("info", home / "model", "--json")
    facts = json.loads(out)
    assert code == 0 and facts["centres"] == 22 and facts["dim"] == 8 and facts["network"]["name"] == "small"
    assert set(facts["classes"]) == {"disc", "frame", "cross"} and sum(facts["classes"].values()) == 22
    code, out, _ = ask("info", home / "model")
    assert code == 0 and "3 classes" in out and "small" in out and "test accuracy" in out


@pytest.mark.thorough
def test_networks_and_losses(ask):
    code, out, _ = ask("networks", "--json")
    assert code == 0 and {"small", "efficientnet-lite0"} <= {row["name"] for row in json.loads(out)}
    code, out, _ = ask("losses", "--json")
    assert code == 0 and {"nngk", "softmax"} <= {row["name"] for row in json.loads(out)}
    for name in ("networks", "losses"):
        code, out, _ = ask(name)
        assert (code == 0 and "small" in out) or "nngk" in out


def test_options_win_over_the_file_and_the_file_over_the_preset(home, tmp_path, ask):
    (tmp_path / "run.toml").write_text('batch-size = 6\ndim = "none"\nepochs = 3\nmargin = 0.0\n')
    options = ["--preset", "quick", "--config", tmp_path / "run.toml", "--epochs", 1, "--device", "cpu"]
    code, out, err = ask("train", home / "shapes", "--out", tmp_path / "m", *options, "--layers", "auto", "--json")
    assert code == 0, err
    settings = json.loads(out)["settings"]
    assert (settings["network"], settings["lr"]) == ("small", 1e-3)  # the preset's
    assert (settings["batch_size"], settings["dim"]) == (6, None)  # the file's
    assert settings["epochs"] == 1  # the command line's
    assert settings["optimiser"] == "adamw"  # the default


def test_the_best_preset_has_room_for_more_classes_than_the_data(home, tmp_path, ask):
    tiny = flags(**{k: v for k, v in TINY.items() if k not in ("dim", "epochs", "lr")})
    code, out, err = ask(
        "train",
        home / "shapes",
        "--out",
        tmp_path / "m",
        "--preset",
        "best",
        *tiny,
        "--epochs",
        1,
        "--no-tune",
        "--json",
    )
    assert code == 0, err
    settings = json.loads(out)["settings"]
    assert (settings["dim"], settings["pool"], settings["lr"]) == (64, "avg+max", 1e-4)
    assert settings["batch_size"] == TINY["batch_size"]


def test_train_from_a_csv_file_with_splits(home, tmp_path, ask):
    rows = ["path,label,split"]
    for image in sorted((home / "shapes").rglob("*.png")):
        part = {"0": "train", "1": "test"}[image.stem[0]] if image.stem != "09" else "val"
        rows.append(f"{image.relative_to(home)},{image.parent.name},{part}")
    (home / "list.csv").write_text("\n".join(rows) + "\n")
    options = flags(**{**TINY, "epochs": 1})
    code, out, err = ask("train", home / "list.csv", "--out", tmp_path / "m", *options, "--quiet")
    assert code == 0 and "test accuracy" in out and err == ""
    code, out, _ = ask("evaluate", tmp_path / "m", home / "list.csv", "--split", "test", "--json")
    assert code == 0 and json.loads(out)["images"] == 6


@pytest.mark.thorough
def test_output_that_is_cut_short_is_no_error(home):
    line = " ".join(f"'{a}'" for a in command("losses"))
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {line} | head -1"],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr
