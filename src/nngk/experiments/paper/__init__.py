"""The paper's tables and figures: run by name, and reported beside the published figures."""

from nngk.experiments.paper.runner import run_experiments

__all__ = ["run_experiments"]
