"""Gaussian kernels: equations 1 to 3 of the paper, the width of the kernels, and answers made of them."""

from nngk.kernel.formulas import (
    all_centres_loss,
    class_log_probabilities,
    log_density,
    log_kernels,
    neighbour_loss,
    squared_distances,
)

__all__ = [
    "all_centres_loss",
    "class_log_probabilities",
    "log_density",
    "log_kernels",
    "neighbour_loss",
    "squared_distances",
]
