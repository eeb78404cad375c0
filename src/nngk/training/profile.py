"""Where a training step's time goes: a table of its stages, the costliest operations, and a trace."""

import contextlib
import csv
import io
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch

from nngk.files import write_atomically
from nngk.progress import say
from nngk.training.run import Run

Item = TypeVar("Item")
STAGES = ("data", "refresh", "forward", "loss", "backward", "optimiser")
WARM = 5  # steps before the first that is measured: caches fill, kernels are compiled and chosen
MEASURED = 10


def start_profile(run: Run) -> "StepProfile":
    """Profile steps early in a long run, or in the middle of a short one."""
    ahead = run.total_steps - run.at.step
    warm = max(1, min(WARM, ahead // 3))
    profile = StepProfile(run.folder / "profile", run.device, warm, max(1, min(MEASURED, ahead - warm)))
    run.stage = profile.stage
    return profile


def finish_profile(profile: "StepProfile", run: Run) -> None:
    """Write the profile of a run that is over, and say where it is."""
    last = run.refresher.history[-1] if run.refresher.history else None
    path = profile.finish(0.0 if last is None else last.seconds, run.refresher.every, run.settings.background)
    say(f"Where a step's time went: {path}" if path else "The run had too few steps to profile one.")


@dataclass
class _Span:
    """How long a stage took: on the host's clock and, on a GPU, between two marks in its stream."""

    begin: float
    end: float = 0.0
    marks: tuple[Any, Any] | None = None


@dataclass
class StepProfile:
    """Times some steps after a warm-up; ``stage`` wraps what belongs together in a step, ``step`` ends one.

    On a GPU the host only queues work, so its time says what launching costs; the device's says what the work costs.
    """

    folder: Path
    device: torch.device
    warm: int = WARM
    steps: int = MEASURED
    seen: int = 0
    spans: dict[str, list[_Span]] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    _operations: str = ""
    _profiler: Any = None
    _whole: _Span | None = None

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        if self._profiler is None:
            yield
            return
        span = self._begin()
        with torch.profiler.record_function(f"nngk: {name}"):
            yield
        self._finish(span)
        self.spans.setdefault(name, []).append(span)

    def loading(self, items: Iterator[Item]) -> Iterator[Item]:
        """Yield the same items; the time until each comes is the stage 'data'."""
        while True:
            with self.stage("data"):
                item = next(items, None)
            if item is None:
                return
            yield item

    def step(self) -> None:
        """Take in that a step is over."""
        self.seen += 1
        if self._profiler is not None and self.seen >= self.warm + self.steps:
            self._stop()
        elif self.seen == self.warm:
            self._start()

    def finish(self, refresh_seconds: float = 0.0, every: int = 1, background: bool = False) -> Path | None:
        """Write ``profile.txt`` and ``profile.csv``; None where there were too few steps to see any.

        A refresh is spread over the ``every`` steps between two of them; one in the background runs beside them.
        """
        if self._profiler is not None:
            self._stop()
        if not self.rows:
            return None
        # The steps that are timed seldom have a refresh among them.
        each = 1e3 * refresh_seconds / every
        rows = [row for row in self.rows if row["stage"] != "refresh"]
        how = "beside" if background else "spread over"
        spread = {"stage": f"refresh, {how} {every} steps", "host_ms": each, "device_ms": each, "share": ""}
        rows.insert(len(rows) - 1, spread)
        write_atomically(self.folder / "profile.csv", lambda part: part.write_text(_csv(rows), encoding="utf-8"))
        text = "\n".join([*_lines(rows), "", self._operations])
        write_atomically(self.folder / "profile.txt", lambda part: part.write_text(text, encoding="utf-8"))
        return self.folder / "profile.txt"

    # -- measuring

    def _start(self) -> None:
        activities = [torch.profiler.ProfilerActivity.CPU]
        if self.device.type == "cuda":
            activities.append(torch.profiler.ProfilerActivity.CUDA)
            torch.cuda.synchronize(self.device)
        self._profiler = torch.profiler.profile(activities=activities)
        self._profiler.start()
        self._whole = self._begin()

    def _stop(self) -> None:
        profiler, self._profiler = self._profiler, None
        assert self._whole is not None
        self._finish(self._whole)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        profiler.stop()
        self.folder.mkdir(parents=True, exist_ok=True)
        count = self.seen - self.warm
        if count < 1:
            return
        profiler.export_chrome_trace(str(self.folder / "trace.json.gz"))
        order = "self_device_time_total" if self.device.type == "cuda" else "self_cpu_time_total"
        self._operations = profiler.key_averages().table(sort_by=order, row_limit=25)
        self.rows = self._table(count)

    def _begin(self) -> _Span:
        marks = None
        if self.device.type == "cuda":
            marks = (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
            marks[0].record()
        return _Span(time.perf_counter(), marks=marks)

    def _finish(self, span: _Span) -> None:
        span.end = time.perf_counter()
        if span.marks is not None:
            span.marks[1].record()

    def _table(self, count: int) -> list[dict[str, Any]]:
        assert self._whole is not None
        whole = [self._whole]
        per = {name: (_host(s) / count, _device(s) / count) for name, s in self.spans.items()}
        step = (_host(whole) / count, _device(whole) / count)
        named = [(name, per[name]) for name in STAGES if name in per]
        rest = tuple(max(0.0, step[i] - sum(times[i] for _, times in named)) for i in range(2))
        at = 1 if self.device.type == "cuda" else 0
        return [
            {"stage": name, "host_ms": times[0], "device_ms": times[1], "share": times[at] / step[at]}
            for name, times in [*named, ("the rest", rest), ("step", step)]
        ]


def _host(spans: list[_Span]) -> float:
    return 1e3 * sum(span.end - span.begin for span in spans)


def _device(spans: list[_Span]) -> float:
    """Return the milliseconds between the marks on a GPU; on the CPU, which is host and device, the host's."""
    if any(span.marks is None for span in spans):
        return _host(spans)
    return sum(span.marks[0].elapsed_time(span.marks[1]) for span in spans if span.marks is not None)


def _csv(rows: list[dict[str, Any]]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def _lines(rows: list[dict[str, Any]]) -> list[str]:
    lines = [f"{'stage':<32} {'host ms':>9} {'device ms':>10} {'share':>7}"]
    for row in rows:
        share = f"{row['share']:7.1%}" if row["share"] != "" else ""
        lines.append(f"{row['stage']:<32} {row['host_ms']:>9.3f} {row['device_ms']:>10.3f} {share:>7}")
    return lines
