"""``teacher``: a network learns the distances that a saved model finds between images."""

import shutil

import numpy as np
import pytest
import torch

from nngk.errors import InputError
from nngk.losses.relaxed import RelaxedContrastive
from nngk.model.model import Model
from nngk.training import loop
from nngk.training.loop import train
from nngk.training.presets import TAUGHT, TAUGHT_RATE, preset_settings, usual_rate
from nngk.training.settings import Settings
from runs import log_of, make_run, settings, stop_after
from shapes import flags, nngk, write_shapes

METRIC = {"task": "metric", "val_fraction": 0.25, "test_fraction": 0.25}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Six shapes and colours, and two models of them."""
    home = tmp_path_factory.mktemp("generations")
    write_shapes(home / "shapes", ("disc", "frame", "cross", "stripes"), count=10)
    for seed in (0, 1):
        train(home / "shapes", settings(**METRIC, seed=seed), out=home / f"first{seed}")
    return home


def test_a_model_is_taught_by_others(home, tmp_path, capsys):
    teacher = f"{home / 'first0'}, {home / 'first1'}"
    files = sorted(home.glob("first*/*.safetensors"))
    before = [path.read_bytes() for path in files]
    model = train(home / "shapes", settings(**METRIC, teacher=teacher, normalise=False), out=tmp_path / "second")
    losses = [line["loss"] for line in log_of(tmp_path / "second") if "loss" in line]
    assert len(losses) == 2 and all(np.isfinite(losses)) and np.ptp(losses) > 0
    assert f"by the distances of {teacher} on cpu" in capsys.readouterr().err
    assert files and before == [path.read_bytes() for path in files]
    # A model like any other: it needs its teachers no more.
    again = Model.load(tmp_path / "second", "cpu")
    photo = next((home / "shapes" / "disc").iterdir())
    torch.testing.assert_close(again.embed([photo]), model.embed([photo]))
    assert not any("teacher" in name for name in again.network.state_dict())


def test_each_step_asks_the_teachers_about_its_own_pictures(home, tmp_path, data):
    run = make_run(data, tmp_path / "run", **METRIC, teacher=str(home / "first0"))
    run.begin()
    objective, teacher = run.objective, Model.load(home / "first0", "cpu").network.eval()
    assert isinstance(objective, RelaxedContrastive) and not run.network.head.normalise
    assert not any(p.requires_grad for network in objective.teachers for p in network.parameters())
    images = torch.rand(8, 3, 16, 16)
    objective.see(images)
    with torch.no_grad():
        d2 = torch.cdist(*2 * [torch.nn.functional.normalize(teacher(images))]).square()
    torch.testing.assert_close(objective.likeness, torch.exp(-d2), rtol=1e-4, atol=1e-5)
    labels = run.feed.train.labels
    for batch in objective.batches(labels, 8, 0, 0):
        assert len(batch) == 2 * len(batch.unique())


def test_a_stopped_second_generation_goes_on_as_if_never_stopped(home, tmp_path, monkeypatch):
    given = settings(**METRIC, teacher=str(home / "first0"), epochs=3)
    whole = train(home / "shapes", given, out=tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(loop, "_stop_on_ctrl_c", stop_after(6))
        with pytest.raises(loop.Interrupted):
            train(home / "shapes", given, out=tmp_path / "cut")
    cut = train(home / "shapes", given, out=tmp_path / "cut", resume=True)
    for (name, a), b in zip(whole.network.state_dict().items(), cut.network.state_dict().values()):
        assert torch.equal(a, b), name


def test_the_preset_knows_what_a_second_generation_wants():
    given = {"task": "metric", "teacher": "a-model"}
    for gpu in (True, False):  # what is taught is the network, wherever it is
        chosen = preset_settings(None, given, gpu=gpu)
        assert {name: getattr(chosen, name) for name in TAUGHT} == TAUGHT and not chosen.freeze
    assert preset_settings(None, given | {"epochs": 3, "normalise": True}, gpu=True).normalise
    assert preset_settings(None, given | {"epochs": 3}, gpu=True).epochs == 3
    assert preset_settings(None, {"task": "metric"}, gpu=True).epochs != TAUGHT["epochs"]
    assert usual_rate(chosen, frozen=False) == TAUGHT_RATE != usual_rate(Settings(task="metric"), frozen=False)


@pytest.mark.parametrize("wrong", [{"task": "classify"}, {"loss": "softmax"}, {"freeze": True}])
def test_only_a_whole_network_for_the_task_metric_is_taught(wrong):
    with pytest.raises(
        InputError, match="'teacher' must be none unless a whole network is trained for the task metric"
    ):
        Settings(**{"task": "metric", "teacher": "a-model"} | wrong)


def test_a_teacher_that_is_not_there_or_reads_otherwise(home, tmp_path, data):
    with pytest.raises(InputError, match="There is no model folder"):
        make_run(data, tmp_path / "a", **METRIC, teacher=f"{home / 'first0'},{tmp_path / 'nowhere'}")
    shutil.copytree(home / "first0", tmp_path / "other")
    model = Model.load(tmp_path / "other", "cpu")
    model.network.input = model.network.input.__class__(**{**vars(model.network.input), "mean": (0.1, 0.2, 0.3)})
    model.save(tmp_path / "other")
    with pytest.raises(InputError, match="reads colours on another scale"):
        make_run(data, tmp_path / "b", **METRIC, teacher=str(tmp_path / "other"))


@pytest.mark.thorough
def test_from_the_command_line(home, tmp_path):
    options = flags(**{k: v for k, v in settings(**METRIC).to_dict().items() if k in ("network", "weights", "dim")})
    options += flags(task="metric", epochs=1, resize=18, crop_size=16, batch_size=8, lr=1e-3, device="cpu")
    done = nngk("train", home / "shapes", "--out", tmp_path / "m", "--teacher", home / "first0", *options)
    assert done.returncode == 0, done.stderr
    done = nngk("train", home / "shapes", "--out", tmp_path / "n", "--teacher", tmp_path / "nowhere", *options)
    assert done.returncode == 1 and "Traceback" not in done.stderr and "There is no model folder" in done.stderr
    assert not (tmp_path / "n" / "model.json").exists()
