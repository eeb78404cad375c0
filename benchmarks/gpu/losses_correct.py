"""Are the fused losses right? Values and gradients against those of the eager losses in float64.

    PYTHONPATH=src python benchmarks/gpu/losses_correct.py

Rows: results/gpu_correct.csv.
"""

import interpreted  # noqa: F401
import torch
from loss_problems import eager_lists, gradients, problem
from measure import DEVICE, QUICK, Report, error, poison, report_of

from nngk.kernel import formulas
from nngk.kernel.triton.losses import fused_all_centres_loss, fused_neighbour_loss


def check_lists(report: Report) -> None:
    """Compare the loss over neighbour lists with the eager one in float64, over sizes, dtypes and σ."""
    f32, bf16, f16 = torch.float32, torch.bfloat16, torch.float16
    cases = [
        (64, 1000, 50, 64, 8.0, f32),
        (33, 1000, 77, 515, 20.0, f32),
        (64, 5000, 200, 512, 15.0, f32),
        (16, 5000, 200, 2048, 30.0, f32),
        (16, 3000, 1500, 128, 10.0, f32),
        (64, 1000, 50, 64, 1e-3, f32),
        (64, 1000, 50, 64, 1e5, f32),
        (64, 1000, 50, 64, 1e-20, f32),
        (64, 5000, 200, 512, 15.0, bf16),
        (33, 1000, 77, 515, 20.0, bf16),
        (64, 1000, 50, 64, 1e-3, bf16),
        (64, 1000, 50, 64, 1e5, bf16),
        (64, 1000, 50, 64, 1e-20, bf16),
        (64, 5000, 200, 512, 15.0, f16),
    ]
    for n, m, k, dim, sigma, dtype in [(4, 50, 9, 20, 5.0, f32), (4, 50, 9, 20, 5.0, bf16)] if QUICK else cases:
        given = problem(n, m, k, dim, sigma, dtype)
        outer = torch.randn(n, device=DEVICE)
        poison()
        found = gradients(fused_neighbour_loss, given, outer, wide=False)
        name = f"lists B={n} K={k} D={dim} sigma={sigma:g} {str(dtype)[6:]}"
        if sigma < 1e-10:
            report(name, float(sum(t.isnan().sum() for t in found)), "NaNs", "must be 0")
            continue
        truth = gradients(eager_lists, given, outer, wide=True)
        each = [error(a, b) for a, b in zip(found, truth)]
        report(name, max(each[:3]), "rel", "value x theta sigma: " + " ".join(f"{e:.1e}" for e in each))
        again = gradients(fused_neighbour_loss, given, outer, wide=False)
        same = all(torch.equal(a, b) for a, b in zip(found, again))
        report(name + " second run equal", float(same), "bool")


def check_all_centres(report: Report) -> None:
    """Compare the loss over all centres with the eager one in float64, at every precision of the products."""
    cases = [(33, 1000, 65, 8.0), (64, 5000, 512, 15.0), (64, 5000, 512, 1.0), (64, 5000, 512, 1e3)]
    for n, m, dim, sigma in [(4, 100, 20, 5.0)] if QUICK else cases:
        given = problem(n, m, 1, dim, sigma, torch.float32)
        del given[4]
        outer = torch.randn(n, device=DEVICE)
        truth = gradients(formulas.all_centres_loss, given, outer, wide=True, centres=True)
        for precision in ("ieee", "tf32x3", "tf32", "bf16"):
            poison()
            loss = lambda *a, p=precision: fused_all_centres_loss(*a, precision=p)  # noqa: E731
            found = gradients(loss, given, outer, wide=False, centres=True)
            each = [error(a, b) for a, b in zip(found, truth)]
            note = "value x c theta sigma: " + " ".join(f"{e:.1e}" for e in each)
            report(f"all centres B={n} m={m} D={dim} sigma={sigma:g} {precision}", max(each[:4]), "rel", note)


def correct(report: Report) -> None:
    """Check both losses."""
    check_lists(report)
    check_all_centres(report)


if __name__ == "__main__":
    report_of("correct", __doc__, "results/gpu_correct.csv", correct)
