"""Pooling and projection against plain loops."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nngk.errors import InputError
from nngk.networks import Head
from nngk.networks.heads import POOLS, GeM


def pooled_by_loops(features: Tensor, pool: str, p: float = 3.0) -> Tensor:
    out = torch.empty(features.shape[:2], dtype=torch.float64)
    for b in range(features.shape[0]):
        for c in range(features.shape[1]):
            values = [float(v) for v in features[b, c].flatten()]
            mean, largest = sum(values) / len(values), max(values)
            gem = (sum(max(v, 1e-6) ** p for v in values) / len(values)) ** (1 / p)
            out[b, c] = {"avg": mean, "max": largest, "avg+max": mean + largest, "gem": gem}[pool]
    return out


@pytest.mark.parametrize("pool", list(POOLS))
def test_pooling_equals_plain_loops(pool: str) -> None:
    features = torch.randn(3, 5, 4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    head = Head(5, pool=pool).double()
    assert torch.allclose(head.pool(features), pooled_by_loops(features, pool), atol=1e-12)
    assert torch.allclose(
        head.pool(features.contiguous(memory_format=torch.channels_last)), head.pool(features), atol=1e-12
    )


@settings(max_examples=30, deadline=None)
@given(st.floats(1.0, 30.0), st.integers(0, 10_000))
def test_gem_lies_between_the_mean_and_the_maximum(p: float, seed: int) -> None:
    x = torch.rand(2, 3, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) + 0.01
    y = GeM(p).double()(x)
    assert (y >= x.mean((2, 3)) - 1e-9).all()
    assert (y <= x.amax((2, 3)) + 1e-9).all()


def test_gem_learns_its_exponent() -> None:
    gem = GeM()
    gem(torch.rand(2, 3, 4, 4)).sum().backward()
    assert gem.p.grad is not None
    assert math.isfinite(gem.p.grad.item())
    assert gem.p.grad.item() != 0
    assert GeM()(torch.zeros(1, 1, 2, 2, requires_grad=True)).isfinite().all()


def test_project_equals_the_formula() -> None:
    torch.manual_seed(0)
    head = Head(6, dim=3, layer_norm=True, normalise=True).double().eval()
    assert head.linear is not None
    pooled = torch.randn(4, 6, dtype=torch.float64)
    for row, got in zip(pooled, head.project(pooled)):
        mean = sum(row) / 6
        variance = sum((v - mean) ** 2 for v in row) / 6
        normal = torch.stack([(v - mean) / (variance + 1e-5).sqrt() for v in row])
        y = head.linear.weight @ normal + head.linear.bias
        assert torch.allclose(got, y / sum(v * v for v in y).sqrt(), atol=1e-12)


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("normalise", [False, True])
def test_without_dim_the_head_has_no_linear_layer(layer_norm: bool, normalise: bool) -> None:
    head = Head(8, layer_norm=layer_norm, normalise=normalise)
    assert head.dim == 8
    assert list(head.parameters()) == []
    x = torch.rand(2, 8)
    norms = head.project(x).norm(dim=1)
    assert torch.allclose(norms, torch.ones(2)) == normalise
    if not layer_norm and not normalise:
        assert torch.equal(head.project(x), x)


def test_dropout_stands_before_the_linear_layer_and_works_in_train_mode_only() -> None:
    torch.manual_seed(0)
    head = Head(1000, dropout=0.5, normalise=False)
    x = torch.ones(1, 1000)
    dropped = head.train().project(x)
    assert 0.4 < (dropped == 0).float().mean() < 0.6
    assert set(dropped.unique().tolist()) == {0.0, 2.0}
    assert torch.equal(head.eval().project(x), x)


def test_half_precision_features_give_float32_embeddings() -> None:
    head = Head(8, pool="gem", layer_norm=True)
    features = torch.rand(2, 8, 3, 3, dtype=torch.bfloat16)
    assert head(features).dtype == torch.float32
    assert Head(8, pool="avg").project(torch.rand(2, 8, dtype=torch.float16)).dtype == torch.float32
    assert Head(8).project(torch.rand(2, 8, dtype=torch.float64)).dtype == torch.float64


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"dim": 0}, "dim has to be a positive whole number"),
        ({"dim": 1.5}, "dim has to be"),
        ({"dim": True}, "dim has to be"),
        ({"pool": "mean"}, "one of avg, max, avg\\+max, gem; got 'mean'"),
        ({"dropout": 1.0}, "at least 0 and below 1"),
        ({"dropout": float("nan")}, "at least 0 and below 1"),
    ],
)
def test_a_head_that_cannot_be_built_is_refused(setting: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        Head(4, **setting)  # type: ignore[arg-type]
