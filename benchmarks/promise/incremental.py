"""Does a model learn new classes from five photos each, and do the old ones suffer?

    python benchmarks/promise/incremental.py --data DIR [--protocols sessions similar] [--methods ours means regression]

Protocol 'sessions' is few-shot class-incremental learning on CUB-200: the first 100 classes are trained on, then come
ten sessions with ten classes of five photos each, and after each session the test images of all classes so far are
asked about. Protocol 'similar' adds five classes that look alike, one drawn by chance and the four with the nearest
class means, to a model of all others, on every dataset; the most that the old classes may lose is one point.

Every method reads the same features of EfficientNet-Lite0. Ours is 'nngk train' and then 'nngk add'. The others are the
nearest class mean by cosine, that in the embedding of our model, and logistic regression refitted on everything after
every session (its C by cross-validation on the first classes). Rows: results/promise_incremental.csv.
"""

from argparse import Namespace
from collections.abc import Collection, Iterator
from itertools import chain

import torch
import torch.nn.functional as F
from cached import Cached, all_cached, promise_options
from logistic import cross_validated, fitted
from ours import described, trained
from torch import Tensor

from nngk import Model
from nngk.experiments.record import append_rows, provenance
from nngk.model.features import Described, at_one_scale

SHOTS = 5
BASE, SESSION = 100, 10
SIMILAR = 5
METHODS = ("ours", "means", "regression")


def shown(data: Cached, label: int, seed: int) -> Tensor:
    """Return the rows of the training images of a class that a session shows."""
    rows = ((data.y == label) & ~data.is_test).nonzero().flatten()
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(1000 * seed + label))
    return rows[order[:SHOTS].to(rows.device)]


def sessions_of(data: Cached) -> list[list[int]]:
    """Return the classes of each session, the first ones to be trained on."""
    base, step = (BASE, SESSION) if not data.quick else (max(2, len(data.names) // 2), 1)
    later = range(base, len(data.names), step)
    return [list(range(base)), *(list(range(i, min(i + step, len(data.names)))) for i in later)]


def similar_of(data: Cached, seed: int) -> list[list[int]]:
    """Return all classes but five that look alike, and those five."""
    x = at_one_scale(data.x[~data.is_test])
    means = F.normalize(class_means(x - x.mean(0), data.y[~data.is_test]))
    drawn = int(torch.randint(len(means), (1,), generator=torch.Generator().manual_seed(seed)))
    count = min(SIMILAR, len(means) - 2)
    new = sorted((means @ means[drawn]).topk(count).indices.tolist())
    return [[i for i in range(len(means)) if i not in new], new]


def class_means(x: Tensor, y: Tensor) -> Tensor:
    present, which = y.unique(return_inverse=True)
    return x.new_zeros(len(present), x.shape[1]).index_add_(0, which, x) / torch.bincount(which)[:, None]


def by_means(x: Tensor, y: Tensor, asked: Tensor) -> Tensor:
    """Return the label of the nearest class mean by cosine."""
    return y.unique()[(F.normalize(asked) @ F.normalize(class_means(x, y)).T).argmax(1)]


def of_classes(data: Cached, classes: list[int]) -> Tensor:
    """Return which images are of some classes."""
    return torch.isin(data.y, torch.tensor(classes, device=data.y.device))


Answered = tuple[str, int, Tensor]  # method, session, and the labels that it gives all test images after it


def answers(
    data: Cached, classes: list[list[int]], seed: int, model: Model | None, methods: Collection[str] = METHODS
) -> Iterator[Answered]:
    """Yield the answers of the methods; those of ours where there is a ``model``, which knows the first classes."""
    return chain(
        () if model is None else taught(data, classes, seed, model),
        by_class_means(data, classes, seed) if "means" in methods else (),
        by_regression(data, classes, seed) if "regression" in methods else (),
    )


def rows_so_far(data: Cached, classes: list[list[int]], seed: int) -> Iterator[Tensor]:
    """Yield the training rows that each session leaves: all of the first classes, and those shown of the others."""
    rows = (of_classes(data, classes[0]) & ~data.is_test).nonzero().flatten()
    yield rows
    for new in classes[1:]:
        rows = torch.cat([rows, *(shown(data, label, seed) for label in new)])
        yield rows


def taught(data: Cached, classes: list[list[int]], seed: int, model: Model) -> Iterator[Answered]:
    """Yield what a model that learns every session's classes says, and class means in its embedding."""
    seen = described(model, data.x[data.is_test])
    for session, rows in enumerate(rows_so_far(data, classes, seed)):
        for label in classes[session] if session else []:
            few = shown(data, label, seed)
            model.learn(data.names[label], described(model, data.x[few]), [str(i) for i in few.tolist()])
        yield "ours", session, named_by(model, seen, data).to(data.y.device)
        embedded = described(model, data.x[rows]).embeddings
        yield "class means in our embedding", session, by_means(embedded, data.y[rows], seen.embeddings)


def by_class_means(data: Cached, classes: list[list[int]], seed: int) -> Iterator[Answered]:
    """Yield what class means of the network's features say, made anew after every session."""
    scaled = at_one_scale(data.x)
    for session, rows in enumerate(rows_so_far(data, classes, seed)):
        yield "class means", session, by_means(scaled[rows], data.y[rows], scaled[data.is_test])


def by_regression(data: Cached, classes: list[list[int]], seed: int) -> Iterator[Answered]:
    """Yield what logistic regression says, made anew after every session."""
    asked, strength = data.x[data.is_test], 0.0
    for session, rows in enumerate(rows_so_far(data, classes, seed)):
        x, y = data.x[rows], data.y[rows]
        present, which = y.unique(return_inverse=True)
        strength = strength or cross_validated(x, which, seed).strength
        logits = fitted(x, which, strength).logits(asked)
        yield "logistic regression, refitted", session, present[logits.argmax(1)]


def named_by(model: Model, seen: Described, data: Cached) -> Tensor:
    """Return the labels that a model gives, in the dataset's own order."""
    places = torch.tensor([data.names.index(name) for name in model.class_names])
    return places[model.probabilities(seen.embeddings).argmax(1)]


def accuracies(labels: Tensor, given: Tensor, classes: list[list[int]], session: int) -> dict[str, float]:
    """Return the accuracy on all classes so far, on those of the base, on the added ones, and the harmonic mean."""
    place = labels.device
    old = torch.isin(labels, torch.tensor(classes[0], device=place))
    added = torch.tensor([label for new in classes[1 : session + 1] for label in new], dtype=torch.int64, device=place)
    new = torch.isin(labels, added)
    right = (labels == given).double()
    values = {"all": float(right[old | new].mean()), "old": float(right[old].mean())}
    if session:
        fresh = float(right[new].mean())
        both = values["old"] + fresh
        values |= {"new": fresh, "harmonic": 2 * values["old"] * fresh / both if both else 0.0}
    return values


def shown_accuracies(values: dict[str, float], session: int) -> dict[str, object]:
    """Return the columns of a row; what a session does not have is empty."""
    empty: dict[str, object] = {"session": session} | dict.fromkeys(("all", "old", "new", "harmonic"), "")
    return empty | {name: round(value, 5) for name, value in values.items()}


def main() -> None:
    protocols = {"nargs": "+", "default": ["sessions", "similar"]}
    methods = {"nargs": "+", "default": METHODS, "choices": METHODS}
    given = promise_options(__doc__, "results/promise_incremental.csv", protocols=protocols, methods=methods)
    with all_cached(given) as datasets:
        for data in datasets:
            for protocol in given.protocols:
                if protocol == "sessions" and data.dataset != "cub200" and not data.quick:
                    continue
                for seed in given.seeds:
                    measure(data, protocol, seed, given)


def measure(data: Cached, protocol: str, seed: int, given: Namespace) -> None:
    """Add the rows of one protocol and seed."""
    classes = sessions_of(data) if protocol == "sessions" else similar_of(data, seed)
    truth = data.y[data.is_test]
    first = data.select(of_classes(data, classes[0]))
    model = trained(first, seed, tune=False) if "ours" in given.methods else None
    for method, session, labels in answers(data, classes, seed, model, given.methods):
        values = accuracies(truth, labels, classes, session)
        row = {"protocol": protocol, "dataset": data.dataset, "method": method, "network": data.network, "seed": seed}
        row |= shown_accuracies(values, session)
        append_rows(given.out, [row | provenance(given.device, given.commit)])
        told = "  ".join(f"{name} {value:.2%}" for name, value in values.items())
        print(f"{data.dataset:11} {protocol} {method:30} seed {seed} session {session:2}  {told}", flush=True)


if __name__ == "__main__":
    main()
