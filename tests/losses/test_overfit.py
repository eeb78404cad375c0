"""Every loss, with its own batches, separates a small set of images that the untrained network does not."""

import pytest
import torch
from torch import nn

from nngk.losses import LOSSES, create_loss
from nngk.metrics import recall_at_k

CLASSES, EACH = 5, 8


@pytest.fixture(scope="module")
def images():
    """A faint pattern of the class under a strong gradient of random direction."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(CLASSES).repeat_interleave(EACH)
    pattern = torch.randn(CLASSES, 1, 8, 8, generator=generator)[y]
    ramp = torch.linspace(-1, 1, 8)
    slope = 3 * torch.randn(len(y), 2, 1, 1, generator=generator)
    x = 0.6 * pattern + (slope[:, 0] * ramp[None, :] + slope[:, 1] * ramp[:, None])[:, None]
    return x + 0.3 * torch.randn(x.shape, generator=generator), y


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 32), nn.ReLU(), nn.Linear(32, 8)
    )


def embed(net, loss, x):
    with torch.no_grad():
        e = net(x)
    return nn.functional.normalize(e) if loss.normalise else e


@pytest.mark.parametrize("name", [name for name in LOSSES if name != "nngk"])
@pytest.mark.thorough
def test_overfits(name, images):
    if LOSSES[name].extra:
        pytest.importorskip("pytorch_metric_learning")
    x, y = images
    net = network()
    loss = create_loss(name, dim=8, n_classes=CLASSES, n_examples=len(y))
    assert recall_at_k(embed(net, loss, x), y) < 0.7
    # Factors for a pretrained network would be too much for one that starts from nothing.
    parameters = [*net.parameters(), *loss.parameters()]
    optimiser = torch.optim.Adam(parameters, lr=3e-3)
    for epoch in range(150):
        loss.start_epoch(epoch, lambda: embed(net, loss, x))
        for batch in loss.batches(y, 24, 0, epoch):
            optimiser.zero_grad()
            loss(net(x[batch]), y[batch], batch).backward()
            optimiser.step()
        loss.end_epoch()
        if epoch % 5 == 4 and recall_at_k(embed(net, loss, x), y) == 1:
            return
    assert recall_at_k(embed(net, loss, x), y) >= 0.85  # of some seeds one or two of 40 images stay astray
