"""All experiments, in the paper's order."""

from difflib import get_close_matches

from nngk.errors import InputError
from nngk.paper.ablation import ABLATION
from nngk.paper.classification import ARCHITECTURES, EXAMPLES_PER_CLASS, FINE_GRAINED, NEIGHBOURHOOD
from nngk.paper.distances import DISTANCES
from nngk.paper.embedding import EMBEDDING
from nngk.paper.metric import BIRDS, CARS, DIMENSIONS
from nngk.paper.trial import Experiment

EXPERIMENTS: tuple[Experiment, ...] = (
    CARS,
    BIRDS,
    DIMENSIONS,
    ARCHITECTURES,
    FINE_GRAINED,
    EXAMPLES_PER_CLASS,
    ABLATION,
    NEIGHBOURHOOD,
    DISTANCES,
    EMBEDDING,
)


def find_experiment(name: str) -> Experiment:
    """The experiment of a name, or a sentence with the nearest.

    >>> find_experiment("birds-metric").source
    'Table 2'
    """
    for experiment in EXPERIMENTS:
        if experiment.name == name:
            return experiment
    names = [experiment.name for experiment in EXPERIMENTS]
    near = get_close_matches(name, names, 1)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    raise InputError(f"There is no experiment '{name}'.{hint} Names: {', '.join(names)}.")
