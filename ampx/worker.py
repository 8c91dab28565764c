"""Runs ONE trial directory, without Hydra: the same on a laptop, in a pool, on SLURM.

`python -m ampx.worker <trial dir>` exits 0 when the trial completed, 1 when it ended otherwise, 75 when it
was saved and wants to be queued again.
"""

import argparse
import logging
import shlex
import sys
import time
import traceback
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ampx.config.experiment import ExperimentConfig
from ampx.config.load import dump_config, load_config, reveal
from ampx.config.secrets import redactor
from ampx.lock import Lock, TrialLostError
from ampx.status import State
from ampx.stop import StopSignals
from ampx.terminal import make_output_safe
from ampx.track.local import LocalTracker
from ampx.trial import Trial

COMPLETED, FAILED, REQUEUE = 0, 1, 75


def main(argv: list[str] | None = None) -> int:
    """The command line of the worker."""
    parser = argparse.ArgumentParser(prog="python -m ampx.worker", description="Run one trial directory.")
    parser.add_argument("trial", type=Path, help="a directory that `ampx run` wrote")
    arguments = parser.parse_args(argv)
    make_output_safe()
    try:
        return run_trial(Trial.open(arguments.trial)).exit_code
    except ValueError as error:
        print(error, file=sys.stderr)
        return FAILED


@dataclass(frozen=True, slots=True)
class Ended:
    """How an attempt at a trial ended."""

    state: State
    reason: str | None = None
    error: str | None = None
    is_interrupted: bool = False

    @property
    def exit_code(self) -> int:
        """The worker's own exit code."""
        return {"completed": COMPLETED, "preempted": REQUEUE}.get(self.state, FAILED)


def run_trial(trial: Trial) -> Ended:
    """Run, or go on with, a trial in this process; its state and result are on disk when this returns."""
    config = load_config(trial.config_path)
    with trial.locked() as lock:
        status = trial.status()
        if status.state == "completed":
            print(f"already completed: {trial.path}")
            return Ended("completed")
        if status.state == "pending" and (request := trial.request()) is not None:
            state, reason = request.outcome  # somebody stopped it before it began
            trial.set_status(state, reason=reason)
            return Ended(state, reason)
        trial.clear_request()
        trial.set_status("running")
        try:
            with _logging_to(trial.log_path(0)):
                ended = _Attempt(trial, config, lock).run()
        except TrialLostError as error:
            print(error, file=sys.stderr)
            return Ended("preempted", str(error))
        trial.set_status(ended.state, reason=ended.reason, error=ended.error)
    return ended


class _Attempt:
    """One start of a trial: its display, its signals, and the words for however it ends."""

    def __init__(self, trial: Trial, config: ExperimentConfig, lock: Lock) -> None:
        from ampx.track.console import ConsoleTracker  # rich is not needed to say that a trial is complete

        self._trial = trial
        self._config = config
        self._lock = lock
        self._console = ConsoleTracker()
        self._result: Mapping[str, Any] = {}
        self._redact = redactor(dump_config(config))
        self._signals = StopSignals()
        self._started = time.perf_counter()

    def run(self) -> Ended:
        trackers: list[Any] = []
        try:
            with self._signals.installed():
                trackers = self._build_trackers()
                outcome = self._run_job(trackers)
            ended = Ended(outcome.state, outcome.reason) if outcome.state else self._stopped(outcome.reason)
        except KeyboardInterrupt:
            ended = Ended("cancelled", "interrupted twice, not saved", is_interrupted=True)
        except TrialLostError:
            raise
        except SystemExit as error:
            ended = self._failed(RuntimeError(f"the trial's code called sys.exit({error.code})"))
        except Exception as error:
            ended = self._failed(error)
        finally:
            self._console.stop()
        return self._reported(ended, trackers)

    def _build_trackers(self) -> list[Any]:
        from ampx.track.observers import build_observers

        observers = build_observers(reveal(self._config).tracker.observers, self._observer_failed)
        return [LocalTracker(self._trial), *observers, self._console]

    def _observer_failed(self, kind: str, *, observer: str, method: str, error: str) -> None:
        self._trial.event(kind, observer=observer, method=method, error=self._redact(error))
        self._console.note(f"{kind}: {observer}.{method} raised and is not called again; see events.jsonl")

    def _run_job(self, trackers: list[Any]) -> Any:
        from ampx.build import import_target
        from ampx.device import find_device
        from ampx.jobs.context import JobContext  # torch comes with the jobs

        config = reveal(self._config)
        run: Callable[[JobContext], Any] = import_target(config.job.implementation)
        self._console.describe_config(self._config)
        context = JobContext(
            trial=self._trial,
            config=config,
            device=find_device(config.device),
            trackers=trackers,
            is_stop_requested=self._is_stop_requested,
            report=self._take_result,
            note=self._console.note,
            start_display=self._console.start,
        )
        return run(context)

    def _is_stop_requested(self) -> bool:
        if self._lock.is_lost:
            raise TrialLostError(f"{self._trial.path}: another process took this trial over; this one stops")
        return self._signals.is_requested

    def _take_result(self, result: Mapping[str, Any]) -> None:
        self._result = result

    def _stopped(self, is_saved: str | None) -> Ended:
        if self._signals.is_interrupted:
            return Ended("cancelled", f"interrupted, {is_saved}", is_interrupted=True)
        if (request := self._trial.request()) is not None:
            state, reason = request.outcome
            return Ended(state, reason)
        return Ended("preempted", f"stopped by a signal, {is_saved}")

    def _failed(self, error: Exception) -> Ended:
        text = self._redact("".join(traceback.format_exception(error)))
        state: State = "oom" if is_out_of_memory(error) else "failed"
        logging.getLogger(__name__).error("the trial ended as %s\n%s", state, text)
        message = self._redact(str(error)) or type(error).__name__
        if not isinstance(
            error, ValueError
        ):  # a ValueError explains itself; anything else is a bug, ours or the user's
            print(text, file=sys.stderr)
        return Ended(state, f"{type(error).__name__}: {message}", text)

    def _reported(self, ended: Ended, trackers: list[Any]) -> Ended:
        try:
            for tracker in trackers or [LocalTracker(self._trial), self._console]:
                tracker.on_end(self._summary(ended))
        except (ValueError, OSError) as error:  # a full disk, or a file gone: the state must still be told
            print(error, file=sys.stderr)
            ended = Ended("failed", str(error))
        self._console.note(f"trial {self._trial.path}")
        if ended.state in ("preempted", "cancelled", "timeout"):
            resume = shlex.quote(f"resume={self._trial.path}")
            self._console.note(f"to go on: python -m ampx.run {resume}")
        return ended

    def _summary(self, ended: Ended) -> dict[str, Any]:
        return {
            "status": ended.state,
            "reason": ended.reason,
            "settings": typed_settings(self._config, self._trial.read_overrides()),
            "metrics": {},
            "steps": {"attempted": 0, "applied": 0, "skipped": {}},
            "throughput": {"samples_per_s": None, "step_ms_median": None},
            **self._result,
            "precision": (self._trial.read_json("manifest.json") or {}).get("effective"),
            "wall_s": time.perf_counter() - self._started,
        }


def typed_settings(config: ExperimentConfig, overrides: list[str]) -> dict[str, Any]:
    """What was typed, with resolved values: `{"scaler.growth_interval": 300, "dtype": "bf16"}`."""
    values = config.model_dump(mode="json", by_alias=True)
    settings: dict[str, Any] = {}
    for override in overrides:
        key, _, typed = override.lstrip("+~").partition("=")
        if key in ("name", "out", "resume"):  # where, not what
            continue
        value: Any = values
        for part in key.split("."):
            value = value.get(part, typed) if isinstance(value, Mapping) else typed
        settings[key] = typed if isinstance(value, Mapping) else value
    return settings


def is_out_of_memory(error: BaseException) -> bool:
    """A CUDA OOM, a MemoryError, or the RuntimeError that torch raises when the CPU allocator fails."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)


@contextmanager
def _logging_to(path: Path) -> Generator[None]:
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    logging.captureWarnings(True)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        root.removeHandler(handler)
        handler.close()


if __name__ == "__main__":
    sys.exit(main())
