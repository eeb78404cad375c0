"""What does this GPU give: the bandwidth of a copy, and the rate of matrix products?

    PYTHONPATH=src python benchmarks/gpu/hardware.py

These are the floors of the other benchmarks: a pass over gathered rows cannot be faster than their bytes at the
bandwidth of a copy, and a search cannot be faster than its products alone. Rows: results/gpu_machine.csv.
"""

import torch
from measure import DEVICE, QUICK, Report, milliseconds, report_of


def machine(report: Report) -> None:
    """Measure the bandwidth of a copy and the rate of matrix products."""
    size = 1 << 16 if QUICK else 1 << 30
    a, b = torch.randn(size, device=DEVICE), torch.empty(size, device=DEVICE)
    report("copy bandwidth (read + write)", 8e-9 * size / milliseconds(lambda: b.copy_(a), 10), "TB/s")
    n = 64 if QUICK else 8192
    for name, dtype in (("float16", torch.float16), ("bfloat16", torch.bfloat16), ("float32", torch.float32)):
        p, q = (torch.randn(n, n, device=DEVICE, dtype=dtype) for _ in range(2))
        rate = 2e-9 * n**3 / milliseconds(lambda p=p, q=q: p @ q, 10)
        report(f"matrix product {name}", rate, "TFLOP/s", f"{n}^3")


if __name__ == "__main__":
    report_of("machine", __doc__, "results/gpu_machine.csv", machine)
