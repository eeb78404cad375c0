from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from nngk.data import ImageTable, class_disjoint, split, stratified
from nngk.errors import InputError

LABELS = st.lists(st.integers(0, 8), min_size=1, max_size=120)
FRACTIONS = st.lists(st.integers(0, 10), min_size=1, max_size=4).filter(sum)


@settings(max_examples=150, deadline=None)
@given(LABELS, FRACTIONS, st.integers(0, 99))
def test_stratified_is_a_partition_with_each_class_in_its_share(
    labels: list[int], weights: list[int], seed: int
) -> None:
    fractions = [weight / sum(weights) for weight in weights]
    parts = stratified(labels, fractions, seed)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))
    values = np.array(labels)
    used = sum(fraction > 0 for fraction in fractions)
    for label in set(labels):
        count = labels.count(label)
        for number, (part, fraction) in enumerate(zip(parts, fractions)):
            mine = int((values[part] == label).sum())
            if fraction == 0:
                assert mine == 0
            elif count >= 2 * used:
                # Large enough for all: within one image of the share, or at the least a part must have.
                least = 2 if number == 0 else 1
                others = sum(2 if n == 0 else 1 for n, f in enumerate(fractions) if f and n != number)
                assert mine >= min(np.floor(count * fraction), count - others) - 1 or mine == least
                assert mine <= max(np.ceil(count * fraction), least)
                assert mine >= 1


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.integers(20, 60), min_size=1, max_size=12),
    st.lists(st.integers(2, 10), min_size=2, max_size=4),
    st.integers(0, 99),
)
def test_large_classes_are_within_one_image_of_their_share(counts: list[int], weights: list[int], seed: int) -> None:
    labels = np.repeat(np.arange(len(counts)), counts)
    fractions = np.array(weights) / sum(weights)
    assume(fractions[0] * min(counts) >= 2)  # a training part that is owed less gets its two images from the others
    for part, fraction in zip(stratified(labels, fractions.tolist(), seed), fractions):
        mine = np.bincount(labels[part], minlength=len(counts))
        assert np.abs(mine - fraction * np.array(counts)).max() < 1
        assert abs(len(part) - fraction * len(labels)) < len(weights)


@pytest.mark.parametrize(
    ("count", "fractions", "sizes"),
    [
        (1, (0.5, 0.5), (1, 0)),
        (2, (0.1, 0.9), (2, 0)),
        (3, (0.9, 0.1), (2, 1)),
        (4, (0.5, 0.2, 0.3), (2, 1, 1)),
        (5, (0.9, 0.1), (4, 1)),
        (30, (0.8, 0.2), (24, 6)),
        (10, (0.5, 0.2, 0.3), (5, 2, 3)),
        (10, (1.0, 0.0), (10, 0)),
    ],
)
def test_stratified_sizes_of_one_class(count: int, fractions: tuple[float, ...], sizes: tuple[int, ...]) -> None:
    assert tuple(len(part) for part in stratified([0] * count, fractions, 0)) == sizes


def test_stratified_totals_are_exact_over_many_classes() -> None:
    labels = np.repeat(np.arange(100), 7)
    assert [len(part) for part in stratified(labels, (0.5, 0.2, 0.3), 0)] == [350, 140, 210]


def test_stratified_follows_its_seed() -> None:
    labels = np.repeat(np.arange(5), 20)
    same, again, other = (stratified(labels, (0.5, 0.5), seed)[0].tolist() for seed in (1, 1, 2))
    assert same == again != other


@pytest.mark.parametrize("fractions", [(0.5, 0.4), (1.5, -0.5), ()])
def test_fractions_that_do_not_add_up_are_refused(fractions: tuple[float, ...]) -> None:
    with pytest.raises(InputError, match="add up to one"):
        stratified([0, 1], fractions, 0)


@settings(max_examples=80, deadline=None)
@given(LABELS.filter(lambda labels: len(set(labels)) > 1), st.floats(0, 0.5), st.integers(0, 99))
def test_class_disjoint_has_no_class_on_both_sides(labels: list[int], fraction: float, seed: int) -> None:
    kept, held = class_disjoint(labels, fraction, seed)
    values = np.array(labels)
    assert sorted([*kept, *held]) == list(range(len(labels)))
    assert not set(values[kept]) & set(values[held])
    classes = len(set(labels))
    assert len(set(values[held])) == (max(1, round(fraction * classes)) if fraction else 0)


def test_class_disjoint_needs_a_class_to_keep() -> None:
    with pytest.raises(InputError, match="none is left"):
        class_disjoint([0, 0, 0], 0.5, 0)
    with pytest.raises(InputError, match="share of classes"):
        class_disjoint([0, 1], 1.0, 0)


def table(classes: int = 10, each: int = 20, splits: list[str] | None = None, task: str | None = None) -> ImageTable:
    labels = np.repeat(np.arange(classes), each)
    paths = [Path(f"{i}.png") for i in range(len(labels))]
    return ImageTable(paths, labels, [f"class {c}" for c in range(classes)], splits, task=task)


def names(part: ImageTable) -> set[str]:
    return {part.class_names[label] for label in part.labels}


def test_split_to_classify_shares_class_names() -> None:
    parts = split(table(), "classify", 0.1, 0.2, seed=0)
    assert [len(part) for part in parts] == [140, 20, 40]
    assert all(part.class_names == table().class_names for part in parts)
    assert all((part.counts() == part.counts()[0]).all() for part in parts)
    paths = [path for part in parts for path in part.paths]
    assert len(set(paths)) == 200


def test_split_for_metric_is_by_class_and_compact() -> None:
    parts = split(table(), "metric", 0.1, 0.3, seed=0)
    assert [len(part.class_names) for part in parts] == [6, 1, 3]
    assert set.union(*map(names, parts)) == set(table().class_names)
    for part in parts:
        assert names(part) == set(part.class_names)


def test_split_keeps_what_the_table_says() -> None:
    given_splits = ["train"] * 100 + ["val"] * 40 + ["test"] * 60
    for task in ("classify", "metric"):
        parts = split(table(splits=given_splits), task, 0.1, 0.2)
        assert [len(part) for part in parts] == [100, 40, 60]
        assert parts.train.paths == table().paths[:100]


def test_a_missing_validation_part_comes_from_training() -> None:
    given_splits = ["train"] * 140 + ["test"] * 60
    classify = split(table(splits=given_splits), "classify", 0.2, 0.2)
    assert [len(part) for part in classify] == [112, 28, 60]
    metric = split(table(splits=given_splits), "metric", 0.3, 0.2)
    assert [len(part.class_names) for part in metric] == [5, 2, 3]
    assert not names(metric.train) & names(metric.val)
    assert [len(part) for part in split(table(splits=given_splits), "classify", 0.0, 0.2)] == [140, 0, 60]


def test_splits_of_another_task_are_refused() -> None:
    with pytest.raises(InputError, match=r"made for the task 'metric', not for 'classify'"):
        split(table(splits=["train"] * 200, task="metric"), "classify")


def test_split_refuses_what_cannot_be_split() -> None:
    with pytest.raises(InputError, match="'classify' or 'metric'"):
        split(table(), "sort")
    with pytest.raises(InputError, match="leave something for training"):
        split(table(), "classify", 0.5, 0.5)
    with pytest.raises(InputError, match="too few"):
        split(table(classes=3), "metric", 0.1, 0.2)
    with pytest.raises(InputError, match="no training images"):
        split(table(splits=["test"] * 200), "classify")
