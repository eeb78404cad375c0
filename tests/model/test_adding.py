"""Weights of added classes: the loss by plain loops, and what it does to the classes around them."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from nngk import Model
from nngk.errors import InputError
from nngk.model.adding import BOLDNESS, added_log_weight, lag, less_lag, taken_over
from nngk.model.classes import Classes, first_of_each, merged, renamed, similar_name, with_images, without_class
from nngk.model.features import Described, feature_width
from small_models import small_model


def neighbours(seed=0, classes=4, each=8, new=5, dim=3):
    """Classes that overlap, and rows of one more among them."""
    generator = torch.Generator().manual_seed(seed)
    means = 1.5 * torch.randn(classes + 1, dim, generator=generator)
    labels = torch.arange(classes).repeat_interleave(each)
    centres = means[labels] + torch.randn(len(labels), dim, generator=generator)
    theta = 0.5 * torch.randn(len(labels), generator=generator)
    known = Classes([f"class {i}" for i in range(classes)], centres, labels, theta, [""] * len(labels))
    return known, means[classes] + torch.randn(new, dim, generator=generator)


def loss(known, rows, sigma, t):
    """The leave-one-out loss of the new images and of all old ones, in float64 and by loops."""
    c, x, theta = known.centres.double(), rows.double(), known.theta.double()
    n = len(x)

    def drawn(images):
        mean = sum(images) / len(images)
        share = 5 / (5 + len(images))
        return [image + share * (mean - image) for image in images]

    def kernel(a, b):
        return math.exp(-float((a - b).square().sum()) / (2 * sigma**2))

    total = 0.0
    for i in range(n):
        others = drawn([x[j] for j in range(n) if j != i])
        own = math.exp(t) * n / (n - 1) * sum(kernel(x[i], other) for other in others)
        old = sum(math.exp(theta[j]) * kernel(x[i], c[j]) for j in range(len(c)))
        total -= math.log(own / (own + old))
    for i in range(len(c)):
        held = sum(math.exp(theta[j]) * kernel(c[i], c[j]) for j in range(len(c)) if j != i)
        reached = math.exp(t) * sum(kernel(c[i], new) for new in drawn(list(x)))
        total -= math.log(held / (held + reached))
    return total


def balanced(known, rows):
    """The weight with the least loss, from the way that is left to one that is much larger."""
    ask, usual = (known.kernels, known.positions, known.theta, 1.0, rows, len(known.centres)), 20.0
    return (added_log_weight(*ask, usual=usual) - BOLDNESS * usual) / (1 - BOLDNESS)


@pytest.mark.parametrize("seed", range(4))
def test_no_other_weight_has_a_lower_loss(seed):
    known, rows = neighbours(seed)
    found = balanced(known, rows)
    least = loss(known, rows, 1.0, found)
    assert all(least <= loss(known, rows, 1.0, found + step) + 1e-9 for step in (-2, -0.1, -0.01, 0.01, 0.1, 2))


def test_one_image_or_no_classes_leave_nothing_to_solve():
    known, rows = neighbours()
    assert added_log_weight(known.engine, known.centres, known.theta, 1.0, rows[:1], 10, 0.7) == 0.7
    empty = Classes([], rows[:0], torch.zeros(0).long(), torch.zeros(0), [])
    assert added_log_weight(empty.engine, empty.centres, empty.theta, 1.0, rows, 10, 0.7) == 0.7


def test_the_weight_lies_between_the_balanced_and_the_usual_one():
    known, rows = neighbours()
    ask = (known.kernels, known.positions, known.theta, 1.0, rows, len(known.centres))
    solved = balanced(known, rows)
    for usual in (solved, solved + 1, solved + 3):
        assert added_log_weight(*ask, usual=usual) == pytest.approx(solved + BOLDNESS * (usual - solved))


def test_a_new_class_weighs_no_more_than_an_average_one():
    known, rows = neighbours()
    ask = (known.kernels, known.positions, known.theta, 1.0, rows, len(known.centres))
    assert added_log_weight(*ask, usual=balanced(known, rows) - 3) == balanced(known, rows) - 3


def test_the_lag_of_a_class_of_few_images_is_what_it_measures():
    generator = torch.Generator().manual_seed(0)
    draws, dim, sigma = 400, 20, 2.0
    for drawn in (0.5, 0.75):
        found, expected = [], []
        for _ in range(draws):
            old, new, seen = (torch.randn(n, dim, generator=generator).double() for n in (30, 5, 50))
            known = Classes(["old"], old, torch.zeros(30).long(), torch.zeros(30).double(), [""] * 30, drawn=drawn)
            both = with_images(known, "new", new, [""] * 5)
            far = torch.cdist(seen, both.positions).square().mean(0)
            expected.append(float(far[30:].mean() - far[:30].mean()) / (2 * sigma**2))
            found.append(lag(known, new, sigma))
        assert np.mean(found) == pytest.approx(np.mean(expected), rel=0.1)
    assert lag(replace(known, drawn=0.0), new, sigma) == 0 == lag(known, new[:1], sigma)


def test_what_a_class_lacked_goes_when_more_images_come():
    generator = torch.Generator().manual_seed(0)
    old, new = (torch.randn(n, 20, generator=generator) for n in (300, 50))
    labels = torch.arange(10).repeat_interleave(30)
    known = Classes([str(i) for i in range(10)], old, labels, torch.zeros(300), [""] * 300, drawn=0.75)
    first = with_images(known, "new", new[:5], [""] * 5)
    less = less_lag(first, "new", new[5:], 1.0)
    assert less == pytest.approx(BOLDNESS * (lag(known, new[:5], 1.0) - lag(known, new, 1.0))) and less > 0.1
    assert less_lag(first, "3", new[5:], 1.0) == 0 == less_lag(replace(first, drawn=0.0), "new", new[5:], 1.0)


def test_more_images_of_a_class_weigh_what_those_before_weigh_by_then():
    model = small_model()
    model.classes = replace(model.classes, drawn=0.75)
    rows, features = torch.randn(3, 4), torch.randn(3, feature_width(model.network))
    for part in (slice(0, 2), slice(2, 3)):
        before = model.classes
        model.learn("new", Described(rows[part], features[part]), [f"{i}.png" for i in range(3)][part])
    less = less_lag(before, "new", rows[2:], model.sigma)
    assert less > 0
    theta, old = model.theta[model.classes.of("new")], float(before.theta[before.of("new")].mean())
    assert theta.tolist() == pytest.approx([old - less] * 3, rel=1e-5)
    assert torch.equal(model.theta[: len(before.theta) - 2], before.theta[:-2])


def test_kernels_of_a_class_that_was_added_are_drawn_together():
    known, rows = neighbours()
    one = with_images(known, "new", rows[:3], ["a", "b", "c"])
    both = with_images(one, "new", rows[3:], ["d", "e"])
    assert torch.equal(both.positions[: len(known.centres)], known.centres)  # the others stay where they are
    assert torch.equal(both.centres[len(known.centres) :], rows)  # and so do the images
    for classes, shown in ((one, rows[:3]), (both, rows)):
        mean, share = shown.mean(0), 5 / (5 + len(shown))
        for place, row in zip(classes.positions[len(known.centres) :], shown):
            assert place.tolist() == pytest.approx((row + share * (mean - row)).tolist(), abs=1e-6)
    more = with_images(known, "class 0", rows, [""] * len(rows))  # a class that was trained
    assert torch.equal(more.positions, more.centres)
    whole = merged(both, "new", "class 1")
    assert torch.equal(whole.positions, whole.centres)
    gone = without_class(both, "new")
    assert torch.equal(gone.positions, known.centres) and not gone.added.any()
    with pytest.raises(InputError, match=r"marks \(bool\)"):
        replace(known, added=torch.zeros(len(known.centres)))


def test_kernels_of_all_classes_are_drawn_to_their_means():
    known, rows = neighbours()
    drawn = replace(known, drawn=0.75)
    for place, row, label in zip(drawn.positions, known.centres, known.labels):
        mean = known.centres[known.labels == label].mean(0)
        assert place.tolist() == pytest.approx((row + 0.75 * (mean - row)).tolist(), abs=1e-5)
    added = with_images(drawn, "new", rows, [""] * len(rows))
    expected = rows + 0.75 * (rows.mean(0) - rows)  # five would be drawn half of the way
    torch.testing.assert_close(added.positions[len(known.centres) :], expected)
    assert without_class(added, "new").drawn == 0.75
    with pytest.raises(InputError, match="share from 0 to 1"):
        replace(known, drawn=1.5)


@pytest.mark.parametrize("far", [0.0, 1e4])
def test_weights_are_finite_at_any_distance(far):
    known, rows = neighbours()
    same = torch.zeros_like(rows) + far
    for new in (rows + far, same):
        assert math.isfinite(added_log_weight(known.engine, known.centres, known.theta, 0.01, new, 5, 0.0))


def test_what_a_class_takes_by_plain_loops():
    known, rows = neighbours(2)
    after = with_images(known, "new", rows, ["new"] * len(rows), weight=3.0)

    def answers(classes, i):
        d = (classes.positions.double() - classes.centres[i].double()).square().sum(1)
        kernels = (classes.theta.double() - d / 2).exp()
        kernels[i] = 0
        return int(torch.zeros(len(classes.names)).double().index_add_(0, classes.labels, kernels).argmax())

    expected = {}
    for i, label in enumerate(known.labels.tolist()):
        if answers(known, i) == label and answers(after, i) == len(known.names):
            count, size = expected.get(known.names[label], (0, 8))
            expected[known.names[label]] = (count + 1, size)
    assert taken_over(known, after, "new", 1.0, None) == expected and expected


def test_the_same_image_twice():
    known, rows = neighbours()
    both = torch.cat([rows, rows[:2], known.centres[:1]])
    assert first_of_each(known, "new", both).tolist() == [0, 1, 2, 3, 4, 7]
    assert first_of_each(known, "class 0", both).tolist() == [0, 1, 2, 3, 4]


def test_rename_and_merge():
    known, _ = neighbours()
    other = renamed(known, "class 1", "kite")
    assert other.names == ["class 0", "kite", "class 2", "class 3"] and torch.equal(other.labels, known.labels)
    one = merged(other, "class 0", "class 3")
    assert one.names == ["kite", "class 2", "class 3"] and int(one.of("class 3").sum()) == 16
    assert torch.equal(one.of("kite"), known.of("class 1"))
    for call in (lambda: renamed(known, "x", "y"), lambda: merged(known, "x", "class 1")):
        with pytest.raises(InputError, match="has no class 'x'"):
            call()


@pytest.mark.parametrize(
    ("name", "near"),
    [("buzard", "buzzard"), ("Buzzard", "buzzard"), ("buzzard", None), ("owl", None), ("class 7", None)],
)
def test_names_that_are_nearly_the_same(name, near):
    known, _ = neighbours()
    assert similar_name(renamed(known, "class 0", "buzzard").names, name) == near


def test_a_saved_model_keeps_what_was_added(tmp_path):
    model = small_model()
    photos = list(np.random.default_rng(0).integers(0, 256, (6, 12, 12, 3), dtype=np.uint8))
    model.add("shown", photos[:4])
    assert not torch.equal(model.classes.positions, model.centres)
    model.save(tmp_path / "m")
    again = Model.load(tmp_path / "m", "cpu")
    assert torch.equal(again.classes.positions, model.classes.positions)
    assert torch.equal(again.predict(again.embed(photos)).squared, model.predict(model.embed(photos)).squared)
    assert again.search(photos[0], 1)[0].distance < 1e-3  # the image itself, wherever its kernel stands
