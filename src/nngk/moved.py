"""Modules that have moved: importing one under its old name gives the module of the new name, with a warning."""

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

# Old name → new name. A submodule of a moved package that is not listed has kept its own name. Old names that are
# packages now (nngk.kernel, nngk.bank, nngk.model, …) need no entry; nngk.data.pack, nngk.data.download and
# nngk.networks.classifier have none because they are functions, which a module of that name would replace.
MOVED = {
    "nngk.classifier": "nngk.sklearn",
    "nngk.comparison": "nngk.experiments.compare.comparison",
    "nngk.comparison_report": "nngk.experiments.compare.verdict",
    "nngk.data.cache": "nngk.data.packs.cache",
    "nngk.data.cars": "nngk.data.datasets.cars",
    "nngk.data.cub": "nngk.data.datasets.cub",
    "nngk.data.fetch": "nngk.data.datasets.fetch",
    "nngk.data.flowers": "nngk.data.datasets.flowers",
    "nngk.data.leafsnap": "nngk.data.datasets.leafsnap",
    "nngk.data.matfile": "nngk.data.datasets.matfile",
    "nngk.data.named": "nngk.data.datasets.by_name",
    "nngk.data.official": "nngk.data.datasets.official",
    "nngk.data.packfile": "nngk.data.packs.layout",
    "nngk.demo": "nngk.experiments.demo.digits",
    "nngk.demo_page": "nngk.experiments.demo.page",
    "nngk.embedding": "nngk.networks.embed",
    "nngk.evaluation": "nngk.model.evaluate",
    "nngk.kernel_triton": "nngk.kernel.triton.losses",
    "nngk.kernel_triton_backward": "nngk.kernel.triton.lists_backward",
    "nngk.kernel_triton_dense": "nngk.kernel.triton.dense",
    "nngk.kernel_triton_launch": "nngk.accel",
    "nngk.kernel_triton_lists": "nngk.kernel.triton.lists_forward",
    "nngk.loss": "nngk.losses.gaussian",
    "nngk.metrics.evaluation": "nngk.metrics.summary",
    "nngk.networks.discriminant": "nngk.networks.embedding_layer.discriminant",
    "nngk.networks.embedding": "nngk.networks.network",
    "nngk.networks.files": "nngk.networks.weights.read",
    "nngk.networks.googlenet": "nngk.networks.backbones.googlenet",
    "nngk.networks.googlenet_triton": "nngk.networks.fused.norm_and_pool",
    "nngk.networks.keys": "nngk.networks.weights.names",
    "nngk.networks.listing": "nngk.networks.catalogue",
    "nngk.networks.paper": "nngk.networks.backbones.torchvision",
    "nngk.networks.projection": "nngk.networks.embedding_layer.projection",
    "nngk.networks.recognise": "nngk.networks.weights.recognise",
    "nngk.networks.reduction": "nngk.networks.embedding_layer.reduction",
    "nngk.networks.small": "nngk.networks.backbones.small",
    "nngk.networks.spec": "nngk.networks.input_spec",
    "nngk.networks.timm_backbones": "nngk.networks.backbones.timm",
    "nngk.paper": "nngk.experiments.paper",
    "nngk.paper.classification": "nngk.experiments.paper.known_classes",
    "nngk.paper.embedding": "nngk.experiments.paper.unseen_map",
    "nngk.paper.experiments": "nngk.experiments.paper.contents",
    "nngk.paper.metric": "nngk.experiments.paper.zero_shot",
    "nngk.paper.plots": "nngk.experiments.paper.svg",
    "nngk.paper.presets": "nngk.training.presets",
    "nngk.paper.protocol": "nngk.experiments.paper.train_and_test",
    "nngk.paper.run": "nngk.experiments.paper.runner",
    "nngk.paper.store": "nngk.experiments.paper.results",
    "nngk.predict": "nngk.kernel.predict",
    "nngk.refresh": "nngk.bank.refresh",
    "nngk.rivals": "nngk.losses",
    "nngk.rivals.base": "nngk.losses.objective",
    "nngk.rivals.clustering": "nngk.losses.structured_clustering",
    "nngk.search.bench": "nngk.experiments.bench.search",
    "nngk.search.bench_data": "nngk.experiments.bench.points",
    "nngk.search.bench_peers": "nngk.experiments.bench.peers",
    "nngk.search.bench_plot": "nngk.experiments.bench.curves",
    "nngk.search.cuda_kernels": "nngk.search.cuda.products",
    "nngk.search.cuda_lists": "nngk.search.cuda.candidates",
    "nngk.search.cuda_rank": "nngk.search.cuda.rank",
    "nngk.search.faiss_engine": "nngk.search.adapters.faiss",
    "nngk.search.hnswlib_engine": "nngk.search.adapters.hnswlib",
    "nngk.search.protocol": "nngk.search.engine",
    "nngk.search.pynndescent_engine": "nngk.search.adapters.pynndescent",
    "nngk.sigma": "nngk.kernel.sigma",
    "nngk.storage": "nngk.model.storage",
    "nngk.training.config": "nngk.training.settings",
    "nngk.training.parts": "nngk.training.feed",
    "nngk.widths": "nngk.defaults",
}


def new_name(name: str) -> str | None:
    """Return where a module is now, or None if it has not moved.

    >>> new_name("nngk.loss"), new_name("nngk.rivals.registry"), new_name("nngk.errors")
    ('nngk.losses.gaussian', 'nngk.losses.registry', None)
    """
    if name in MOVED:
        return MOVED[name]
    parent, _, child = name.rpartition(".")
    return f"{MOVED[parent]}.{child}" if parent in MOVED else None


class _Moved(MetaPathFinder, Loader):
    """Finds modules under their old names and loads the very modules of the new names."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if new_name(fullname) else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        now = new_name(spec.name)
        assert now is not None
        module = import_module(now)
        warnings.warn(f"{spec.name} has moved: import {now} instead.", DeprecationWarning, stacklevel=2)
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Leave the module as it is, which has run under its new name, and give it its own specification back."""
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


def install() -> None:
    """Let old names be imported, ahead of the search for files: a moved package has files under its new name only."""
    if not any(isinstance(finder, _Moved) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Moved())
