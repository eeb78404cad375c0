"""The losses that pytorch-metric-learning has, at their papers' settings where the library's defaults differ."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from nngk.errors import MissingExtra
from nngk.losses import samplers
from nngk.losses.objective import BatchLoss
from nngk.losses.semihard import semi_hard_triplets


def _library(purpose: str) -> Any:
    try:
        import pytorch_metric_learning.distances
        import pytorch_metric_learning.losses
        import pytorch_metric_learning.miners
        import pytorch_metric_learning.reducers
        import pytorch_metric_learning.regularizers
    except ImportError as missing:
        raise MissingExtra("pytorch-metric-learning", "rivals", f"The loss '{purpose}'") from missing
    return pytorch_metric_learning


class LibraryLoss(BatchLoss):
    """A loss of the library, which a subclass builds."""

    criterion: Any  # an nn.Module of the library, which has no types

    def compute(self, x: Tensor, labels: Tensor) -> Tensor:
        loss: Tensor = self.criterion(x, labels)
        return loss


class NormalizedSoftmax(LibraryLoss):
    """Normalised softmax (Zhai and Wu, BMVC 2019): cross-entropy of cosines over a temperature.

    Equation: ``L = -log softmax_c(x·w_c / T)_y`` with unit-length x and w. Paper's settings: T = 0.05.
    """

    name = "normalized-softmax"
    has_logits = True
    lr_factor = 10.0

    def __init__(self, *, dim: int, n_classes: int, temperature: float = 0.05) -> None:
        super().__init__()
        losses = _library(self.name).losses
        self.criterion = losses.NormalizedSoftmaxLoss(n_classes, dim, temperature=temperature)

    def logits(self, embeddings: Tensor) -> Tensor:
        scores: Tensor = self.criterion.get_logits(embeddings.to(self.criterion.W.dtype))
        return scores

    def layer(self) -> dict[str, Tensor]:
        """Return the directions of the classes as a layer without bias, and the scale of the cosines."""
        weight = functional.normalize(self.criterion.W, dim=0).T
        scale = torch.tensor(1 / self.criterion.temperature)
        return {"weight": weight, "bias": weight.new_zeros(len(weight)), "scale": scale}


class SemiHardTriplet(LibraryLoss):
    """Semi-hard triplets (Schroff, Kalenichenko and Philbin, CVPR 2015).

    Equation: the mean over positive pairs of ``max(0, |a - p|² - |a - n|² + m)``, unit length, n the nearest negative
    farther than p or else the farthest. Notes: the library's miner keeps every semi-hard negative of a pair; here a
    pair has one, as in the code behind the published tables. Paper's settings: m = 0.2.
    """

    name = "triplet-semihard"

    def __init__(self, *, margin: float = 0.2, per_class: int = 4) -> None:
        super().__init__()
        library = _library(self.name)
        self.sampler = samplers.per_class(per_class)
        self.criterion = library.losses.TripletMarginLoss(
            margin=margin,
            distance=library.distances.LpDistance(power=2),
            reducer=library.reducers.MeanReducer(),
        )

    def compute(self, x: Tensor, labels: Tensor) -> Tensor:
        with torch.no_grad():
            chosen = semi_hard_triplets(self.criterion.distance(x), labels)
        loss: Tensor = self.criterion(x, labels, chosen)
        return loss


class LiftedStructure(LibraryLoss):
    """Lifted structured embedding (Song, Xiang, Jegelka and Savarese, CVPR 2016).

    Equation: ``1/(2|P|) Σ_(i,j)∈P max(0, log(Σ_k e^(α - d_ik) + Σ_l e^(α - d_jl)) + d_ij)²`` with k, l the negatives
    of i and j. Notes: distances are neither squared nor of normalised embeddings; the library normalises by default.
    Paper's settings: α = 1.
    """

    name = "lifted-structure"
    normalise = False

    def __init__(self, *, margin: float = 1.0, per_class: int = 4) -> None:
        super().__init__()
        library = _library(self.name)
        self.sampler = samplers.per_class(per_class)
        distance = library.distances.LpDistance(normalize_embeddings=False)
        self.criterion = library.losses.LiftedStructureLoss(neg_margin=margin, distance=distance)


class NPairs(LibraryLoss):
    """Multi-class N-pairs (Sohn, NIPS 2016).

    Equation: ``1/N Σ_i log(1 + Σ_{j≠i} exp(a_i·p_j - a_i·p_i)) + λ mean |x|²``, one pair of every class in the batch.
    Notes: not normalised, held by the penalty instead; the library normalises by default and has no penalty.
    Paper's settings: λ = 0.02, two images per class.
    """

    name = "n-pairs"
    normalise = False
    sampler = staticmethod(samplers.per_class(2, exactly=True))

    def __init__(self, *, penalty: float = 0.02) -> None:
        super().__init__()
        library = _library(self.name)
        self.criterion = library.losses.NPairsLoss(
            distance=library.distances.DotProductSimilarity(normalize_embeddings=False),
            embedding_regularizer=library.regularizers.LpRegularizer(power=2),
            embedding_reg_weight=penalty,
        )


class ProxyNCA(LibraryLoss):
    """Proxy-NCA (Movshovitz-Attias and others, ICCV 2017).

    Equation: ``L = s d(x, p_y) + log Σ_{c≠y} exp(-s d(x, p_c))``, d the squared distance of unit-length vectors.
    Notes: the sum leaves the own class out, as in the paper; ``own_class=True`` includes it, as the library and
    ProxyNCA++ do.
    Paper's settings: it leaves the scale open; s = 9 is ProxyNCA++'s. Proxies learn a hundred times as fast.
    """

    name = "proxy-nca"
    lr_factor = 100.0

    def __init__(self, *, dim: int, n_classes: int, scale: float = 9.0, own_class: bool = False) -> None:
        super().__init__()
        self.own_class = own_class
        self.criterion = _library(self.name).losses.ProxyNCALoss(n_classes, dim, softmax_scale=scale)

    def compute(self, x: Tensor, labels: Tensor) -> Tensor:
        if self.own_class:
            return super().compute(x, labels)
        self.criterion.cast_types(x.dtype, x.device)
        scores = -self.criterion.softmax_scale * self.criterion.get_logits(x)  # the library's "logits" are distances
        own = scores.gather(1, labels[:, None])
        others = scores.scatter(1, labels[:, None], -torch.inf)
        loss: Tensor = (others.logsumexp(1) - own[:, 0]).mean()
        return loss


class ProxyAnchor(LibraryLoss):
    """Proxy-anchor (Kim and others, CVPR 2020).

    Equation: ``mean_{p with positives} log(1 + Σ_{x∈p} e^(-α(cos - δ))) + mean_p log(1 + Σ_{x∉p} e^(α(cos + δ)))``.
    Paper's settings: α = 32, δ = 0.1, proxies learn a hundred times as fast as the network.
    """

    name = "proxy-anchor"
    lr_factor = 100.0

    def __init__(self, *, dim: int, n_classes: int, margin: float = 0.1, alpha: float = 32.0) -> None:
        super().__init__()
        losses = _library(self.name).losses
        self.criterion = losses.ProxyAnchorLoss(n_classes, dim, margin=margin, alpha=alpha)


class MultiSimilarity(LibraryLoss):
    """Multi-similarity (Wang and others, CVPR 2019).

    Equation: ``mean_i 1/α log(1 + Σ_p e^(-α(s_ip - λ))) + 1/β log(1 + Σ_n e^(β(s_in - λ)))`` over the pairs that the
    miner keeps: a positive below the highest negative + ε, a negative above the lowest positive - ε.
    Paper's settings: α = 2, β = 50, λ = 0.5 (its code), ε = 0.1.
    """

    name = "multi-similarity"

    def __init__(
        self,
        *,
        alpha: float = 2.0,
        beta: float = 50.0,
        base: float = 0.5,
        epsilon: float = 0.1,
        per_class: int = 4,
    ) -> None:
        super().__init__()
        library = _library(self.name)
        self.sampler = samplers.per_class(per_class)
        self.miner = library.miners.MultiSimilarityMiner(epsilon=epsilon)
        self.criterion = library.losses.MultiSimilarityLoss(alpha=alpha, beta=beta, base=base)

    def compute(self, x: Tensor, labels: Tensor) -> Tensor:
        loss: Tensor = self.criterion(x, labels, self.miner(x, labels))
        return loss


class SoftTriple(LibraryLoss):
    """SoftTriple (Qian and others, ICCV 2019).

    Equation: cross-entropy of ``λ(S_c - δ[c = y])`` with ``S_c = Σ_k softmax_k(x·w_ck / γ) x·w_ck``, plus τ times the
    mean distance between the centres of a class. Paper's settings: λ = 20, γ = 0.1, δ = 0.01, τ = 0.2, ten centres per
    class, which learn a hundred times as fast as the network.
    """

    name = "soft-triple"
    lr_factor = 100.0

    def __init__(
        self,
        *,
        dim: int,
        n_classes: int,
        centres: int = 10,
        scale: float = 20.0,
        gamma: float = 0.1,
        margin: float = 0.01,
        tau: float = 0.2,
    ) -> None:
        super().__init__()
        library = _library(self.name)
        sparse = library.regularizers.SparseCentersRegularizer(n_classes, centres) if centres > 1 else None
        self.criterion = library.losses.SoftTripleLoss(
            n_classes,
            dim,
            centers_per_class=centres,
            la=scale,
            gamma=gamma,
            margin=margin,
            weight_regularizer=sparse,
            weight_reg_weight=tau,
        )


class SupCon(LibraryLoss):
    """Supervised contrastive (Khosla and others, NeurIPS 2020).

    Equation: ``mean_i -1/|P_i| Σ_{p∈P_i} log(e^(x_i·x_p / T) / Σ_{j≠i} e^(x_i·x_j / T))``.
    Paper's settings: T = 0.1.
    """

    name = "supcon"

    def __init__(self, *, temperature: float = 0.1, per_class: int = 4) -> None:
        super().__init__()
        self.sampler = samplers.per_class(per_class)
        self.criterion = _library(self.name).losses.SupConLoss(temperature=temperature)
