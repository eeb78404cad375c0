"""Every loss and its gradient against the papers' formulas, written as plain loops in float64."""

import math

import pytest
import torch

from nngk.errors import InputError
from nngk.losses import create_loss

CLASSES, DIM = 4, 5


def batch(seed, per_class=3, triplets=False):
    generator = torch.Generator().manual_seed(seed)
    if triplets:
        a = torch.randint(CLASSES, (6,), generator=generator)
        labels = torch.stack([a, a, (a + 1 + torch.randint(CLASSES - 1, (6,), generator=generator)) % CLASSES], 1)
        labels = labels.flatten()
    else:
        labels = torch.arange(CLASSES).repeat_interleave(per_class)
        labels = labels[torch.randperm(len(labels), generator=generator)]
    x = torch.randn(len(labels), DIM, generator=generator, dtype=torch.float64, requires_grad=True)
    return x, labels


def unit(rows):
    return [row / row.pow(2).sum().sqrt() for row in rows]


def squared(a, b):
    return (a - b).pow(2).sum()


def distance(a, b):
    return squared(a, b).sqrt()


def log_sum_exp(values):
    top = max(float(v.detach()) for v in values)
    return top + sum((v - top).exp() for v in values).log()


def mean(values):
    return sum(values) / len(values)


def softmax(x, y, loss):
    w, b = loss.linear.weight, loss.linear.bias
    terms = []
    for row, c in zip(x, y):
        scores = [(row * w[k]).sum() + b[k] for k in range(CLASSES)]
        terms.append(log_sum_exp(scores) - scores[c])
    return mean(terms)


def normalized_softmax(x, y, loss):
    w = unit(loss.criterion.W.T)
    terms = []
    for row, c in zip(unit(x), y):
        scores = [(row * w[k]).sum() / 0.05 for k in range(CLASSES)]
        terms.append(log_sum_exp(scores) - scores[c])
    return mean(terms)


def triplet_semihard(x, y, loss):
    u = unit(x)
    terms = []
    for a in range(len(u)):
        for p in range(len(u)):
            if a == p or y[a] != y[p]:
                continue
            to_positive = squared(u[a], u[p])
            negatives = [squared(u[a], u[n]) for n in range(len(u)) if y[n] != y[a]]
            farther = [d for d in negatives if d > to_positive]
            to_negative = min(farther) if farther else max(negatives)
            terms.append(torch.relu(to_positive - to_negative + 0.2))
    return mean(terms)


def lifted_structure(x, y, loss):
    terms = []
    for i in range(len(x)):
        for j in range(i + 1, len(x)):
            if y[i] != y[j]:
                continue
            negatives = [1 - distance(x[i], x[k]) for k in range(len(x)) if y[k] != y[i]]
            negatives += [1 - distance(x[j], x[k]) for k in range(len(x)) if y[k] != y[j]]
            terms.append(torch.relu(log_sum_exp(negatives) + distance(x[i], x[j])) ** 2)
    return sum(terms) / (2 * len(terms))


def n_pairs(x, y, loss):
    pairs = [[i for i in range(len(x)) if y[i] == c] for c in range(CLASSES)]
    terms = []
    for c, (a, p) in enumerate(pairs):
        own = (x[a] * x[p]).sum()
        others = [((x[a] * x[pairs[k][1]]).sum() - own).exp() for k in range(CLASSES) if k != c]
        terms.append((1 + sum(others)).log())
    return mean(terms) + 0.02 * mean([row.pow(2).sum() for row in x])


def triplet_global(x, y, loss):
    u = unit(x)
    triplets = [(u[i], u[i + 1], u[i + 2]) for i in range(0, len(u), 3)]
    matching = [squared(a, p) / 4 for a, p, _ in triplets]
    other = [squared(a, n) / 4 for a, _, n in triplets]
    spread = mean([(d - mean(matching)) ** 2 for d in matching]) + mean([(d - mean(other)) ** 2 for d in other])
    global_ = spread + 0.8 * torch.relu(mean(matching) - mean(other) + 0.4)
    return global_ + mean([torch.relu(1 - distance(a, n) / (distance(a, p) + 0.01)) for a, p, n in triplets])


def proxy_nca(x, y, loss):
    proxies = unit(loss.criterion.proxies)
    terms = []
    for row, c in zip(unit(x), y):
        others = [-9 * squared(row, proxies[k]) for k in range(CLASSES) if k != c]
        terms.append(9 * squared(row, proxies[c]) + log_sum_exp(others))
    return mean(terms)


def proxy_anchor(x, y, loss):
    u, proxies = unit(x), unit(loss.criterion.proxies)
    positive, negative = [], []
    for c in range(CLASSES):
        cosines = [((row * proxies[c]).sum(), k) for row, k in zip(u, y)]
        own = [(-32 * (s - 0.1)).exp() for s, k in cosines if k == c]
        if own:
            positive.append((1 + sum(own)).log())
        negative.append((1 + sum((32 * (s + 0.1)).exp() for s, k in cosines if k != c)).log())
    return mean(positive) + mean(negative)


def multi_similarity(x, y, loss):
    u = unit(x)
    terms = []
    for i in range(len(u)):
        s = [(u[i] * row).sum() for row in u]
        own = [s[j] for j in range(len(u)) if j != i and y[j] == y[i]]
        others = [s[j] for j in range(len(u)) if y[j] != y[i]]
        kept_own = [v for v in own if v - 0.1 < max(others)]
        kept_others = [v for v in others if v + 0.1 > min(own)]
        term = sum(v * 0 for v in s)
        if kept_own:
            term = term + (1 + sum((-2 * (v - 0.5)).exp() for v in kept_own)).log() / 2
        if kept_others:
            term = term + (1 + sum((50 * (v - 0.5)).exp() for v in kept_others)).log() / 50
        terms.append(term)
    return mean(terms)


def soft_triple(x, y, loss):
    centres = unit(loss.criterion.fc.T)
    terms = []
    for row, c in zip(unit(x), y):
        scores = []
        for k in range(CLASSES):
            s = [(row * centres[10 * k + m]).sum() for m in range(10)]
            top = log_sum_exp([v / 0.1 for v in s])
            scores.append(20 * (sum((v / 0.1 - top).exp() * v for v in s) - (0.01 if k == c else 0)))
        terms.append(log_sum_exp(scores) - scores[c])
    apart = [
        distance(centres[10 * k + a], centres[10 * k + b])
        for k in range(CLASSES)
        for a in range(10)
        for b in range(a + 1, 10)
    ]
    return mean(terms) + 0.2 * sum(apart) / (CLASSES * 10 * 9)


def supcon(x, y, loss):
    u = unit(x)
    terms = []
    for i in range(len(u)):
        s = {j: (u[i] * u[j]).sum() / 0.1 for j in range(len(u)) if j != i}
        total = log_sum_exp(list(s.values()))
        terms.append(mean([total - s[j] for j in s if y[j] == y[i]]))
    return mean(terms)


FORMULAS = {
    "softmax": softmax,
    "normalized-softmax": normalized_softmax,
    "triplet-semihard": triplet_semihard,
    "lifted-structure": lifted_structure,
    "n-pairs": n_pairs,
    "triplet-global": triplet_global,
    "smart-mining": triplet_global,
    "proxy-nca": proxy_nca,
    "proxy-anchor": proxy_anchor,
    "multi-similarity": multi_similarity,
    "soft-triple": soft_triple,
    "supcon": supcon,
}
OWN = {"softmax", "triplet-global", "smart-mining"}
TRIPLETS = {"triplet-global", "smart-mining"}


def created(name, **options):
    if name not in OWN:
        pytest.importorskip("pytorch_metric_learning")
    return create_loss(name, dim=DIM, n_classes=CLASSES, seed=3, **options).double()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.thorough
def test_value_and_gradients_equal_plain_loops(name, seed):
    loss = created(name)
    x, y = batch(seed, per_class=2 if name == "n-pairs" else 3, triplets=name in TRIPLETS)
    if name == "proxy-anchor":
        y = y.clamp(max=CLASSES - 2)  # one proxy without an image
    inputs = [x, *loss.parameters()]
    ours = loss(x, y, torch.arange(len(y)))
    expected = FORMULAS[name](x, y.tolist(), loss)
    assert float(ours.detach()) == pytest.approx(float(expected.detach()), rel=1e-9)
    for a, b in zip(torch.autograd.grad(ours, inputs), torch.autograd.grad(expected, inputs)):
        # The library adds a small number under the root between SoftTriple's centres.
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-8)


def test_proxy_nca_with_the_own_class_is_the_librarys():
    losses = pytest.importorskip("pytorch_metric_learning.losses")
    x, y = batch(0)
    ours = created("proxy-nca", own_class=True)
    theirs = losses.ProxyNCALoss(CLASSES, DIM, softmax_scale=9).double()
    theirs.proxies.data.copy_(ours.criterion.proxies)
    assert ours(x, y).item() == pytest.approx(theirs(x, y).item())
    assert ours(x, y).item() > 0


def test_semi_hard_choices_are_among_the_librarys():
    """Where a semi-hard negative within the margin exists, the library's miner keeps the chosen triplet too."""
    distances = pytest.importorskip("pytorch_metric_learning.distances")
    miners = pytest.importorskip("pytorch_metric_learning.miners")
    from nngk.losses.semihard import semi_hard_triplets

    x, y = batch(1, per_class=6)
    squared_distance = distances.LpDistance(power=2)
    miner = miners.TripletMarginMiner(0.2, type_of_triplets="semihard", distance=squared_distance)
    theirs = set(zip(*(t.tolist() for t in miner(x, y))))
    d = squared_distance(x)
    ours = list(zip(*(t.tolist() for t in semi_hard_triplets(d, y))))
    inside = [t for t in ours if 0 < d[t[0], t[2]] - d[t[0], t[1]] <= 0.2]
    assert len(ours) == len(y) * 5
    assert len(inside) > 10
    assert set(inside) <= theirs
    assert {t[:2] for t in inside} == {t[:2] for t in theirs}


@pytest.mark.parametrize("name", FORMULAS)
def test_unit_length_is_the_losss_own_affair(name):
    """Where ``normalise`` is set, the scale of the embeddings does not matter; where not, it does."""
    loss = created(name).eval()
    x, y = batch(0, per_class=2 if name == "n-pairs" else 3, triplets=name in TRIPLETS)
    assert (loss(3 * x, y).item() == pytest.approx(loss(x, y).item())) is loss.normalise


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_and_autocast_are_computed_in_full(name, dtype):
    loss = created(name).float().eval()
    x, y = batch(0, per_class=2 if name == "n-pairs" else 3, triplets=name in TRIPLETS)
    x = (10 * x).detach().to(dtype).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = loss(x, y, torch.arange(len(y)))
    assert value.dtype == torch.float32
    assert value.item() == pytest.approx(loss(x.detach().float(), y).item(), rel=1e-6)
    value.backward()
    assert torch.isfinite(x.grad).all()


@pytest.mark.parametrize("name", FORMULAS)
def test_identical_embeddings_have_finite_gradients(name):
    loss = created(name)
    _, y = batch(0, per_class=2 if name == "n-pairs" else 3, triplets=name in TRIPLETS)
    x = torch.ones(len(y), DIM, dtype=torch.float64, requires_grad=True)
    loss(x, y).backward()
    assert torch.isfinite(x.grad).all()


@pytest.mark.parametrize("name", ["softmax", "normalized-softmax"])
def test_logits_are_those_of_the_loss(name):
    loss = created(name)
    x, y = batch(2)
    scores = loss.logits(x)
    assert scores.shape == (len(y), CLASSES)
    assert torch.nn.functional.cross_entropy(scores, y).item() == pytest.approx(loss(x, y).item())


def test_triplet_batches_must_be_triplets():
    loss = created("triplet-global")
    with pytest.raises(InputError, match="got 4 rows"):
        loss(torch.zeros(4, 2), torch.tensor([0, 0, 1, 1]))
    with pytest.raises(InputError, match="match, match, differ"):
        loss(torch.zeros(3, 2), torch.tensor([0, 1, 1]))


def test_triplet_global_is_zero_when_all_is_done():
    loss = created("triplet-global")
    x = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]] * 2, dtype=torch.float64)
    assert float(loss(x, torch.tensor([0, 0, 1, 1, 1, 0]))) == 0.0
    worst = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
    assert float(loss(worst, torch.tensor([0, 0, 1]))) == pytest.approx(0.8 * 1.4 + 1.0)
    assert math.isclose(float(created("triplet-global", triplet_weight=0.0)(worst, torch.tensor([0, 0, 1]))), 1.12)
