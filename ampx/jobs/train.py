"""The job `train`: from a config, or from where it stopped, to a trained model and its account."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ampx.jobs.context import JobContext, Outcome
from ampx.jobs.manifest import (
    effective,
    exactness,
    precision_notes,
    requested,
    use_recorded_threads,
    write_manifest,
)
from ampx.jobs.profile import profiled
from ampx.lock import TrialLostError
from ampx.training.anomaly import AnomalyHunt
from ampx.training.assemble import TrainState, assemble
from ampx.training.checkpoint import Checkpoints
from ampx.training.ledger import Tally
from ampx.training.loop import Loop
from ampx.training.memory import peak_memory
from ampx.training.observed import FirstStep
from ampx.training.spans import no_spans, recorded_span
from ampx.trial import Trial


def train(context: JobContext) -> Outcome:
    """Train until the settings say so, the numbers do, or somebody asks to stop."""
    config = context.config
    use_recorded_threads(context)
    state = assemble(
        config,
        context.device,
        observers=context.trackers,
        on_overflow=_overflow_event(context),
        spans=recorded_span if config.debug.profile else no_spans,
    )
    watcher = _Watcher(context, state)
    checkpoints = Checkpoints(context.trial.checkpoints)
    loop = Loop(
        state,
        config.train,
        checkpoints,
        watcher,
        abort_after_skips=config.scaler.abort_after_skips,
        min_scale=state.scaler.policy.min_scale,
        anomaly=AnomalyHunt(is_scaled=state.scaler.is_enabled()) if config.debug.anomaly else None,
    )
    _restore(context, loop, checkpoints)
    notes = precision_notes(state)
    for note in notes:
        context.note(note)
    write_manifest(context, {**requested(state), "notes": notes})
    context.start_display(state.planned_steps, loop.progress.step)
    try:
        with state.setup.kernels.installed(), profiled(context):
            ending = loop.run()
    except TrialLostError:  # the files are another process's now
        raise
    except Exception:
        loop.flush()
        raise
    finally:
        context.report(_result(state, loop))
    return Outcome(None if ending.outcome == "stopped" else ending.outcome, ending.reason)


def _overflow_event(context: JobContext) -> Any:
    def tell(step: int, optimizer: str, norm: float) -> None:
        context.tell("norm_overflow", step=step, optimizer=optimizer, grad_norm=norm)

    return tell


class _Watcher:
    """Connects the loop with the trial's files, its trackers and the signals."""

    def __init__(self, context: JobContext, state: TrainState) -> None:
        self._context = context
        self._state = state
        self._first_step = FirstStep(state.setup.model, state.setup.islands)
        self.is_stop_requested = context.is_stop_requested
        self.tell = context.tell

    def on_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        for tracker in self._context.trackers:
            tracker.on_evaluation(step, metrics)

    def before_checkpoint(self) -> None:
        self._context.trial.sync("steps.jsonl", "evals.jsonl", "events.jsonl")

    def on_first_step(self) -> None:
        self._first_step.remove()
        setup = self._state.setup
        observed = self._first_step.report(self._state.optimizers())
        notes = self._first_step.check(setup.policy)
        precision = {**requested(self._state), **effective(self._state, observed, notes)}
        for note in notes:
            self._context.note(note)
        write_manifest(self._context, precision)


def _restore(context: JobContext, loop: Loop, checkpoints: Checkpoints) -> None:
    """Go on from the newest checkpoint that can be read, and drop the records that lie past it."""

    def tell_unreadable(path: Path, error: str) -> None:
        context.tell("checkpoint_unreadable", path=str(path), error=error)
        context.note(f"{error}; the one before is tried")
        if path.is_relative_to(context.trial.path):
            checkpoints.set_aside(path)

    saved = checkpoints.load_newest(tell_unreadable)
    is_own = saved is not None
    if saved is None and (origin := context.config.resume) is not None:
        saved = Checkpoints(Path(origin) / "checkpoints").load_newest(tell_unreadable)
        if saved is None:
            raise ValueError(f"resume={origin}: holds no checkpoint that can be read; nothing to start from")
    if saved is not None:
        loop.load(saved, is_own=is_own)
    elif context.trial.read_jsonl("steps.jsonl"):
        _check_restartable(context, loop)
    step = loop.progress.step
    dropped = context.trial.truncate_after("steps.jsonl", step) + context.trial.truncate_after(
        "evals.jsonl", step + 1
    )
    if saved is not None:
        origin = context.trial if context.config.resume is None else Trial.open(context.config.resume)
        how = exactness(origin, context.device)
        context.tell("resumed", step=step, dropped_records=dropped, exactness=how)
        context.note(f"goes on from step {step}, {how}")
    elif dropped:
        context.tell("restarted", dropped_records=dropped)
        context.note("no checkpoint can be read: begins again from step 0")


def _check_restartable(context: JobContext, loop: Loop) -> None:
    """Nothing was saved: a trial may begin again unless its data cannot, for then it would lose its steps."""
    if not loop.state.feed.can_resume:
        raise ValueError(
            f"resume={context.trial.path}: its data have neither a length nor state_dict, so no checkpoint "
            "could be kept; start a new trial, or give the data __len__ or state_dict/load_state_dict"
        )


def _result(state: TrainState, loop: Loop) -> dict[str, Any]:
    progress, tallies = loop.progress, state.ledger.tallies
    return {
        "metrics": progress.metrics,
        "steps": _steps(tallies, state.planned_steps),
        "scale": _scale(tallies),
        "throughput": loop.clock.throughput(),
        "train_s": loop.elapsed_s(),
        "memory": peak_memory(state.setup.device),
    }


def _steps(tallies: Mapping[str, Tally], planned: int | None) -> dict[str, Any]:
    """Counts over all optimizers: an attempt of each is one attempt."""
    skipped: dict[str, int] = {}
    for tally in tallies.values():
        for reason, count in tally.skipped.items():
            skipped[reason] = skipped.get(reason, 0) + count
    return {
        "planned": planned,
        "attempted": sum(tally.attempted for tally in tallies.values()),
        "applied": sum(tally.applied for tally in tallies.values()),
        "skipped": skipped,
    }


def _scale(tallies: Mapping[str, Tally]) -> dict[str, float | None]:
    tally = next(iter(tallies.values()), Tally())  # the scale is shared by all optimizers
    return {
        "first": tally.scale_first,
        "last": tally.scale_last,
        "min": tally.scale_min,
        "max": tally.scale_max,
    }
