"""Compiled kernels are found again, and only where Triton would choose the same one."""

import pytest
import torch

from nngk import accel as launching
from nngk.accel import Tiles, blocks, launch, power_of_two


class Compiled:
    def __init__(self, calls):
        self.calls = calls

    def __getitem__(self, grid):
        return lambda *arguments: self.calls.append(("again", grid, arguments))


class Kernel:
    """Stands for a Triton kernel: remembers how it was launched."""

    def __init__(self):
        self.calls = []

    def __getitem__(self, grid):
        def first(*arguments, num_warps):
            self.calls.append(("first", grid, arguments))
            return Compiled(self.calls)

        return first


@pytest.fixture
def kernel(monkeypatch):
    monkeypatch.setattr(launching, "interpreted", lambda: False)
    monkeypatch.setattr(launching, "_COMPILED", {})
    return Kernel()


def how(kernel):
    return [call[0] for call in kernel.calls]


def test_found_again_with_other_sizes_and_numbers(kernel):
    launch(kernel, 3, (torch.zeros(4),), (7,), (16, True))
    launch(kernel, 5, (torch.ones(9),), (8,), (16, True))
    assert how(kernel) == ["first", "again"]
    assert kernel.calls[1][1] == (5, 1, 1) and kernel.calls[1][2][1:] == (8, 16, True)


@pytest.mark.parametrize(
    "tensor,constants,warps",
    [(torch.zeros(4).half(), (16,), 4), (torch.zeros(4), (32,), 4), (torch.zeros(4), (16,), 8)],
)
def test_not_taken_for_another(kernel, tensor, constants, warps):
    launch(kernel, 1, (torch.zeros(4),), (), (16,))
    launch(kernel, 1, (tensor,), (), constants, warps)
    assert how(kernel) == ["first", "first"]


def test_addresses_that_are_not_aligned_are_left_to_triton(kernel):
    for _ in range(2):
        launch(kernel, 1, (torch.zeros(5)[1:],), (), (16,))
    assert how(kernel) == ["first", "first"]


def test_blocks():
    assert [power_of_two(n) for n in (1, 2, 3, 64, 65)] == [1, 2, 4, 64, 128]
    assert blocks(Tiles(4096, 512, 4), 500, 200) == (8, 512)
    assert blocks(Tiles(4096, 512, 4), 5, 3) == (4, 16)
