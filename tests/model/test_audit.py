"""The audit: wrong labels, duplicates, confused classes and useless centres, and fewer centres that answer as well."""

import csv
import io
import json
import math

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from nngk import InputError, Model
from nngk.cli import cli
from nngk.model.audit import audit_model
from nngk.model.classes import Classes
from nngk.model.left_out import leave_each_out
from nngk.model.pruning import Lists, absorbed, pruned
from nngk.model.second_look import _Gaussians, second_look
from serving import write_model
from shapes import nngk
from small_models import small_model


def clusters(seed=0, classes=5, each=12, dim=6, apart=1.6):
    """Images of classes that overlap a little."""
    luck = torch.Generator().manual_seed(seed)
    labels = torch.arange(classes).repeat_interleave(each)
    rows = apart * torch.randn(classes, dim, generator=luck)[labels] + torch.randn(len(labels), dim, generator=luck)
    theta = 0.3 * torch.randn(len(labels), generator=luck)
    return Classes([f"c{i}" for i in range(classes)], rows, labels, theta, [f"{i}.png" for i in range(len(labels))])


def plain_probabilities(known, asked, sigma, without=(), theta=None):
    """Class probabilities of an image by all centres but some, in plain loops."""
    theta = known.theta if theta is None else theta
    sums = [0.0] * len(known.names)
    for j in range(len(known.labels)):
        if j not in without:
            d = sum((float(a) - float(b)) ** 2 for a, b in zip(known.centres[asked], known.centres[j]))
            sums[int(known.labels[j])] += math.exp(float(theta[j]) - d / (2 * sigma**2))
    return [value / sum(sums) for value in sums]


def test_each_is_left_out_as_in_plain_loops():
    known = clusters(each=4)
    left = leave_each_out(known, 1.1, None)
    for i in range(len(known.labels)):
        p = plain_probabilities(known, i, 1.1, {i})
        assert float(left.own[i].exp()) == pytest.approx(p[int(known.labels[i])], rel=1e-4)
        assert int(left.called[i]) == int(np.argmax(p))
        assert float(left.called_log[i].exp()) == pytest.approx(max(p), rel=1e-4)


def test_an_image_without_a_neighbour_of_its_class_has_a_probability_all_the_same():
    rows = torch.tensor([[0.0], [0.1], [0.2], [5.0], [0.15]])
    known = Classes(["a", "b"], rows, torch.tensor([0, 0, 0, 1, 1]), torch.zeros(5), list("12345"))
    left = leave_each_out(known, 1.0, 2)
    assert left.own.isfinite().all() and int(left.own.argmin()) in (3, 4)


def test_one_image_alone_is_judged_by_nobody():
    known = Classes(["a"], torch.zeros(1, 2), torch.zeros(1).long(), torch.zeros(1), ["1"])
    with pytest.raises(InputError, match="two or more are needed"):
        leave_each_out(known, 1.0, None)


def test_left_out_gaussians_are_those_that_never_saw_the_image():
    luck = torch.Generator().manual_seed(3)
    x, labels = torch.randn(24, 5, generator=luck), torch.arange(24) % 3
    fit = _Gaussians(x, labels, 4)  # the last class has no image
    scores = torch.cat([next(fit.without_each(rows, which, (0.7,))) for rows, which in fit.chunks()])
    shrunk = 0.7 * float(fit.values.mean()) * torch.eye(5).double()
    for i in (0, 7, 23):
        rest = torch.arange(24) != i
        rows, which = x[rest].double(), labels[rest]
        means = torch.stack([rows[which == label].mean(0) for label in range(3)])
        apart = rows - means[which]
        inverse = torch.linalg.inv(apart.T @ apart / 24 + shrunk)  # of as many images as with it
        away = x[i].double() - means
        expected = -(away @ inverse * away).sum(1) / 2
        assert torch.allclose(scores[i, :3].double(), expected, atol=1e-4) and scores[i, 3] == -torch.inf


def test_the_only_image_of_a_class_is_not_doubted():
    known = clusters(classes=3, each=8)
    judged = second_look(torch.cat([known.centres, known.centres[:1]]), torch.cat([known.labels, torch.tensor([3])]), 4)
    assert judged.own.isfinite().all() and int(judged.called[-1]) == 3


def test_planted_errors_come_first():
    known = clusters(seed=1, classes=6, each=20, dim=16, apart=1.5)
    wrong = [3, 30, 77, 110]
    labels = known.labels.clone()
    labels[wrong] = (labels[wrong] + 2) % 6
    judged = second_look(known.centres, labels, 6)
    assert set(judged.own.argsort()[:4].tolist()) == set(wrong)
    assert judged.called[wrong].tolist() == known.labels[wrong].tolist()


def test_a_second_look_refuses_what_it_cannot_judge():
    with pytest.raises(InputError, match="two classes or more"):
        second_look(torch.randn(4, 3), torch.zeros(4).long(), 1)
    with pytest.raises(InputError, match="finite rows"):
        second_look(torch.full((4, 3), torch.nan), torch.tensor([0, 1, 0, 1]), 2)


def test_a_centre_is_missed_as_much_as_in_plain_loops():
    known, sigma = clusters(classes=3, each=4), 1.3
    missed, kept = Lists(known, sigma, None).usefulness(torch.ones(12, dtype=torch.bool))
    logs = [math.log(plain_probabilities(known, i, sigma, {i})[int(known.labels[i])]) for i in range(12)]
    assert kept.loss == pytest.approx(-np.mean(logs), rel=1e-4)
    for j in range(12):
        expected = 0.0
        for i in range(12):
            if i != j:
                p = plain_probabilities(known, i, sigma, {i, j})[int(known.labels[i])]
                expected += logs[i] - math.log(p)
        assert float(missed[j]) == pytest.approx(expected, rel=1e-3, abs=1e-4)


@given(st.integers(0, 50), st.floats(0.3, 0.95))
@settings(max_examples=15, deadline=None)
def test_pruning_keeps_what_it_promises(seed, share):
    known = clusters(seed=seed, classes=4, each=9)
    count = round(share * 36)
    kept, curve = pruned(known, 1.0, 20, count)
    assert len(kept.centres) == count == curve[-1].centres and curve[0].centres == 36
    assert (torch.bincount(kept.labels, minlength=4) >= 2).all() and set(kept.sources) <= set(known.sources)
    for label in range(4):  # a class weighs what it did
        before, after = (each.theta[each.labels == label].logsumexp(0) for each in (known, kept))
        assert float(after) == pytest.approx(float(before), abs=1e-4)
    assert [point.centres for point in curve] == sorted((point.centres for point in curve), reverse=True)


def test_pruning_halves_a_model_without_losing_new_images():
    known, new = clusters(seed=5, each=40, apart=2.0), clusters(seed=5, each=80, apart=2.0)
    half, _ = pruned(known, 1.0, 50, 100)

    def right(classes):
        squared = torch.cdist(new.centres, classes.centres).square()
        values = classes.theta - squared / 2
        sums = torch.stack([values[:, classes.labels == c].logsumexp(1) for c in range(5)], 1)
        return float((sums.argmax(1) == new.labels).double().mean())

    assert right(half) > right(known) - 0.03


def test_a_centre_that_stays_stands_for_the_nearest_of_its_class():
    rows = torch.tensor([[0.0], [1.0], [10.0], [0.4], [7.0]])
    theta = torch.tensor([0.0, math.log(3), 0.0, 0.0, 0.0])
    known = Classes(["a", "b"], rows, torch.tensor([0, 0, 0, 1, 1]), theta, list("12345"), coordinates=10 * rows)
    kept = absorbed(known, torch.tensor([True, False, True, False, True]))
    assert torch.allclose(kept.centres.flatten(), torch.tensor([0.75, 10.0, 3.7]))  # one of them three times as heavy
    assert torch.allclose(kept.theta.exp(), torch.tensor([4.0, 1.0, 2.0])) and kept.sources == ["1", "3", "5"]
    assert torch.allclose(kept.coordinates, 10 * kept.centres)


@pytest.mark.parametrize("count", [0, 7, 37])
def test_too_few_or_too_many_centres_are_refused(count):
    with pytest.raises(InputError, match="8 to 36 can be kept"):
        pruned(clusters(classes=4, each=9), 1.0, None, count)


def test_the_audit_of_a_model():
    model = small_model()
    row = model.classes
    doubled = torch.cat([row.coordinates[:11], row.coordinates[:1] + 1e-4])
    model.classes = Classes(row.names, row.centres, row.labels, row.theta, row.sources, coordinates=doubled)
    found = audit_model(model, torch.randn(12, 20, generator=torch.Generator().manual_seed(0)))
    assert found.looked == "photos" and found.images == 12
    assert found.duplicates[0].places == (0, 11)
    assert found.duplicates[0].labels == ("class 0 äöü", "class 2 äöü")
    chances = [each.probability for each in found.suspects]
    assert chances == sorted(chances) and all(each.label != each.called for each in found.suspects)
    wrong = sum(each.count for each in found.confused)
    assert wrong == round(12 * (1 - found.accuracy))
    assert all(each.missed <= 0 for each in found.useless)
    json.dumps(found.to_dict())
    assert len(list(found.rows())) == sum(len(rows) for _, rows in found.sections())


@pytest.mark.thorough
def test_on_the_command_line(tmp_path):
    folder = write_model(tmp_path)
    with Model.changing(folder, "cpu") as model:  # two red pictures are called blue
        labels, red = model.labels.clone(), model.class_names.index("red")
        wrong = [model.sources[i] for i in (labels == red).nonzero().flatten()[:2].tolist()]
        labels[(labels == red).nonzero().flatten()[:2]] = model.class_names.index("blue")
        model.classes = Classes(model.class_names, model.centres, labels, model.theta, model.sources)
    said = json.loads(nngk("audit", folder, "--json").stdout)
    assert said["looked"] == "photos" and {each["image"] for each in said["suspects"][:2]} == set(wrong)
    done = nngk("audit", folder, "--prune", "0.5", "--out", tmp_path / "half")
    assert done.returncode == 0 and "Traceback" not in done.stderr and "18   " in done.stdout
    assert len(Model.load(tmp_path / "half", "cpu").centres) == 18 and len(Model.load(folder, "cpu").centres) == 36
    assert Model.load(tmp_path / "half", "cpu").info["pruned_from"] == 36
    run = CliRunner().invoke
    rows = list(csv.DictReader(io.StringIO(run(cli, ["audit", str(folder), "--csv", "--no-photos"]).stdout)))
    assert {row["image"] for row in rows if row["kind"] == "label"} >= set(wrong)
    for words, sentence in (
        (["--prune", "0.5", "--out", str(tmp_path / "half")], "holds a model already"),
        (["--prune", "1.5"], "a number of centres or a share"),
        (["--out", str(tmp_path / "new")], "say with --prune"),
        (["--csv", "--json"], "not both"),
    ):
        assert sentence in str(run(cli, ["audit", str(folder), *words]).exception)
