"""The paper's tables and figures, run from one call and put beside the published figures."""

from nngk.experiments.paper.runner import run_experiments

__all__ = ["run_experiments"]
