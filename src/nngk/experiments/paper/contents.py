"""All tables and figures that can be run, in the paper's order."""

from difflib import get_close_matches

from nngk.errors import InputError
from nngk.experiments.paper.ablation import ABLATION
from nngk.experiments.paper.distances import DISTANCES
from nngk.experiments.paper.known_classes import ARCHITECTURES, EXAMPLES_PER_CLASS, FINE_GRAINED, NEIGHBOURHOOD
from nngk.experiments.paper.trial import Experiment
from nngk.experiments.paper.unseen_map import EMBEDDING
from nngk.experiments.paper.zero_shot import BIRDS, CARS, DIMENSIONS

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
    """Return the experiment of a name; raise InputError with the nearest name if there is none.

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
