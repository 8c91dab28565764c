"""The training loop: attempts, and what is due between two of them.

Flush, evaluation, checkpoint and stop happen only between attempts and in this order, so that a
resumed trial meets the same ones.
"""

import math
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from ampx.config.train import TrainSettings
from ampx.training.alarms import Alarms
from ampx.training.anomaly import AnomalyHunt
from ampx.training.assemble import TrainState
from ampx.training.checkpoint import Checkpoints
from ampx.training.clock import Clock
from ampx.training.evaluate import evaluate
from ampx.training.progress import Mode, Progress
from ampx.training.stagnation import Stagnation
from ampx.training.step import num_samples

_NO_HUNT = nullcontext()

LOWER_IS_BETTER: dict[str, Mode] = {"loss": "min", "perplexity": "min"}


@dataclass(frozen=True, slots=True)
class Ending:
    """Why the loop returned; `stopped` is a stop from outside, already saved."""

    outcome: Literal["completed", "diverged", "stopped"]
    reason: str | None = None


class Watcher(Protocol):
    """Follows a training run from outside; the worker passes one that writes files and signals."""

    def is_stop_requested(self) -> bool:
        """Whether to save and return before the next attempt."""
        ...

    def tell(self, kind: str, **details: object) -> None:
        """Write an event."""
        ...

    def on_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take the metrics of an evaluation made after `step` attempts."""
        ...

    def on_first_step(self) -> None:
        """Called once, after the first attempt of this process."""
        ...

    def before_checkpoint(self) -> None:
        """Make the records that a checkpoint counts on durable."""
        ...


class Loop:
    """Runs one trial's training from wherever its state stands."""

    def __init__(
        self,
        state: TrainState,
        settings: TrainSettings,
        checkpoints: Checkpoints,
        watcher: Watcher,
        *,
        abort_after_skips: int,
        min_scale: float,
        anomaly: AnomalyHunt | None = None,
    ) -> None:
        self.state = state
        self.progress = Progress()
        self.clock = Clock()
        self._settings = settings
        self._checkpoints = checkpoints
        self._watcher = watcher
        self._abort_after_skips = abort_after_skips
        self._anomaly = anomaly
        self._alarms = Alarms(watcher.tell, min_scale)
        self._stagnation = Stagnation([p for lane in state.lanes.values() for p in lane.masters.parameters])
        self._started_at = time.monotonic()
        self._saved_at: int | None = None
        self._owes_checkpoint = False
        self._has_stepped = False

    def run(self) -> Ending:
        """Train until the settings, the numbers or somebody outside say stop."""
        self._started_at = time.monotonic() - self.progress.elapsed_s
        while (ending := self.ending()) is None:
            self.step()
        return self._finish(ending)

    def step(self) -> None:
        """One attempt, and whatever is due after it."""
        self._attempt()
        if not self._has_stepped:
            self._watcher.on_first_step()
            self._has_stepped = True
        if self.progress.step % self._settings.log_every == 0:
            self.flush()
        if self._evaluation_is_due():
            self._evaluate()
        self._owes_checkpoint |= self._checkpoint_is_due()
        if self._owes_checkpoint and self._is_healthy():
            self.save()

    def _attempt(self) -> None:
        state, progress = self.state, self.progress
        is_measured = (progress.step + 1) % self._settings.log_every == 0
        self.clock.start_step()
        with state.stepper.spans("data"):
            batches = state.feed.take()
        if is_measured:
            self._stagnation.before()
        with self._hunt():
            state.stepper.attempt(progress.step, batches)
        count = sum(map(num_samples, batches))
        progress.step += 1
        progress.samples += count
        self.clock.end_step(count)

    def _hunt(self) -> AbstractContextManager[None]:
        if self._anomaly is None:
            return _NO_HUNT
        return self._anomaly.region(self.state.ledger.consecutive_skips())

    def ending(self) -> Ending | None:
        """Why training ends here; None while it goes on."""
        settings, progress = self._settings, self.progress
        if self._watcher.is_stop_requested():
            return Ending("stopped")
        if (skips := self.state.ledger.longest_skips()) >= self._abort_after_skips:
            cause = "no scale gives" if self.state.scaler.is_enabled() else "nothing gives"
            return Ending("diverged", f"{skips} steps in a row were skipped: {cause} finite gradients")
        if settings.max_steps is not None and progress.step >= settings.max_steps:
            return Ending("completed", "max_steps")
        if settings.max_epochs is not None and self.state.feed.epoch >= settings.max_epochs:
            return Ending("completed", "max_epochs")
        if settings.max_time_s is not None and self.elapsed_s() >= settings.max_time_s:
            return Ending("completed", "max_time_s")
        if self._is_stale():
            return Ending("completed", f"early_stop: {settings.early_stop.metric} has not improved")
        return None

    def _is_stale(self) -> bool:
        patience = self._settings.early_stop.patience
        return patience is not None and self.progress.stale_evaluations >= patience

    def elapsed_s(self) -> float:
        """Seconds in this loop, evaluations and checkpoints included, over every attempt at the trial."""
        return time.monotonic() - self._started_at

    def _finish(self, ending: Ending) -> Ending:
        self.flush()
        diverged = self.ending()  # the last flush may have shown that the steps were skipped
        if ending.outcome == "completed" and diverged is not None and diverged.outcome == "diverged":
            ending = diverged
        if ending.outcome == "completed" and self.state.ledger.has_only_nonfinite_losses():
            ending = Ending("diverged", "no loss was finite: check the data, the model and the task")
        if ending.outcome == "completed" and self.progress.evaluated_at != self.progress.step:
            self._evaluate()
        if ending.outcome != "diverged":  # the last good checkpoint stays the newest
            self.save()
        if ending.outcome == "stopped":
            return Ending("stopped", "saved" if self._saved_at == self.progress.step else "not saved")
        return ending

    def flush(self) -> None:
        """Close the account up to here: records to their files, totals to the tallies."""
        records = self.state.ledger.flush()
        self.clock.close_window()
        self._alarms.read(records)
        share = self._stagnation.share()
        if share is not None and records and records[-1].applied:
            self._alarms.unchanged(self.progress.step, share)

    def _evaluation_is_due(self) -> bool:
        every = self._settings.eval_every
        return self.state.feed.is_at_epoch_start if every is None else self.progress.step % every == 0

    def _evaluate(self) -> None:
        self.flush()
        metrics = evaluate(self.state.setup, self.state.ema, self.state.feed.pinned)
        improved = self.progress.note(metrics, self._modes())
        self._watcher.on_evaluation(self.progress.step, metrics)
        self._watch_staleness(metrics)
        watched = self._watched()
        if watched is not None and watched[0] in improved and math.isfinite(metrics[watched[0]]):
            self.save()
            if self._saved_at == self.progress.step:
                self._checkpoints.mark_best(self.progress.step, watched[0], metrics[watched[0]])

    def _watched(self) -> tuple[str, Mode] | None:
        """The metric that decides what is best: the setting's, else the task's."""
        metric, mode = self._settings.early_stop.metric, self._settings.early_stop.mode
        monitor = self.state.setup.monitor()
        if metric is None or (monitor is not None and metric == monitor[0]):
            return monitor
        if (mode := mode or LOWER_IS_BETTER.get(metric)) is None:
            raise ValueError(
                f"train.early_stop.metric={metric}: whether more of it is better is unknown; "
                "add train.early_stop.mode=max or =min"
            )
        return metric, mode

    def _modes(self) -> dict[str, Mode]:
        watched = self._watched()
        return LOWER_IS_BETTER if watched is None else {**LOWER_IS_BETTER, watched[0]: watched[1]}

    def _watch_staleness(self, metrics: Mapping[str, float]) -> None:
        early_stop = self._settings.early_stop
        if early_stop.patience is None:
            return
        watched = self._watched()
        if watched is None or watched[0] not in metrics:
            raise ValueError(
                f"train.early_stop.metric={early_stop.metric}: the task measures {sorted(metrics)}; "
                "name one of these"
            )
        self.progress.note_watched(metrics[watched[0]], watched[1], early_stop.min_delta)

    def _checkpoint_is_due(self) -> bool:
        every = self._settings.checkpoint_every
        return (
            self.progress.evaluated_at == self.progress.step
            if every is None
            else self.progress.step % every == 0
        )

    def _is_healthy(self) -> bool:
        """Whether the last step was applied: what is kept must not be on its way to divergence."""
        self.flush()
        return self.state.ledger.consecutive_skips() == 0

    def save(self) -> None:
        """Write a checkpoint of this moment, unless it is already there; the records are flushed first."""
        self._owes_checkpoint = False
        if self._saved_at == self.progress.step or not self.state.feed.can_resume:
            return
        self.flush()
        self._watcher.before_checkpoint()
        self.progress.elapsed_s = self.elapsed_s()
        self._checkpoints.save(
            self.progress.step, {**self.state.state_dict(), "progress": self.progress.state_dict()}
        )
        self._saved_at = self.progress.step
        self._watcher.tell("save", step=self.progress.step)

    def load(self, saved: Mapping[str, Any], *, is_own: bool) -> None:
        """Go on from a checkpoint; from another trial's, what was best there does not count here."""
        self.state.load_state_dict(saved)
        self.progress.load_state_dict(saved["progress"])
        if is_own:
            self._saved_at = self.progress.step
        else:
            self.progress.forget_evaluations()
