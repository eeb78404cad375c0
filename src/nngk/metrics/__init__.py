"""How good embeddings and class probabilities are: retrieval, clustering, classification, open sets."""

from nngk.metrics.classification import (
    classification_scores,
    expected_calibration_error,
    top_k_accuracy,
    wilson_interval,
)
from nngk.metrics.clustering import KMeans, kmeans, nmi, normalised_mutual_information
from nngk.metrics.open_set import auroc, false_alarms, open_set_classification_rate, open_set_scores
from nngk.metrics.retrieval import (
    has_pairs,
    mean_average_precision_at_r,
    r_precision,
    recall_at_k,
    retrieval_scores,
)
from nngk.metrics.summary import evaluate

__all__ = [
    "KMeans",
    "auroc",
    "classification_scores",
    "evaluate",
    "expected_calibration_error",
    "false_alarms",
    "has_pairs",
    "kmeans",
    "mean_average_precision_at_r",
    "nmi",
    "normalised_mutual_information",
    "open_set_classification_rate",
    "open_set_scores",
    "r_precision",
    "recall_at_k",
    "retrieval_scores",
    "top_k_accuracy",
    "wilson_interval",
]
