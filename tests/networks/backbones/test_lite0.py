"""EfficientNet-Lite0 against timm's: the same names, the same numbers."""

import pytest
import torch

from nngk.networks.backbones.lite0 import EfficientNetLite0


@pytest.mark.thorough
def test_it_is_timms_network_to_the_last_bit() -> None:
    timm = pytest.importorskip("timm")
    theirs = timm.create_model("tf_efficientnet_lite0", num_classes=0, global_pool="").eval()
    for module in theirs.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 2)
    ours = EfficientNetLite0().eval()
    assert list(ours.state_dict()) == list(theirs.state_dict())
    ours.load_state_dict(theirs.state_dict())
    for shape in ((64, 64), (97, 130)):  # odd sides are padded on one side more than on the other
        x = torch.randn(2, 3, *shape)
        plain = theirs(x)
        assert torch.equal(ours(x), plain)
        with torch.no_grad():  # BatchNorm and activation are taken along, which rounds in another order
            torch.testing.assert_close(ours(x), plain, rtol=1e-3, atol=1e-4)
    ours.train(), theirs.train()
    x = torch.randn(3, 3, 64, 64)
    assert torch.equal(ours(x), theirs(x))
    assert all(torch.equal(a, b) for a, b in zip(ours.state_dict().values(), theirs.state_dict().values()))


def test_random_weights_are_spread_as_timms_are() -> None:
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    theirs = timm.create_model("tf_efficientnet_lite0", num_classes=0, global_pool="")
    for (name, own), other in zip(EfficientNetLite0().named_parameters(), theirs.parameters(), strict=True):
        if own.ndim > 1:
            assert 0.8 < float((own.std() / other.std()).detach()) < 1.25, name
