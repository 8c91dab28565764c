"""`debug=profile`: a torch.profiler trace of the run, and how much of it is matmul and convolution."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch

from ampx.jobs.context import JobContext

RANGES = ("data", "forward", "loss", "backward", "unscale", "step", "update")
_MULTIPLY = ("mm", "addmm", "bmm", "baddbmm", "convolution", "linear", "scaled_dot_product", "gemm", "conv")


@contextmanager
def profiled(context: JobContext) -> Generator[None]:
    """Profile what runs inside if the config says so; writes `profile/trace.json` and `profile/table.txt`."""
    if not context.config.debug.profile:
        yield
        return
    activities = [torch.profiler.ProfilerActivity.CPU]
    if context.device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profiler:
        yield
    folder = context.trial.path / "profile"
    folder.mkdir(exist_ok=True)
    profiler.export_chrome_trace(str(folder / "trace.json"))
    averages = profiler.key_averages()
    lines = _table(averages)
    kernels = averages.table(sort_by="self_cpu_time_total", row_limit=25)
    (folder / "table.txt").write_text("\n".join([*lines, "", kernels]))
    for line in [*lines, f"trace for chrome://tracing or perfetto: {folder / 'trace.json'}"]:
        context.note(line)


def _table(averages: Any) -> list[str]:
    total = sum(_self_time(event) for event in averages)
    multiply = sum(_self_time(event) for event in averages if _is_multiply(event.key))
    ranges = {event.key: event.cpu_time_total for event in averages if event.key in RANGES}
    lines = [f"{name:10} {ranges[name] / 1e3:9.1f} ms" for name in RANGES if name in ranges]
    return [*lines, f"matmul and convolution kernels: {multiply / max(total, 1):.0%} of the time in kernels"]


def _self_time(event: Any) -> float:
    if event.key in RANGES:
        return 0.0
    return event.self_device_time_total or event.self_cpu_time_total


def _is_multiply(key: str) -> bool:
    return any(word in key for word in _MULTIPLY)
