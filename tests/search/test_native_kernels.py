"""Every kernel of every instruction set against plain float64 arithmetic."""

import pytest
import torch

from nngk.search.native import core

native = core()
pytestmark = pytest.mark.skipif(native is None, reason="the compiled core is not built")
SETS = [name for name in ("plain", "avx2", "avx512") if native is not None and native.has_kernels(name)]


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("storage", ["f32", "bf16", "f16", "i8"])
@pytest.mark.parametrize("dim", [32, 96, 512])
def test_distances(name: str, storage: str, dim: int) -> None:
    generator = torch.Generator().manual_seed(dim)
    q, rows = torch.randn(3, dim, generator=generator), torch.randn(7, dim, generator=generator)
    if storage == "i8":
        q, rows = (torch.randint(-127, 128, t.shape, generator=generator).float() for t in (q, rows))
    out = torch.empty(3, 7)
    native.kernel_distances(name, storage, q, rows, out)  # type: ignore[union-attr]
    stored = {"bf16": torch.bfloat16, "f16": torch.float16}.get(storage, torch.float32)
    wanted = (q.double()[:, None] - rows.to(stored).double()[None]).square().sum(2)
    if storage == "i8":
        assert torch.equal(out.double(), wanted)
    else:
        torch.testing.assert_close(out.double(), wanted, rtol=3e-6, atol=0)


@pytest.mark.parametrize("name", SETS)
def test_halves_round_as_torch_rounds(name: str) -> None:
    # Subnormals, the largest halves, values that round up to the next power of two.
    values = [0.0, -0.0, 1e-8, 6e-8, 3.1e-5, 6.1e-5, 1.0, 1.0009, 1.00049, 2.9999, 65504.0, -65504.0, 0.3333, 12345.6]
    rows = torch.tensor(values + [0.0] * (32 - len(values))).repeat(4, 1)
    q = torch.zeros(1, 32)
    for storage, dtype in (("f16", torch.float16), ("bf16", torch.bfloat16)):
        out = torch.empty(1, 4)
        native.kernel_distances(name, storage, q, rows, out)  # type: ignore[union-attr]
        wanted = rows.to(dtype).double().square().sum(1)
        torch.testing.assert_close(out[0].double(), wanted, rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("dim", [16, 128, 208])
def test_tile(name: str, dim: int) -> None:
    generator = torch.Generator().manual_seed(dim)
    a, b = torch.randn(8, dim, generator=generator), torch.randn(48, dim, generator=generator)
    wanted = -(a.double()[:, None] - b.double()[None]).square().sum(2) / 2
    row_cut, col_cut = wanted.flatten().sort().values[[300, 200]].tolist()
    c, hits = torch.zeros(8, 48), torch.empty(2, 8, dtype=torch.long)
    assert native.kernel_tile(name, a, b, c, row_cut + 1e-3, col_cut + 1e-3, hits)  # type: ignore[union-attr]
    for row in range(8):
        for kind, cut in ((0, row_cut + 1e-3), (1, col_cut + 1e-3)):
            word = int(hits[kind, row])
            for column in range(48):
                # Next to the cut rounding decides.
                if abs(wanted[row, column] - cut) > 1e-3:
                    assert bool(word >> column & 1) == bool(wanted[row, column] >= cut)
        if int(hits[0, row]) | int(hits[1, row]):
            torch.testing.assert_close(c[row].double(), wanted[row], rtol=1e-4, atol=1e-4)
    assert not native.kernel_tile(name, a, b, c, 1.0, 1.0, hits)  # type: ignore[union-attr]


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("dim", [1, 7, 64])
def test_strips_of_a_panel(name: str, dim: int) -> None:
    generator = torch.Generator().manual_seed(dim)
    panel = torch.randn(dim, 48, generator=generator)
    for columns in ([0, 15, 16, 31, 32, 47, 47, 1], torch.randperm(48, generator=generator)[:8].tolist()):
        out = torch.empty(dim, 8)
        native.kernel_strip(name, panel, torch.tensor(columns), out)  # type: ignore[union-attr]
        assert torch.equal(out, panel[:, columns])
