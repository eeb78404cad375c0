"""What the rows of the paper's experiments say: one CSV file per experiment, one row per run."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from nngk import InputError, Settings
from nngk.experiments.paper.trial import Trial
from nngk.experiments.record import Row, read_rows
from nngk.experiments.record.csv_rows import as_text
from nngk.training.settings import RETIRED

# The columns that name a run within its experiment; a new row of the same run replaces the old one.
IDENTITY = ("preset", "dataset", "variant", "loss", "dim", "examples", "network", "seed")
MACHINE = (
    "device",
    "threads",
    "cache",
    "thumbnails",
    "bank",
    "shard_network",
    "seed",
)  # they decide no figures, or have columns of their own
# Settings that are newer than some rows, with the value that these rows had: their keys stay as they are.
LATER = (
    ("whiten", 0.0),
    ("squash", True),
    ("hold_out", True),
    ("tune", True),
    ("floor", 0.0),
    ("sigma_end", None),
    ("detail", None),
    ("teacher", None),
    ("step_epochs", 10),
    ("step_factor", 0.5),
    ("head_epochs", 0),
)


def experiment_rows(results: Path, experiment: str) -> list[Row]:
    """Return the rows of an experiment; raise InputError if a file of that name has other columns."""
    path = results / f"{experiment}.csv"
    rows = read_rows(path)
    if rows and not {"key", *IDENTITY} <= set(rows[0]):
        raise InputError(f"{path} is not a results file of 'nngk paper'; restore or remove it.")
    return rows


def is_same_run(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Return whether two rows of an experiment are of the same run."""
    return all(as_text(a.get(c)) == as_text(b.get(c)) for c in ("experiment", *IDENTITY))


def finished_row(results: Path, experiment: str, key: str, seed: int, preset: str) -> Row | None:
    """Return the row of a finished run: its own, or that of another experiment which shares the run; else None."""
    files = sorted(results.glob("*.csv"), key=lambda path: path.stem != experiment)
    for path in files:
        for row in read_rows(path):
            if (row.get("key"), row.get("seed"), row.get("preset")) == (key, str(seed), preset) and not row.get(
                "error"
            ):
                return row
    return None


def choices_of(results: Path, key: str) -> dict[str, Any]:
    """Return the epochs and the learning rate that were chosen for a trial, as its rows tell."""
    for path in sorted(results.glob("*.csv")):
        for row in read_rows(path):
            if row.get("key") == key and row.get("epochs") and row.get("lr") and not row.get("error"):
                return {"epochs": int(row["epochs"]), "lr": float(row["lr"])}
    return {}


def trial_key(trial: Trial, settings: Settings) -> str:
    """Return a short hash of all that decides a trial's figures, the same for all seeds and machines."""
    # Rows of the version before keep their keys: what was retired had its default in them.
    values = RETIRED | {k: v for k, v in settings.to_dict().items() if k not in MACHINE and (k, v) not in LATER}
    values["weights"] = Path(settings.weights).name
    extra = [trial.dataset, trial.examples, list(trial.rates), trial.start, trial.variant if trial.execute else ""]
    text = json.dumps([values, extra], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def settings_text(settings: Settings) -> str:
    """Return the settings that differ from the library's defaults, as JSON."""
    changed = {
        f.name: getattr(settings, f.name)
        for f in fields(Settings)
        if f.name not in MACHINE and getattr(settings, f.name) != f.default
    }
    changed["weights"] = Path(settings.weights).name
    return json.dumps(changed, sort_keys=True)
