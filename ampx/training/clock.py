"""How long the attempted steps took, without evaluations, checkpoints and the first compile."""

import statistics
import time
from typing import Any


class Clock:
    """Times windows of steps between two flushes: on a GPU a single step has no end the host can see."""

    def __init__(self) -> None:
        self._windows: list[tuple[float, int, int]] = []
        self._opened_at: float | None = None
        self._steps = 0
        self._samples = 0

    def start_step(self) -> None:
        """Open a window unless one is open."""
        if self._opened_at is None:
            self._opened_at = time.perf_counter()

    def end_step(self, num_samples: int) -> None:
        """Count one step of the open window."""
        self._steps += 1
        self._samples += num_samples

    def close_window(self) -> None:
        """End the window; call after a flush, which waits for the device."""
        if self._opened_at is None or not self._steps:
            return
        elapsed = time.perf_counter() - self._opened_at
        self._windows.append((elapsed, self._steps, self._samples))
        self._opened_at, self._steps, self._samples = None, 0, 0

    def throughput(self) -> dict[str, Any]:
        """`samples_per_s` and `step_ms_median`, without the first window where there are others."""
        windows = self._windows[1:] or self._windows  # first steps build caches
        if not windows:
            return {"samples_per_s": None, "step_ms_median": None}
        return {
            "samples_per_s": sum(samples for _, _, samples in windows)
            / sum(elapsed for elapsed, _, _ in windows),
            "step_ms_median": 1e3 * statistics.median(elapsed / steps for elapsed, steps, _ in windows),
        }
