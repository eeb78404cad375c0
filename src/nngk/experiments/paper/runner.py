"""Running experiments: what is finished is not run again, what was interrupted goes on, what lacks data is left out."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nngk import InputError, Settings
from nngk.device import cpu_count, pick_device
from nngk.experiments.paper.contents import EXPERIMENTS, find_experiment
from nngk.experiments.paper.quick import shrink
from nngk.experiments.paper.results import choices_of, finished_row, is_same_run, settings_text, trial_key
from nngk.experiments.paper.sources import Sources
from nngk.experiments.paper.train_and_test import train_and_test
from nngk.experiments.paper.trial import Experiment, Job, Trial
from nngk.experiments.record import attempt, provenance, source_commit
from nngk.experiments.record.csv_rows import put_row
from nngk.experiments.record.provenance import COLUMNS
from nngk.progress import say
from nngk.training.presets import require_preset

RESULTS, WORK = Path("results"), Path("runs/paper")
QUICK = Path("runs/paper-quick")
# Figures are fractions in the library and in the rows; the report speaks of per cent.
SHARED = ("recall@1", "recall@2", "recall@4", "recall@8", "r_precision", "map@r", "nmi")
FIGURES = ("accuracy", "top5_accuracy", "calibration_error", *SHARED)
SHARED_RUN = ("wide_run", "wide_seconds")  # key and seconds of the wider run that a size was cut from
FACTS = ("epochs", "lr", "val_score", "train_sigma", "last_loss", "seconds", "selection_seconds", *SHARED_RUN)


def run_experiments(
    names: Sequence[str] | str,
    *,
    data: str | Path | None = None,
    weights: str | Path | None = None,
    preset: str = "both",
    seeds: int = 3,
    results: str | Path | None = None,
    work: str | Path | None = None,
    quick: bool = False,
    device: str = "auto",
    network: str | None = None,
    only: Mapping[str, Iterable[str]] | None = None,
    commit: str | None = None,
    allow_missing: bool = False,
) -> list[dict[str, Any]]:
    """Run experiments of the paper by name ('all' for all); return the rows, also written to ``results/NAME.csv``.

    Args:
        data: folder of the datasets, as packs, as lists ``NAME-TASK.csv``, or in their official layouts.
        weights: folder of weights files, or 'imagenet' for the library's downloads.
        preset: 'paper', 'best', 'both', or 'frozen': our recipe without a GPU, with the network left untrained.
        seeds: runs of each trial, with the seeds 0, 1, …
        work: folder of checkpoints, models and decoded images.
        quick: whether to run on generated pictures with a small network, which tests the code and gives no results.
        network: takes the place of the paper's network where an experiment has a single one.
        only: columns and the values to keep, such as ``{"dim": ["64"]}``.
        commit: the source's commit, where git is not there to ask.
        allow_missing: whether a dataset serves that lacks some of its images.
    """
    chosen = EXPERIMENTS if names == "all" else [find_experiment(n) for n in _as_list(names)]
    presets = ("paper", "best") if preset == "both" else (require_preset(preset),)
    if seeds < 1:
        raise InputError(f"Experiments run with at least one seed; got {seeds}.")
    place = Path(work or (QUICK if quick else WORK))
    folder, files = None if data is None else Path(data), None if weights is None else str(weights)
    sources = Sources(folder, files, place, quick, allow_missing)
    runner = Runner(
        sources,
        results=results_folder(results, quick),
        device=pick_device(device).type,
        commit=commit or source_commit(),
        options=["--network", network] if network else [],
    )
    plans = [plan for e in chosen for p in presets for plan in runner.plans(e, p, network, only or {})]
    if not plans:
        raise InputError(" ".join(runner.missing) or f"No trial has {_only_text(only or {})}; see 'nngk paper list'.")
    rows = []
    for experiment in chosen:
        mine = [plan for plan in plans if plan.experiment is experiment]
        for seed in range(
            1 if experiment.one_seed else seeds
        ):  # seed by seed, so that an interrupted call has whole ones
            rows += [runner.run(plan, seed) for plan in mine]
    return rows


def results_folder(given: str | Path | None, quick: bool) -> Path:
    """Return the folder of the rows: the one that was given, else that of real or of quick runs.

    >>> results_folder(None, quick=False).name
    'results'
    """
    return Path(given or (QUICK / "results" if quick else RESULTS))


def measured_settings(settings: Settings, network: str, weights: str) -> Settings:
    """Return a trial's settings with its network, as its figures are measured.

    Images are squashed, as they were for all published figures, and those that are held out measure and nothing else.
    """
    settings = replace(settings, network=network, weights=weights, squash=True, hold_out=True)
    if settings.wide == settings.dim:  # nothing is cut: it is the same run as one without 'wide'
        settings = replace(settings, wide=None, whiten=0.0)
    return settings


class Plan:
    """A trial of an experiment under a preset, with its data, network and weights found."""

    def __init__(self, experiment: Experiment, preset: str, trial: Trial, sources: Sources) -> None:
        self.experiment, self.preset = experiment, preset
        self.trial = shrink(trial) if sources.quick else trial
        self.table = sources.table(trial.dataset, trial.settings.task)
        network, weights = sources.network(trial.network, trial.start)
        self.settings = measured_settings(self.trial.settings, network, weights)
        self.key = trial_key(self.trial, self.settings)

    def __str__(self) -> str:
        s = self.settings
        parts = [self.trial.dataset, s.network, s.loss, self.trial.variant, f"{s.dim} dimensions" if s.dim else ""]
        return ", ".join(part for part in parts if part)


@dataclass
class Runner:
    """Sources, folders and the circumstances that every row records."""

    sources: Sources
    results: Path
    device: str
    commit: str
    options: list[str]  # of the command, to be recorded
    missing: list[str] = field(default_factory=list)

    def plans(
        self, experiment: Experiment, preset: str, network: str | None, only: Mapping[str, Iterable[str]]
    ) -> list[Plan]:
        """Return the trials whose data and weights are at hand; say why the others are left out."""
        found = []
        for trial in experiment.trials(preset, network):
            if not _wanted(trial, only):
                continue
            try:
                found.append(Plan(experiment, preset, trial, self.sources))
            except InputError as error:
                if str(error) not in self.missing:
                    self.missing.append(str(error))
                    say(f"{experiment.name}: left out {trial.dataset} {trial.variant}: {error}")
        return found

    def run(self, plan: Plan, seed: int) -> dict[str, Any]:
        """Return the row of one trial and seed: read, copied from an experiment that shares the run, or made."""
        name, job = plan.experiment.name, self._job(plan, seed)
        row = self._row(plan, seed)
        done = finished_row(self.results, name, plan.key, seed, plan.preset)
        files = [self.results / file.format(name=job.name) for file in plan.trial.makes]
        if done is not None and all(file.exists() for file in files):
            if is_same_run(done, row):
                return dict(done)
            row |= {key: done[key] for key in (*FIGURES, *FACTS, *COLUMNS) if done.get(key)}
        else:
            say(f"{name}, {plan.preset}: {plan}, seed {seed}")
            row |= self._figures(job)
        put_row(self.results / f"{name}.csv", row, is_same_run)
        return row

    def _job(self, plan: Plan, seed: int) -> Job:
        work = self.sources.work
        settings = replace(
            plan.settings, seed=seed, device=self.device, threads=min(8, cpu_count()), cache=str(work / "images")
        )
        known = choices_of(self.results, plan.key)
        return Job(plan.trial, settings, plan.table, seed, 0, plan.key, work, self.results, known)

    def _figures(self, job: Job) -> dict[str, Any]:
        execute = job.trial.execute or train_and_test
        figures = attempt(lambda: execute(job))
        return {key: _rounded(figures[key]) for key in (*FIGURES, *FACTS, "error") if figures.get(key) is not None}

    def _row(self, plan: Plan, seed: int) -> dict[str, Any]:
        s, t = plan.settings, plan.trial
        words = ["nngk", "paper", "run", plan.experiment.name, "--preset", plan.preset, "--seeds", str(seed + 1)]
        words += [*self.options, *(["--quick"] if self.sources.quick else [])]
        words += ["--allow-missing"] if self.sources.allow_missing else []
        return {
            "experiment": plan.experiment.name,
            "preset": plan.preset,
            "dataset": t.dataset,
            "variant": t.variant,
            "network": s.network,
            "loss": s.loss,
            "dim": s.dim,
            "examples": t.examples or None,
            "seed": seed,
            "quick": "yes" if self.sources.quick else None,
            **dict.fromkeys((*FIGURES, *FACTS)),
            **provenance(self.device, self.commit, words),
            "key": plan.key,
            "settings": settings_text(s),
            "error": None,
        }


def _as_list(names: Sequence[str] | str) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def _wanted(trial: Trial, only: Mapping[str, Iterable[str]]) -> bool:
    shown = {"dim": trial.settings.dim, "loss": trial.settings.loss, "dataset": trial.dataset}
    shown |= {"variant": trial.variant, "examples": trial.examples, "network": trial.network}
    unknown = [name for name in only if name not in shown]
    if unknown:
        raise InputError(f"Trials are chosen by {', '.join(shown)}, not by '{unknown[0]}'.")
    return all(str(shown[name]) in set(map(str, values)) for name, values in only.items())


def _only_text(only: Mapping[str, Iterable[str]]) -> str:
    return " and ".join(f"{name}={','.join(map(str, values))}" for name, values in only.items())


def _rounded(value: Any) -> Any:
    return round(value, 6) if isinstance(value, float) else value
