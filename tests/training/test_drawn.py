from types import SimpleNamespace

import pytest
import torch

from nngk.training import finish


@pytest.mark.parametrize(
    ("right", "wanted"),
    [
        ({0.0: 0.990, 0.25: 0.990, 0.5: 0.993, 0.75: 0.993}, 0.0),  # one image more of 288
        ({0.0: 0.90, 0.25: 0.91, 0.5: 0.93, 0.75: 0.92}, 0.5),
        ({0.0: 0.93, 0.25: 0.93, 0.5: 0.90, 0.75: 0.90}, 0.0),
    ],
)
def test_kernels_are_drawn_only_where_images_can_tell(right, wanted, monkeypatch):
    monkeypatch.setattr(finish, "drawn_score", lambda bank, share, x, labels: (right[share], -share))
    labels = torch.arange(10)
    run = SimpleNamespace(
        settings=SimpleNamespace(task="classify", loss="nngk", sigma="auto"),
        bank=SimpleNamespace(partial=False),
        feed=SimpleNamespace(val=SimpleNamespace(labels=labels)),
        device=torch.device("cpu"),
        embed=lambda examples: labels[:, None].float(),
    )
    assert finish.best_drawn(run) == wanted
