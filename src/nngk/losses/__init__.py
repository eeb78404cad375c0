"""Our loss and those it is compared with, all under the same trainer."""

from nngk.losses.registry import LOSSES, LossInfo, create_loss, loss_class, require_loss

__all__ = ["LOSSES", "LossInfo", "create_loss", "loss_class", "require_loss"]
