"""Tiers and threads: what belongs to the quick tier, what depends on the processor, and how many threads a test has."""

import os
from collections.abc import Iterator
from pathlib import Path

# Some virtual machines announce AMX and then refuse its instructions, which ends the process in a product of bfloat16.
# oneDNN reads this when it is first used; programs that tests start inherit it.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import pytest
import torch

import faults
from nngk import progress

# The suite runs two processes on two cores, so each has one thread unless NNGK_TEST_THREADS says otherwise.
torch.set_num_threads(int(os.environ.get("NNGK_TEST_THREADS", "1")))
# A forked process has none of its parent's threads, and would wait for them for ever.
os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))

# Files whose results depend on how a processor rounds: they train networks or walk through graphs.
SENSITIVE = (
    "experiments/demo/test_digits.py",
    "kernel/test_formulas.py",
    "losses/test_overfit.py",
    "model/test_model.py",
    "search/test_cells.py",
    "search/test_exact.py",
    "search/test_fanng.py",
    "search/test_native_kernels.py",
    "training/test_loop.py",
    "training/test_embedding_start.py",
)

# Files that take longest. They begin, so that no process is left alone with one of them at the end.
LONGEST = (
    "experiments/demo/test_digits.py",
    "training/test_networks.py",
    "experiments/paper/test_runner.py",
    "losses/test_losses_in_training.py",
    "cli/test_commands.py",
    "benchmarks/test_quick.py",
    "tests/test_interpreter.py",
    "experiments/compare/test_comparison.py",
    "data/datasets/test_official.py",
    "web/test_page.py",
    "experiments/paper/test_report.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is neither slow nor thorough as quick, what depends on rounding as sensitive; put long files first."""
    for item in items:
        if not any(item.get_closest_marker(name) for name in ("slow", "thorough")):
            item.add_marker(pytest.mark.quick)
        if Path(item.path).as_posix().endswith(SENSITIVE):
            item.add_marker(pytest.mark.sensitive)
    items.sort(key=lambda item: not Path(item.path).as_posix().endswith(LONGEST))


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Let no test write into a person's cache, nor find there what another run left."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Compute as the programs and forked processes of tests do, where results are compared with theirs to the bit."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Let the report say how many faults a test injected, where it is one that counts them."""
    number = faults.counted()
    if number:
        item.user_properties.append(("injected", number))


@pytest.fixture(autouse=True)
def as_if_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin every test with the same random numbers, and with progress shown whatever a command before it wished."""
    torch.manual_seed(0)
    monkeypatch.setattr(progress, "quiet", False)


@pytest.fixture(autouse=True)
def doctest_names(doctest_namespace: dict) -> None:
    doctest_namespace["torch"] = torch
