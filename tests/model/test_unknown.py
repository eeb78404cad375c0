"""The unknown score: its measures by plain loops, what is familiar, and the classes that pretend to be unknown."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nngk.errors import InputError
from nngk.kernel.predict import Prediction
from nngk.metrics import auroc
from nngk.model.classes import Classes, with_images
from nngk.model.features import Described
from nngk.model.pretend import (
    CONFIDENCE,
    HELD_FOLDS,
    PRIOR,
    _measure,
    learn_familiar,
    logistic_weights,
    measured_in_folds,
)
from nngk.model.space import Space, fit_space
from nngk.model.unknown import Familiar, confidence, deviations, lead, measured, strangeness, tightness
from small_models import small_model

numbers = st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=20)


def clusters(seed=0, classes=10, each=12, channels=40, apart=1.5):
    """Features of classes around means of their own, and their labels."""
    generator = torch.Generator().manual_seed(seed)
    means = apart * torch.randn(classes, channels, generator=generator)
    labels = torch.arange(classes).repeat_interleave(each)
    return means[labels] + torch.randn(len(labels), channels, generator=generator), labels


def as_classes(features, labels):
    m, count = len(labels), int(labels.max()) + 1
    return Classes([str(i) for i in range(count)], features, labels, torch.zeros(m), [str(i) for i in range(m)])


# -- formulas


@given(numbers, numbers)
def test_strangeness_is_a_share_and_falls_with_the_value(values, familiar):
    ordered = torch.tensor(familiar, dtype=torch.float64).sort().values
    x = torch.tensor(values, dtype=torch.float64).sort().values
    strange = strangeness(x, ordered)
    assert bool((strange >= 0).all()) and bool((strange <= 1).all()) and bool((strange.diff() <= 1e-12).all())
    for value, share in zip(x.tolist(), strange.tolist()):
        if value >= min(familiar):
            assert share == pytest.approx(sum(f >= value for f in familiar) / (len(familiar) + 1))
        else:
            assert share >= len(familiar) / (len(familiar) + 1) - 1e-12


@given(numbers, st.floats(0.01, 0.5))
def test_the_score_is_one_half_where_false_alarms_begin(values, false_alarms):
    x = torch.tensor(values)
    familiar = Familiar({"density": x}, false_alarms=false_alarms)
    alike = familiar.alike({"density": torch.linspace(-2e3, 2e3, 50)})
    score = familiar.score(alike)
    assert torch.equal(score > 0.5, alike < false_alarms)
    assert bool((score.diff() <= 1e-12).all()) and 0 <= float(score.min()) <= float(score.max()) <= 1


def kernel_odds(probabilities):
    rest = sum(probabilities) - max(probabilities)
    return min(math.log(max(probabilities) / rest), 50.0) if rest > 0 else 50.0


def test_measures_by_plain_loops():
    model = small_model()
    x, features = torch.randn(5, 4), torch.randn(5, len(model.familiar.space.origin))
    found = model.predict(x)
    got = measured(found, model.classes.class_means, model.familiar.space.coordinates(features))
    space, centres = model.familiar.space, model.classes.coordinates.double()
    for i in range(5):
        place = (features[i].double() - space.origin.double()) @ space.directions.double()
        means = [centres[model.labels == c].mean(0) for c in range(3)]
        squared = [float((place - mean).square().sum()) for mean in means]
        nearest = min(squared)
        odds = [math.exp(-(d - nearest) / 8) for d in squared]
        expected = {
            "closeness": -math.sqrt(nearest),
            "contrast": -nearest / float(place.square().sum()),
            "lead": -math.log(sum(odds) - 1),
            "density": float(found.log_density[i]),
            "confidence": kernel_odds(found.log_probabilities[i].double().exp().tolist()),
        }
        cosines = sorted(float(place @ mean / place.norm() / mean.norm()) for mean in means)
        certainty = 10 * cosines[-1] - math.log(sum(math.exp(10 * cosine) for cosine in cosines))
        expected |= {"certainty": certainty, "gap": cosines[-1] - cosines[-2]}
        assert {name: float(values[i]) for name, values in got.items()} == pytest.approx(expected, rel=1e-3, abs=1e-3)


def test_likeness_by_plain_loops():
    features, labels = clusters(classes=3, each=8)
    space = fit_space(features, labels)
    assert torch.equal(space.plain, torch.eye(40)) and space.width == len(space.directions.T) + 40
    classes = replace(as_classes(features, labels), coordinates=space.coordinates(features))
    asked = torch.randn(5, 40, generator=torch.Generator().manual_seed(3))
    found = Prediction(torch.zeros(5, 3), *[torch.zeros(5)] * 4)
    got = measured(found, classes.class_means, space.coordinates(asked), space=space)
    middle = features.double().mean(0)
    for row, likeness in zip(asked.double() - middle, got["likeness"].tolist()):
        along = torch.stack([(y - middle) @ row / (y - middle).norm() / row.norm() for y in features.double()])
        assert likeness == pytest.approx(max(float(along[labels == c].mean()) for c in range(3)), abs=1e-4)
    without = measured(
        found, classes.class_means[:, : len(space.directions.T)], space.apart(space.coordinates(asked))[0]
    )
    assert "likeness" not in without
    torch.testing.assert_close(got["closeness"], without["closeness"])


def test_likeness_allows_for_how_alike_the_images_of_a_class_are():
    """Recomputed from all pairs: a photo of a class that varies much is as much one of it as one of a tight class."""
    generator = torch.Generator().manual_seed(4)
    loose, single = torch.randn(5, 12, generator=generator), torch.randn(1, 12, generator=generator)
    tight = torch.randn(12, generator=generator) + 0.3 * torch.randn(9, 12, generator=generator)
    classes = [torch.nn.functional.normalize(rows.double()) for rows in (loose, tight, single)]
    means, counts = torch.stack([rows.mean(0) for rows in classes]), torch.tensor([5, 9, 1])
    cosines = []
    for rows in classes[:2]:
        n = len(rows)
        cosines.append(sum(float(rows[i] @ rows[j]) for i in range(n) for j in range(i)) / (n * (n - 1) / 2))
    usual = sum(cosines) / 2
    expected = [(cosines[0] - usual) * 10 / 11, (cosines[1] - usual) * 36 / 37, 0.0]
    assert tightness(means, counts).tolist() == pytest.approx(expected, abs=1e-12)
    assert tightness(means[2:], counts[2:]).tolist() == [0.0]
    space = Space(torch.zeros(12, 1), torch.zeros(12), torch.eye(12))
    asked = torch.randn(6, 12, generator=generator)
    found = Prediction(torch.zeros(6, 3), *[torch.zeros(6)] * 4)
    how = (space.coordinates(asked), None, None, space)
    got = measured(found, torch.cat([torch.zeros(3, 1), means.float()], 1), *how, counts)["likeness"]
    for row, likeness in zip(torch.nn.functional.normalize(asked.double()), got.tolist()):
        assert likeness == pytest.approx(max(float(row @ m) - e for m, e in zip(means, expected)), abs=1e-5)


def test_a_class_that_varies_more_than_the_trained_ones_is_known_oftener():
    labels, is_taught = torch.arange(3).repeat_interleave(25), torch.tensor([False, False, False, True])
    found = Prediction(torch.zeros(20, 4), *[torch.zeros(20)] * 4)
    plain, allowed = [], []
    for seed in range(6):
        generator = torch.Generator().manual_seed(seed)
        middles = torch.randn(4, 64, generator=generator)
        *trained, loose = (
            m + spread * torch.randn(25, 64, generator=generator) for m, spread in zip(middles, (0.3, 0.3, 0.3, 0.5))
        )
        features = torch.cat(trained)
        familiar, coordinates = learn_familiar(as_classes(features, labels), features, 3.0, 20, None, 0.05)
        shown = torch.cat([features, loose[:5]])
        every = replace(
            as_classes(shown, torch.cat([labels, torch.full((5,), 3)])),
            coordinates=torch.cat([coordinates, familiar.space.coordinates(loose[:5])]),
        )
        how = (familiar.space.coordinates(loose[5:]), is_taught, None, familiar.space)
        plain.append(familiar.alike(measured(found, every.class_means, *how)) > 0.05)
        allowed.append(familiar.alike(measured(found, every.class_means, *how, every.class_sizes)) > 0.05)
    assert torch.cat(allowed).double().mean() > torch.cat(plain).double().mean() + 0.2


def test_plain_directions_are_kept_for_few_classes_alone():
    features, labels = clusters(classes=4, each=10)
    familiar, coordinates = learn_familiar(as_classes(features, labels), features, 3.0, None)
    again = Familiar.read(familiar.tensors(), familiar.settings())
    assert torch.equal(again.space.plain, familiar.space.plain)
    assert torch.equal(again.values["likeness"], familiar.values["likeness"])
    assert coordinates.shape[1] == familiar.space.width == again.space.width
    with pytest.raises(InputError, match="plain directions"):
        Familiar.read(familiar.tensors() | {"space.plain": torch.zeros(3, 5)}, familiar.settings())
    none = {name: values[:0] for name, values in familiar.values.items()}
    assert familiar.alike(none).shape == (0,)  # of no images
    features, labels = clusters(classes=40, each=3)
    assert fit_space(features, labels).plain is None


def test_a_taught_class_makes_no_other_strange():
    """Where few classes are known, a class that is taught lies between them: it must not take their images along."""
    features, labels = clusters(classes=3, each=20, apart=3.0)
    familiar, coordinates = learn_familiar(as_classes(features, labels), features, 5.0, 20, None, 0.05)
    space = familiar.space
    means = torch.stack([coordinates[labels == label].float().mean(0) for label in range(3)])
    generator = torch.Generator().manual_seed(1)
    two = 3 * torch.randn(2, features.shape[1], generator=generator)
    new, other = (mean + 0.8 * torch.randn(25, features.shape[1], generator=generator) for mean in two)
    with_taught = torch.cat([means, space.coordinates(new[:5]).mean(0, keepdim=True)])
    is_taught = torch.tensor([False, False, False, True])
    found = Prediction(torch.zeros(60, 4), *[torch.zeros(60)] * 4)
    seen = measured(found, means, coordinates, space=space)
    again = measured(found, with_taught, coordinates, is_taught, space=space)
    for part in familiar.parts:
        torch.testing.assert_close(again[part], seen[part])

    def asked(rows, *known):
        found = Prediction(torch.zeros(len(rows), 4), *[torch.zeros(len(rows))] * 4)
        return measured(found, *known[:1], space.coordinates(rows), *known[1:], space=space)

    after = asked(new[5:], with_taught, is_taught)
    assert after["likeness"].isfinite().all() and after["gap"].isnan().all() and after["closeness"].isnan().all()
    assert not familiar.completed(after)["gap"].isnan().any()
    shares = [familiar.alike(asked(rows, with_taught, is_taught)) for rows in (new[5:], other)]
    assert (familiar.alike(asked(new[5:], means)) < 0.05).double().mean() > 0.9  # unknown before it was taught
    assert (shares[0] > 0.05).double().mean() > 0.8  # and known now
    assert (shares[1] < 0.05).double().mean() > 0.8  # what was never shown stays unknown


def test_an_image_is_compared_by_the_measures_that_it_has():
    """A measure without a value is no usual one: a far image near a taught class would seem ordinary by the others."""
    values = {name: torch.linspace(-1, 1, 41) for name in ("density", "closeness", "lead", "gap")}
    familiar = Familiar(values, ("closeness", "lead", "gap"), weights=(1.0, 1.0, 1.0))
    nan = torch.tensor([torch.nan, 0.0])
    asked = {"density": torch.zeros(2), "closeness": torch.tensor([-1.2, 0.0]), "lead": nan, "gap": nan}
    shares = familiar.alike(asked)
    assert float(shares[0]) < 0.05 and float(shares[1]) == pytest.approx(0.5, abs=0.05)
    alone = familiar.alike({"closeness": asked["closeness"][:1], "density": asked["density"][:1]})
    assert float(shares[0]) == float(alone)
    nothing = {name: torch.full((1,), torch.nan) for name in values}
    assert float(familiar.alike(nothing | {"density": nan[1:]})) > 0.4
    assert float(familiar.alike(nothing)) == 0  # an image without any value is like nothing
    assert float(familiar.score(familiar.alike(nothing))) == 1


def test_ranks_of_the_parts_are_added():
    values = {"density": torch.tensor([1.0, 2.0, 3.0, 4.0]), "lead": torch.tensor([4.0, 3.0, 9.0, 1.0])}
    familiar = Familiar(values, ("density", "lead"))
    asked = {"density": torch.tensor([2.5, 4.0]), "lead": torch.tensor([3.5, 9.0])}

    def rank(name, value):
        return sum(float(v) >= value for v in values[name]) / 5

    usual = [(rank("density", float(a)) + rank("lead", float(b))) / 2 for a, b in zip(*values.values())]
    for i, share in enumerate(familiar.alike(asked).tolist()):
        own = (rank("density", float(asked["density"][i])) + rank("lead", float(asked["lead"][i]))) / 2
        assert share == pytest.approx(1 - sum(u <= own + 1e-12 for u in usual) / 5)
    # A measure that was not taken does not count.
    only = Familiar(values, ("density",)).alike({"density": asked["density"]})
    assert torch.equal(familiar.alike({"density": asked["density"]}), only)


def test_weighted_parts_by_plain_loops():
    values = {"density": torch.tensor([1.0, 2.0, 3.0, 4.0]), "lead": torch.tensor([4.0, 3.0, 9.0, 1.0])}
    familiar = Familiar(values, ("density", "lead"), weights=(0.5, 2.0))
    asked = {"density": torch.tensor([2.5, 4.0]), "lead": torch.tensor([3.5, 9.0])}

    def familiarity(density, lead):
        total = 0.0
        for name, weight, value in (("density", 0.5, density), ("lead", 2.0, lead)):
            usual = [float(v) for v in values[name]]
            mean = sum(usual) / 4
            total += weight * (value - mean) / math.sqrt(sum((u - mean) ** 2 for u in usual) / 4)
        return total

    usual = [familiarity(float(a), float(b)) for a, b in zip(*values.values())]
    for i, share in enumerate(familiar.alike(asked).tolist()):
        own = familiarity(float(asked["density"][i]), float(asked["lead"][i]))
        assert share == pytest.approx(1 - sum(u >= own for u in usual) / 5)
    # Where a measure was not taken, the weights say nothing of the others.
    only = Familiar(values, ("density",)).alike({"density": asked["density"]})
    assert torch.equal(familiar.alike({"density": asked["density"]}), only)
    assert Familiar.read(familiar.tensors(), familiar.settings()).weights == (0.5, 2.0)


@pytest.mark.parametrize("seed", range(3))
def test_no_other_weights_tell_better(seed):
    """The convex loss by plain loops: no step that keeps the weights from being negative lowers it."""
    generator = torch.Generator().manual_seed(seed)
    y = (torch.arange(60) % 3 == 0).double()
    x = torch.randn(60, 3, generator=generator).double() + y[:, None] * torch.tensor([1.0, 0.3, -1.0])
    found = logistic_weights(x, y, torch.full((3,), 0.5).double())
    assert float(found.min()) >= 0 and float(found[2]) == 0

    def loss(weights):
        def at(bias):
            total = 0.0
            for row, label in zip(x.tolist(), y.tolist()):
                told = sum(w * v for w, v in zip(weights, row)) + bias
                count = 60 * 0.5 / (20 if label else 40)
                total += count * math.log1p(math.exp(-told if label else told))
            return total + PRIOR / 2 * sum((w - 0.5) ** 2 for w in weights) + 5e-7 * bias**2

        return min(at(bias / 50) for bias in range(-150, 150))

    least = loss(found.tolist())
    for place in range(3):
        for step in (-0.1, 0.1):
            other = found.tolist()
            other[place] += step
            assert other[place] < 0 or loss(other) >= least - 1e-4


def test_distances_in_the_space_are_mahalanobis_distances():
    """Between class means, where the space leaves nothing out, under the shrunk spread, in float64."""
    features, labels = clusters(classes=5, channels=9)
    x = features.double()
    means = torch.stack([x[labels == c].mean(0) for c in range(5)])
    spread = sum(torch.outer(row - means[c], row - means[c]) for row, c in zip(x, labels.tolist())) / len(x)
    spread += spread.diagonal().mean() * torch.eye(9)
    inverse = torch.linalg.inv(spread.double())
    space = fit_space(features, labels)
    places, _ = space.apart(space.coordinates(means.float()))
    for a in range(5):
        for b in range(5):
            expected = float((means[a] - means[b]) @ inverse @ (means[a] - means[b]))
            assert float((places[a] - places[b]).square().sum()) == pytest.approx(expected, rel=1e-3, abs=1e-3)


def test_the_lead_of_a_single_class_and_far_away():
    assert torch.isfinite(lead(torch.tensor([[3.0]]))).all()
    assert torch.isfinite(lead(torch.tensor([[0.0, 1e6], [1e6, 1e6]]))).all()


# -- what training finds


def test_pretended_unknowns_choose_parts_that_tell_real_ones_apart():
    features, labels = clusters(seed=1, classes=14)
    known, unknown = labels < 10, labels >= 10
    new = torch.arange(len(labels)) % 4 == 0
    classes = as_classes(features[known & ~new], labels[known & ~new])
    familiar, coordinates = learn_familiar(classes, features[known & ~new], 3.0, None)
    model = Classes(**{**vars(classes), "coordinates": coordinates})
    assert min(familiar.weights) >= 0 and max(familiar.weights) > 0
    shares = [
        familiar.alike(_measure(model, 3.0, None, features[rows], features[rows], familiar.space))
        for rows in (known & new, unknown)
    ]
    assert auroc(-shares[0], -shares[1]) > 0.9
    assert float((shares[0] < 0.05).double().mean()) < 0.25 and float((shares[1] < 0.05).double().mean()) > 0.4
    assert len(familiar.values["density"]) >= 0.7 * len(classes.centres)


def test_new_images_set_the_threshold_where_there_are_enough():
    features, labels = clusters()
    new = torch.arange(len(labels)) % 3 == 0
    classes = as_classes(features[~new], labels[~new])
    familiar, _ = learn_familiar(classes, features[~new], 3.0, None, Described(features[new], features[new]))
    assert len(familiar.values["density"]) == int(new.sum())
    few, _ = learn_familiar(classes, features[~new], 3.0, None, Described(features[new][:19], features[new][:19]))
    assert len(few.values["density"]) != 19


@pytest.mark.parametrize("counts", [[1], [2], [1, 1], [2, 1], [3, 3], [1, 1, 1], [5, 1, 2], [2] * 7])
def test_few_images_and_classes(counts):
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    features = torch.randn(len(labels), 6, generator=torch.Generator().manual_seed(0))
    familiar, coordinates = learn_familiar(as_classes(features, labels), features, 1.0, 100)
    assert all(torch.isfinite(values).all() for values in familiar.values.values())
    assert (familiar.space is None) == (coordinates is None) == (len(counts) < 2)
    if len(labels) > 1:
        assert len(familiar.values["density"])


def test_the_same_images_give_the_same_score():
    features, labels = clusters()
    one, two = (learn_familiar(as_classes(features, labels), features, 2.0, 10)[0] for _ in range(2))
    assert one.settings() == two.settings()
    assert all(torch.equal(one.values[name], two.values[name]) for name in one.values)


# -- calibration


def test_images_held_out_are_measured_among_all_but_their_fold():
    features, labels = clusters(seed=3, each=8)
    held = torch.randperm(80, generator=torch.Generator().manual_seed(1))[:30]
    got = measured_in_folds(as_classes(features, labels), features, held, 1.0, None)
    by_class = sorted(range(30), key=lambda i: (int(labels[held[i]]), i))
    for fold in range(HELD_FOLDS):
        out = [i for place, i in enumerate(by_class) if place % HELD_FOLDS == fold]
        rest = [row for row in range(80) if row not in held[out].tolist()]
        space = fit_space(features[rest], labels[rest])
        places, _ = space.apart(space.coordinates(features))
        means = [places[[r for r in rest if labels[r] == c]].mean(0) for c in range(10)]
        for i in out:
            place = places[held[i]]
            assert float(got["closeness"][i]) == pytest.approx(-min(float((place - m).norm()) for m in means), rel=1e-4)
    assert "density" not in got and "confidence" not in got and all(len(values) == 30 for values in got.values())


def test_images_held_out_look_as_familiar_as_new_ones_will():
    features, labels = clusters(seed=4, classes=40, each=50, channels=200, apart=0.5)
    new = torch.arange(2000) % 50 >= 20  # of each class 12 are trained on first, then 20; the rest is new
    first = torch.arange(2000) % 50 < 12
    rows = (~new).nonzero().flatten()
    held = (~first)[rows].nonzero().flatten()
    known = as_classes(features[rows], labels[rows])
    folds = measured_in_folds(known, features[rows], held, 1.0, None)["closeness"]

    def closeness(shown, asked):
        space = fit_space(features[shown], labels[shown])
        there = replace(as_classes(features[shown], labels[shown]), coordinates=space.coordinates(features[shown]))
        return _measure(there, 1.0, None, features[asked], features[asked], space)["closeness"]

    later = closeness(~new, new)
    before = closeness(first, ~first & ~new)

    def alarms(usual):
        return float((later < usual.quantile(0.05)).float().mean())

    assert 0.03 <= alarms(folds) <= 0.08
    assert alarms(before) < 0.02


def test_calibration_flags_the_share_that_was_asked_for():
    model = small_model()
    rng = np.random.default_rng(0)
    photos = list(rng.integers(0, 256, (40, 12, 12, 3), dtype=np.uint8))
    assert model.calibrate(photos, 0.1) == 40
    flagged = sum(answer.is_unknown for answer in model.classify(photos))
    assert 2 <= flagged <= 6  # 10% of 40, and those whose ranks tie at the threshold
    assert model.familiar.settings() == {"parts": ["closeness", "lead"], "false_alarms": 0.1}


def test_calibration_leaves_out_what_the_model_holds():
    model = small_model()
    photos = list(np.random.default_rng(1).integers(0, 256, (30, 12, 12, 3), dtype=np.uint8))
    model.add("shown", photos[:5])
    assert model.calibrate(photos, 0.05) == 25
    before = model.familiar
    with pytest.raises(InputError, match=r"20 photos or more are needed .* got 19; 5 more are in the model already"):
        model.calibrate(photos[:24], 0.05)
    with pytest.raises(InputError, match="got 0"):
        model.calibrate([])
    for share in (0, 1, -0.1, float("nan"), "many", True):
        with pytest.raises(InputError, match="share of false alarms must lie between 0 and 1"):
            model.calibrate(photos, share)
    assert model.familiar is before


@pytest.mark.parametrize(
    ("values", "parts", "message"),
    [
        ({"density": torch.zeros(3), "beauty": torch.zeros(3)}, ("density",), "got 'beauty'"),
        ({"density": torch.zeros(3), "lead": torch.zeros(2)}, ("lead",), "vector of 3 numbers"),
        ({"lead": torch.zeros(2)}, ("lead",), "without NaN|known are"),
        ({"density": torch.zeros(3)}, ("lead",), "parts of the unknown score"),
        ({"density": torch.zeros(3)}, (), "parts of the unknown score"),
        ({"density": torch.tensor([1, 2])}, ("density",), "without NaN"),
    ],
)
def test_what_cannot_be_familiar(values, parts, message):
    with pytest.raises(InputError, match=message):
        Familiar(values, parts)


@pytest.mark.parametrize("weights", [(), (1.0, 2.0), (math.nan,), ("much",)])
def test_what_cannot_be_weights(weights):
    with pytest.raises(InputError, match="one number per part"):
        Familiar({"density": torch.zeros(3)}, weights=weights)


def test_a_space_must_have_an_origin():
    with pytest.raises(InputError, match="origin"):
        Familiar({"density": torch.zeros(1)}, space=Space(torch.zeros(4, 2), torch.zeros(3)))


def test_confidence_is_the_odds_of_the_likeliest_class_by_plain_loops():
    probabilities = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8], [1.0, 0.0, 0.0]], dtype=torch.float64)
    among = torch.tensor([True, True, False])
    for chosen, columns in ((None, range(3)), (among, range(2)), (torch.zeros(3, dtype=torch.bool), range(3))):
        found = confidence(probabilities.log(), chosen)
        for row, value in zip(probabilities.tolist(), found.tolist()):
            assert value == pytest.approx(kernel_odds([row[i] for i in columns]))


@pytest.mark.parametrize("confident", [False, True])
def test_confidence_counts_by_its_share_where_new_images_tell_its_scale(confident):
    features, labels = clusters()
    kept = torch.arange(len(labels)) % 3 > 0
    known, new = as_classes(features[kept], labels[kept]), Described(features[~kept], features[~kept])
    familiar, _ = learn_familiar(known, features[kept], 1.0, None, new, confident=confident)
    assert ("confidence" in familiar.parts) == confident
    alone, _ = learn_familiar(known, features[kept], 1.0, None, None, confident=confident)
    assert "confidence" not in alone.parts  # the images of the bank say nothing about it
    if confident:
        strange = deviations(familiar.values, familiar.values, familiar.parts)
        others = strange[:, :-1] @ torch.tensor(familiar.weights[:-1], dtype=torch.float64)
        assert familiar.weights[-1] == pytest.approx(CONFIDENCE * float(others.std(correction=0)), abs=1e-5)


def test_confidence_of_trained_classes_does_not_know_a_taught_one():
    """Teaching a class leaves the confidence about images of the others where it was."""
    model = small_model()
    x = model.centres[:5] + 0.01
    before = model.predict(x, k=len(model.centres))
    model.classes = with_images(model.classes, "new", x[:2] + 0.5, ["1", "2"], model.classes.coordinates[:2])
    after = confidence(model.predict(x, k=len(model.centres)).log_probabilities, model.classes.is_trained)
    assert torch.allclose(after, confidence(before.log_probabilities), atol=1e-4)
