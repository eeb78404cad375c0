"""One thread a test process: the suite runs two processes on two cores."""

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def doctest_names(doctest_namespace: dict) -> None:
    doctest_namespace["torch"] = torch
