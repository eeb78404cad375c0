"""What do CUDA graphs add to a training step, and how long do they take to begin?

    PYTHONPATH=src python benchmarks/gpu/graphs_gain.py --data DIR --weights DIR [--commit HASH]

Rows: results/gpu_training.csv, with the section 'compile'.
"""

from measure import QUICK, Report
from training_measure import NEVER, images_at_hand, new_run, refresh_every, settings, timed_epochs, training_report

CASES = (("googlenet-bvlc", 20), ("resnet50-v1", 128), ("googlenet-bvlc", 96))


def gains(report: Report) -> None:
    """Time an epoch launched one by one and captured, after the first one."""
    with images_at_hand(report) as (sources, table):
        for network, batch in CASES[: 1 if QUICK else None]:
            if report.late(60):
                return
            speeds = []
            for how in ("off",) if QUICK else ("off", "graphs"):
                s = settings(report, sources, network, batch, lr=1e-6, epochs=100, compile=how)
                run = new_run(report, table, s, f"{network}-{batch}-{how}")
                refresh_every(run, NEVER, False)
                _, first = timed_epochs(run, 1)
                images, seconds = timed_epochs(run, 1)
                speeds.append(images / seconds)
                note = f"first epoch {first:.1f} s; {speeds[-1] / speeds[0]:.2f}x off"
                report(f"{network}, batch {batch}, compile {how}", speeds[-1], "images/s", note)


if __name__ == "__main__":
    training_report("compile", __doc__, gains)
