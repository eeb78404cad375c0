"""``--devices N``: the same command in several processes of this machine, started by PyTorch's launcher."""

import logging
import os
import sys
import uuid
from collections.abc import Sequence


def without_option(arguments: Sequence[str], name: str) -> list[str]:
    """Return the arguments of a command without an option and its value.

    >>> without_option(["train", "photos", "--devices", "2", "--out", "m"], "--devices")
    ['train', 'photos', '--out', 'm']
    >>> without_option(["train", "--devices=2", "photos"], "--devices")
    ['train', 'photos']
    """
    kept: list[str] = []
    given = iter(arguments)
    for argument in given:
        if argument == name:
            next(given, None)
        elif not argument.startswith(f"{name}="):
            kept.append(argument)
    return kept


def shared_out(devices: int | None) -> bool:
    """Run this command in as many processes, if so many were asked for and this is none of them; return whether.

    Exit if one of them failed.
    """
    if devices is None or devices == 1 or "WORLD_SIZE" in os.environ:
        return False
    code = run_in_ranks(devices, without_option(sys.argv[1:], "--devices"))
    if code:
        raise SystemExit(code)
    return True


def run_in_ranks(devices: int, arguments: Sequence[str]) -> int:
    """Run ``nngk`` with these arguments in as many processes; return the exit code of the first that failed, or 0."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    from nngk.device import cpu_count

    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cpu_count() // devices)))
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "600")  # a rank that is stopped saves its run first
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # the ranks say themselves what is wrong
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=devices,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
    )
    try:
        elastic_launch(config, sys.executable)("-m", "nngk", *arguments)
    except ChildFailedError as error:
        codes = [failure.exitcode for _, failure in sorted(error.failures.items())]
        return next((code for code in codes if code > 0), 1)
    except SignalException:
        return 130
    return 0
