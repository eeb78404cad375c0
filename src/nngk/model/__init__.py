"""What training leaves behind and a person holds."""

from nngk.model.answers import Answer, Evidence
from nngk.model.model import Model

__all__ = ["Answer", "Evidence", "Model"]
