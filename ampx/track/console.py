"""What a person sees of one trial: a progress bar on a terminal, plain lines elsewhere, then a summary."""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from ampx.config.experiment import ExperimentConfig
from ampx.track.record import StepRecord

PLAIN_EVERY_S = 2.0


class TrialConsole(Console):
    """A console that falls silent when its reader is gone: `ampx run | head` must not end a trial."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class ConsoleTracker:
    """Shows loss, task metrics, scale and skips at every flush."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or TrialConsole(file=sys.stdout, highlight=False)
        self._bar: Progress | None = None
        self._total: int | None = None
        self._skips = 0
        self._printed_at = 0.0

    def describe_config(self, config: ExperimentConfig) -> None:
        """The config tree, one group a line."""
        for line in config_tree(config):
            self.console.print(line, markup=False, soft_wrap=True)

    def start(self, total_steps: int | None, first_step: int) -> None:
        """Begin at `first_step` of `total_steps`, which is None where nobody knows."""
        self._total = total_steps
        if self.console.is_terminal:
            self._bar = Progress(
                TextColumn("step"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TextColumn("{task.description}"),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                console=self.console,
                transient=True,
            )
            self._bar.add_task("", total=total_steps, completed=first_step)
            self._bar.start()

    def on_records(self, records: Sequence[StepRecord]) -> None:
        """Show the newest record."""
        last = records[-1]
        self._skips += sum(not record.applied for record in records)
        line = describe(last, self._skips)
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=last.step + 1, description=escape(line))
        elif time.monotonic() - self._printed_at >= PLAIN_EVERY_S:
            self._printed_at = time.monotonic()
            of_total = "" if self._total is None else f"/{self._total}"
            self.console.print(f"step {last.step + 1}{of_total}  {line}", markup=False)

    def on_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        """One line per evaluation."""
        shown = "  ".join(f"{name} {value:.4g}" for name, value in metrics.items())
        self.console.print(f"step {step}  evaluation  {shown}", markup=False)

    def note(self, text: str) -> None:
        """One line that must not be missed."""
        self.console.print(text, markup=False, soft_wrap=True)

    def on_end(self, result: Mapping[str, Any]) -> None:
        """Take the bar away and sum up."""
        self.stop()
        for line in summary(result):
            self.console.print(line, markup=False, soft_wrap=True)

    def stop(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def config_tree(config: ExperimentConfig) -> list[str]:
    """`group  option  name=value …`, a line a group: first what is in none, last those that are off."""
    values = config.model_dump(mode="json", by_alias=True)
    groups = {name: value for name, value in values.items() if isinstance(value, dict)}
    off = [name for name, settings in groups.items() if settings == {"kind": "none"}]
    rows = {"": {name: value for name, value in values.items() if name not in groups}, **groups}
    lines = [f"{name:13} {_option(settings)}" for name, settings in rows.items() if name not in off]
    return [*lines, f"{'none':13} {' '.join(off)}"]


def _option(settings: Mapping[str, Any]) -> str:
    option = settings.get("name") or settings.get("kind") or ""
    rest = {key: value for key, value in settings.items() if key not in ("kind", "name")}
    return f"{option}  {_pairs(rest)}".strip()


def _pairs(settings: Mapping[str, Any]) -> str:
    shown = {key: _shown(value) for key, value in settings.items()}
    return " ".join(f"{key}={text}" for key, text in shown.items() if text)


def _shown(value: Any) -> str:
    """As it could be typed; nothing for what is null or empty."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        items = {key: _shown(item) for key, item in value.items()}
        inner = ",".join(f"{key}:{text}" for key, text in items.items() if text)
        return f"{{{inner}}}" if inner else ""
    if isinstance(value, list):
        return f"[{','.join(map(_shown, value))}]" if value else ""
    return "" if value is None else str(value)


def describe(record: StepRecord, num_skipped: int) -> str:
    """A record in one line."""
    parts = [f"loss {_number(record.loss)}"]
    parts += [f"{name} {_number(value)}" for name, value in record.metrics.items()]
    parts.append("scale off" if record.scale is None else f"scale {record.scale:g}")
    return "  ".join([*parts, f"skips {num_skipped}"])


def summary(result: Mapping[str, Any]) -> list[str]:
    """The outcome of a trial in a few lines."""
    steps, throughput = result["steps"], result["throughput"]
    metrics = "  ".join(
        f"{name} {_number(value['final'])} (best {_number(value['best'])})"
        for name, value in result["metrics"].items()
    )
    skipped = ", ".join(f"{count} {reason}" for reason, count in steps["skipped"].items()) or "none"
    reason = f" ({result['reason']})" if result.get("reason") else ""
    lines = [f"{result['status']}{reason} in {result['wall_s']:.1f} s  {metrics}"]
    lines.append(f"steps {steps['attempted']} attempted, {steps['applied']} applied, skipped: {skipped}")
    if throughput["samples_per_s"]:
        lines[-1] += (
            f"  {throughput['samples_per_s']:.0f} samples/s  {throughput['step_ms_median']:.2f} ms a step"
        )
    return lines


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4g}"
