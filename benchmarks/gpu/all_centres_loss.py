"""How fast is the fused loss over all centres, at each precision of its products?

    PYTHONPATH=src python benchmarks/gpu/all_centres_loss.py

Rows: results/gpu_dense.csv.
"""

from typing import Any

import interpreted  # noqa: F401
import torch
from loss_problems import problem
from measure import DEVICE, QUICK, Report, milliseconds, peak_mib, report_of
from torch import Tensor

from nngk.kernel import formulas
from nngk.kernel.triton import dense
from nngk.kernel.triton.losses import fused_all_centres_loss


def speed(report: Report) -> None:
    """Time the loss over all centres at every precision, beside the eager one, and measure its memory."""
    n, dim = (4, 16) if QUICK else (512, 512)
    for m in (100,) if QUICK else (100_000, 1_000_000):
        given = problem(n, m, 1, dim, dim**0.5, torch.float32, classes=max(2, m // 100))
        del given[4]
        leaves = [t.detach().requires_grad_(i in (0, 2)) for i, t in enumerate(given[:4])]
        outer = torch.randn(n, device=DEVICE)
        floor = 2e-9 * n * m * dim

        def step(loss: Any, leaves: list[Tensor] = leaves, given: list[Tensor] = given, outer: Tensor = outer) -> None:
            torch.autograd.grad(loss(*leaves, *given[4:]), [leaves[0], leaves[2]], outer)

        variants = {
            p: (lambda *a, p=p: fused_all_centres_loss(*a, precision=p)) for p in ("tf32x3", "tf32", "bf16", "ieee")
        }
        for name, loss in {"eager": formulas.all_centres_loss, **variants}.items():
            if report.late():
                return
            t = milliseconds(lambda step=step, loss=loss: step(loss), 5, 2)
            forward = milliseconds(lambda loss=loss, leaves=leaves, given=given: loss(*leaves, *given[4:]), 5, 1)
            report(f"m={m} {name} forward + backward", t, "ms", f"{3 * floor / t:.0f} TFLOP/s")
            report(f"m={m} {name} forward", forward, "ms", f"{floor / forward:.0f} TFLOP/s")
            report(f"m={m} {name} memory", peak_mib(lambda step=step, loss=loss: step(loss)), "MiB")
        if m == 100_000:
            usual = dict(dense.BLOCKS)
            for blocks in [(128, 64, 32, 8, 3), (128, 64, 64, 4, 2), (128, 128, 32, 8, 3), (128, 32, 32, 4, 4)]:
                if report.late():
                    break
                dense.BLOCKS[True] = blocks
                try:
                    t = milliseconds(lambda step=step, loss=variants["tf32x3"]: step(loss), 5, 1)
                    report(f"m={m} tf32x3 forward + backward {blocks}", t, "ms", f"{3 * floor / t:.0f} TFLOP/s")
                except Exception as problem_found:
                    print("dense", blocks, repr(problem_found)[:300], flush=True)
            dense.BLOCKS.update(usual)


if __name__ == "__main__":
    report_of("dense", __doc__, "results/gpu_dense.csv", speed)
