import subprocess
import sys

import pytest
import torch

from nngk.errors import InputError, MissingExtra
from nngk.losses import LOSSES, create_loss

NAMES = [
    "nngk",
    "softmax",
    "normalized-softmax",
    "triplet-semihard",
    "lifted-structure",
    "n-pairs",
    "triplet-global",
    "clustering",
    "smart-mining",
    "proxy-nca",
    "proxy-anchor",
    "multi-similarity",
    "soft-triple",
    "supcon",
]
RIVALS = NAMES[1:]


def test_every_loss_is_listed_with_what_one_wants_to_know():
    assert list(LOSSES) == NAMES
    for info in LOSSES.values():
        assert info.summary
        assert info.paper
        assert info.sampler in {"random", "per-class", "pairs", "triplets"}


def test_listing_imports_neither_torch_nor_the_library():
    program = "import sys, nngk.losses; sys.exit('torch' in sys.modules or 'pytorch_metric_learning' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize("name", RIVALS)
def test_created_alike_from_a_seed_and_restored_from_state(name):
    if LOSSES[name].extra:
        pytest.importorskip("pytorch_metric_learning")
    before = torch.random.get_rng_state()
    first, again, other = (create_loss(name, dim=4, n_classes=5, n_examples=20, seed=s) for s in (1, 1, 2))
    assert torch.equal(before, torch.random.get_rng_state())
    assert first.name == name
    for a, b, c in zip(first.parameters(), again.parameters(), other.parameters()):
        assert torch.equal(a, b)
        assert not torch.equal(a, c)
    other.load_state_dict(first.state_dict())
    for a, c in zip(first.parameters(), other.parameters()):
        assert torch.equal(a, c)
    assert all(isinstance(value, torch.Tensor) for value in first.state_dict().values())


@pytest.mark.parametrize(
    ("name", "factor"), [("softmax", 10), ("proxy-anchor", 100), ("soft-triple", 100), ("clustering", None)]
)
def test_parameter_groups(name, factor):
    if LOSSES[name].extra:
        pytest.importorskip("pytorch_metric_learning")
    loss = create_loss(name, dim=4, n_classes=5)
    groups = loss.parameter_groups(1e-3)
    assert [p for group in groups for p in group["params"]] == list(loss.parameters())
    if factor is None:
        assert groups == []
    else:
        assert [group["lr"] for group in groups] == [pytest.approx(1e-3 * factor)]
        torch.optim.AdamW(groups)


def test_a_missing_library_names_its_extra(monkeypatch):
    for module in [m for m in sys.modules if m.startswith("pytorch_metric_learning")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "pytorch_metric_learning", None)
    with pytest.raises(MissingExtra, match=r"'proxy-anchor' needs .*nngk\[rivals\]"):
        create_loss("proxy-anchor", dim=4, n_classes=5)
    create_loss("clustering", dim=4, n_classes=5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: create_loss("tripplet", dim=4, n_classes=5), "no loss 'tripplet'.*triplet-semihard"),
        (lambda: create_loss("nngk", dim=4, n_classes=5), "GaussianKernelLoss"),
        (lambda: create_loss("clustering", dim=4, n_classes=5, gama=1.0), "no option 'gama'. It has: decay, gamma"),
        (lambda: create_loss("smart-mining", dim=4, n_classes=5, margins=1.0), "no option 'margins'.*global_margin"),
        (lambda: create_loss("softmax", dim=4, n_classes=1), "two classes"),
        (lambda: create_loss("smart-mining", dim=4, n_classes=5, target=60), "'target' is a share"),
        (lambda: create_loss("smart-mining", dim=4, n_classes=5, kappa=0.5), "1 <= kappa"),
        (lambda: create_loss("clustering", dim=4, n_classes=5).logits(torch.zeros(1, 4)), "no classifier of its own"),
        (lambda: create_loss("softmax", dim=4, n_classes=5)(torch.zeros(2, 4), torch.zeros(3)), "one label each"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(InputError, match=message):
        call()
