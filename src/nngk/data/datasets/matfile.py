"""MATLAB files, in which some datasets keep their lists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from nngk.errors import InputError, MissingExtra


def read_mat(file: Path, variable: str) -> np.ndarray:
    """Return one variable of a .mat file, with at least one dimension."""
    try:
        from scipy.io import loadmat
    except ImportError:
        raise MissingExtra("scipy", "datasets", f"Reading {file.name}") from None
    try:
        content = loadmat(file, squeeze_me=True)
    except FileNotFoundError:
        raise InputError(f"There is no {file}: the dataset needs it; unpack or download it again.") from None
    except Exception as error:  # SciPy raises whatever the damage leads to
        raise InputError(f"{file} cannot be read ({error}): it is damaged; download it again.") from error
    if variable not in content:
        raise InputError(f"{file} has no variable '{variable}': it is not the file that this dataset comes with.")
    return np.atleast_1d(content[variable])


def field(records: np.ndarray, name: str, file: Path) -> list[Any]:
    """Return one field of an array of MATLAB structures."""
    if records.dtype.names is None or name not in records.dtype.names:
        raise InputError(f"The records in {file} have no field '{name}': it is not the file this dataset comes with.")
    return [value.item() if isinstance(value, np.ndarray) else value for value in records[name]]
