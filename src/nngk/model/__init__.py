"""What training leaves behind and a person holds."""

from nngk.model.model import Answer, Evidence, Model

__all__ = ["Answer", "Evidence", "Model"]
