"""The settings that fit a run to its machine: what is compiled, and where the images are."""

import copy
from dataclasses import replace

import pytest
import torch

from nngk.errors import InputError
from nngk.files import write_json
from nngk.networks.recorded import always_recorded
from nngk.training import feed, loop
from nngk.training.graphs import own_gradients
from nngk.training.outset import same_settings
from nngk.training.settings import Settings
from runs import make_run
from shapes import TINY


class Recorded:
    """Stands in for a captured network: calls the network and notes in which mode it was."""

    def __init__(self, network, device):
        self.network, self.modes = network, []

    def __call__(self, images):
        self.modes.append(self.network.training)
        return self.network(images)


def test_steps_go_through_the_captured_network_and_refreshes_do_not(data, tmp_path, monkeypatch):
    plain = make_run(data, tmp_path / "plain", compile="off")
    monkeypatch.setattr("nngk.training.build.Graphed", Recorded)
    run = make_run(data, tmp_path / "run", compile="graphs")
    losses = [loop.train_epoch(r, lambda: False, 0.0)[0] for r in (run, plain)]
    assert run.stepping.modes == [True] * run.steps_per_epoch
    assert losses[0] == losses[1]


def test_images_stay_where_they_are_without_a_gpu(data, tmp_path):
    run = make_run(data, tmp_path / "run")
    same = feed.resident_feed(run.feed, 18, run.settings)
    assert same.train.source is run.feed.train.source and same.augment is run.feed.augment


def test_the_limit_is_one_for_all_parts(data, tmp_path, monkeypatch):
    run = make_run(data, tmp_path / "run", resident_gib=1e-5)
    limits = []

    def kept(source, size, device, limit, **options):
        limits.append(limit)
        return feed.Resident(source, "cpu")

    monkeypatch.setattr(feed, "kept", kept)
    there = feed.resident_feed(replace(run.feed, device=torch.device("cuda")), 18, run.settings)
    sizes = [len(part) * 3 * 18 * 18 for part in (run.feed.train, run.feed.val)]
    assert limits == pytest.approx([1e-5 * 2**30, 1e-5 * 2**30 - sizes[0], 1e-5 * 2**30 - sum(sizes)])
    everything = torch.arange(len(run.feed.train))
    found, expected = (feed.train.source.batch(everything).compact() for feed in (there, run.feed))
    assert torch.equal(found.pixels, expected.pixels) and torch.equal(found.places, expected.places)


def test_a_resumed_run_may_change_its_machine(data, tmp_path):
    asked = Settings(**TINY)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoint.json").write_text("{}")
    write_json(tmp_path / "run" / "settings.json", asked.to_dict())
    changed = Settings(**{**TINY, "compile": "off", "resident_gib": 0.0})
    assert same_settings(tmp_path / "run", changed, ["compile", "resident_gib"]) == changed


def test_refusals():
    with pytest.raises(InputError, match="resident_gib"):
        Settings(resident_gib=-1)
    with pytest.raises(InputError, match="neighbour lists"):
        Settings(drop_centres=0.5, n_neighbours=None)
    with pytest.raises(InputError, match="compile"):
        Settings(compile="always")


def test_graphs_are_for_a_gpu(data, tmp_path):
    run = make_run(data, tmp_path / "auto")
    assert run.stepping is run.trainee
    with pytest.raises(InputError, match="CUDA"):
        make_run(data, tmp_path / "graphs", compile="graphs")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_a_replayed_step_is_the_step(data, tmp_path, dropout):
    runs = [
        make_run(data, tmp_path / how, device="cuda", compile=how, amp=False, dropout=dropout)
        for how in ("off", "graphs")
    ]
    losses = [loop.train_epoch(run, lambda: False, 0.0)[0] for run in runs]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    for a, b in zip(runs[0].network.parameters(), runs[1].network.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_replayed_network_follows_its_weights(data, tmp_path):
    run = make_run(data, tmp_path / "run", device="cuda", compile="graphs", amp=False)
    assert run.refresher.prepare is always_recorded
    called = always_recorded(copy.deepcopy(run.network))
    run.embed(run.feed.train, called)
    with torch.no_grad():
        for parameter in (*called.parameters(), *run.network.parameters()):
            parameter.mul_(1.1)
    torch.testing.assert_close(run.embed(run.feed.train, called), run.embed(run.feed.train), rtol=1e-4, atol=1e-5)


def test_without_a_gpu_nothing_is_replayed(data, tmp_path):
    run = make_run(data, tmp_path / "run")
    assert run.refresher.prepare is None
    called = always_recorded(copy.deepcopy(run.network))
    torch.testing.assert_close(run.embed(run.feed.train, called), run.embed(run.feed.train))


def test_gradients_that_are_one_tensor_become_two():
    """Two biases that are added to each other have the same gradient, and clipping works in place."""
    first, second, weight = (torch.nn.Parameter(torch.ones(3)) for _ in range(3))
    out = (weight * 2 + (first + second)).sum()
    found = torch.autograd.grad(out, [first, second, weight])
    assert found[0].data_ptr() == found[1].data_ptr()  # else there is nothing to test
    own = own_gradients(found, [first, second, weight])
    assert len({g.data_ptr() for g in own}) == 3
    assert all(torch.equal(a, b) for a, b in zip(own, found))
    assert own_gradients([None], [first]) == (None,)
