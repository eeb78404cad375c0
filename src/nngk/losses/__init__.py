"""The systems the Gaussian kernels are compared with, each a loss under the same trainer."""

from nngk.losses.registry import LOSSES, LossInfo, create_loss, require_loss

__all__ = ["LOSSES", "LossInfo", "create_loss", "require_loss"]
