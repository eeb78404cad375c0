"""The bank of Gaussian centres and how it is kept fresh."""

from nngk.bank.centres import CentreBank

__all__ = ["CentreBank"]
