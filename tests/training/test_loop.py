"""What is due between two attempts: flushes, evaluations, checkpoints, stops, and in which order."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ampx.spec import DataSpec
from ampx.tasks.task import Phase
from ampx.training.checkpoint import Checkpoints, load_checkpoint
from ampx.training.loop import Ending, Loop

CUSTOM = (
    "data=custom", f"data._target_={__name__}.data", "task=custom", f"task._target_={__name__}.Scripted",
    "model=custom", f"model._target_={__name__}.Scalar", "schedule=none", "dtype=fp32", "train.log_every=100",
)  # fmt: skip


def data() -> Any:
    """Four batches an epoch."""
    return [torch.ones(2)] * 4, [torch.ones(2)], DataSpec((1,))


class Scalar(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


class Scripted:
    """Metrics and bad attempts by script: `values` are the scores, in `bad` the loss is NaN."""

    monitor = ("score", "max")

    def __init__(self, values: tuple[float, ...] = (), bad: tuple[int, ...] = ()) -> None:
        self.values, self.bad, self.attempts = list(values), bad, 0

    def phases(self, model: nn.Module, batch: Any) -> Iterator[Phase]:
        factor = torch.nan if self.attempts in self.bad else 1.0
        self.attempts += 1
        yield Phase("main", lambda: model(batch), lambda out: (out.mean() * factor, {}))

    def optimizers(self, model: nn.Module) -> dict[str, Any]:
        return {"main": model.parameters()}

    def evaluate(self, model: nn.Module, batches: Any) -> dict[str, float]:
        score = self.values.pop(0) if self.values else 0.0
        return {"score": score, "loss": -score, "other": 1.0}


@dataclass
class Diary:
    """A watcher that writes everything down, and asks to stop after so many evaluations."""

    stop_after: int | None = None
    entries: list[str] = field(default_factory=list)
    evaluations: list[int] = field(default_factory=list)
    events: list[str] = field(default_factory=list)

    def is_stop_requested(self) -> bool:
        return self.stop_after is not None and len(self.evaluations) >= self.stop_after

    def tell(self, kind: str, **details: object) -> None:
        self.events.append(kind)

    def on_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        self.entries.append(f"evaluation {step}")
        self.evaluations.append(step)

    def on_first_step(self) -> None:
        self.entries.append("first step")

    def before_checkpoint(self) -> None:
        self.entries.append("checkpoint")

    def on_records(self, records: Any) -> None:
        self.entries.append(f"records to {records[-1].step}")


@pytest.fixture
def build_loop(assemble_run: Callable[..., Any], tmp_path: Path) -> Callable[..., tuple[Loop, Diary]]:
    """`build_loop("train.max_epochs=2", stop_after=1)`: a loop as the job builds it, and its diary."""

    def build(*overrides: str, stop_after: int | None = None) -> tuple[Loop, Diary]:
        state, diary = assemble_run(*CUSTOM, *overrides).state, Diary(stop_after)
        state.ledger.observers.append(diary)
        config = state.setup.config
        abort = config.scaler.abort_after_skips
        return Loop(
            state, config.train, Checkpoints(tmp_path), diary, abort_after_skips=abort, min_scale=1.0
        ), diary  # fmt: skip

    return build


Build = Callable[..., tuple[Loop, Diary]]


def test_an_epoch_ends_with_its_records_then_its_evaluation_then_its_checkpoint(build_loop: Build) -> None:
    """Red when the checkpoint comes before the records are on disk: a resume would count them twice."""
    loop, diary = build_loop("train.max_epochs=2")
    assert loop.run() == Ending("completed", "max_epochs")
    assert diary.entries == [
        "first step", "records to 3", "evaluation 4", "checkpoint",
        "records to 7", "evaluation 8", "checkpoint",
    ]  # fmt: skip
    assert (loop.progress.step, loop.progress.samples) == (8, 16)


def test_no_step_is_flushed_that_owes_nothing(build_loop: Build, tmp_path: Path) -> None:
    """Red when a checkpoint that is already there stays owed: it is written once more after the next step."""
    loop, diary = build_loop("train.max_epochs=3", "+task.values=[0.1,0.2,0.3]")
    loop.run()
    assert [entry for entry in diary.entries if entry.startswith("records")] == [
        "records to 3", "records to 7", "records to 11",
    ]  # fmt: skip
    assert Checkpoints(tmp_path).steps() == [8, 12]


def test_steps_between_evaluations_and_checkpoints_are_counted_in_attempts(
    build_loop: Build, tmp_path: Path
) -> None:
    loop, diary = build_loop("train.max_steps=7", "train.eval_every=3", "train.checkpoint_every=2")
    loop.run()
    assert diary.evaluations == [3, 6, 7], "and once more at the end"
    assert Checkpoints(tmp_path).steps() == [6, 7]


def test_the_first_limit_that_is_reached_ends_the_run(build_loop: Build) -> None:
    loop, _ = build_loop("train.max_steps=6", "train.max_epochs=1")
    assert loop.run() == Ending("completed", "max_epochs")
    assert loop.state.planned_steps == loop.progress.step == 4


def test_a_stop_saves_and_evaluates_no_more(build_loop: Build, tmp_path: Path) -> None:
    loop, diary = build_loop("train.max_epochs=9", "train.checkpoint_every=1000", stop_after=1)
    assert loop.run() == Ending("stopped", "saved")
    assert diary.evaluations == [4]
    assert Checkpoints(tmp_path).steps()[-1] == 4


def test_a_checkpoint_that_falls_on_a_skip_is_made_up_for(build_loop: Build, tmp_path: Path) -> None:
    """Red when it is written all the same, or left out for good."""
    loop, _ = build_loop("train.max_steps=6", "train.checkpoint_every=2", "+task.bad=[1,2]",
                         "train.max_epochs=null", "train.eval_every=100")  # fmt: skip
    for _ in range(3):
        loop.step()
    assert Checkpoints(tmp_path).steps() == []
    loop.step()
    assert Checkpoints(tmp_path).steps() == [4]


def test_divergence_is_seen_at_the_flush_and_saves_nothing_more(build_loop: Build, tmp_path: Path) -> None:
    """INVARIANTS 12, BUGS 3. Red when the end is decided before the last flush has been read."""
    loop, diary = build_loop("train.max_steps=12", "train.max_epochs=null", "+task.bad=[5,6,7,8,9,10,11]",
                             "scaler.abort_after_skips=6", "train.eval_every=100")  # fmt: skip
    ending = loop.run()
    assert ending.outcome == "diverged"
    assert "7 steps in a row were skipped" in str(ending.reason)
    assert Checkpoints(tmp_path).steps() == []
    assert diary.evaluations == []


def test_the_best_checkpoint_is_of_the_best_evaluation_by_the_tasks_own_metric(
    build_loop: Build, tmp_path: Path
) -> None:
    loop, _ = build_loop("train.max_epochs=4", "+task.values=[0.1,0.9,0.4,0.5]")
    loop.run()
    assert load_checkpoint(tmp_path / "best.pt")["progress"]["step"] == 8
    assert loop.progress.metrics["score"] == {"final": 0.5, "best": 0.9}
    assert loop.progress.metrics["loss"] == {"final": -0.5, "best": -0.9}


@pytest.mark.parametrize(
    ("overrides", "step"),
    [
        ([], 16),
        (["train.early_stop.metric=score"], 16),
        (["train.early_stop.metric=loss"], 16),
        (["train.early_stop.metric=loss", "train.early_stop.mode=max"], 12),
        (["train.early_stop.min_delta=0.5"], 12),
    ],
    ids=str,
)
def test_patience_ends_a_run_that_does_not_improve(
    overrides: list[str], step: int, build_loop: Build
) -> None:
    """The scores are 0.1, 0.2, 0.15, 0.1 …: two evaluations in a row without a better one end the run."""
    loop, _ = build_loop("train.max_epochs=9", "train.early_stop.patience=2",
                         "+task.values=[0.1,0.2,0.15,0.1,0.1,0.1]", *overrides)  # fmt: skip
    ending = loop.run()
    assert ending.outcome == "completed"
    assert str(ending.reason).startswith("early_stop")
    assert loop.progress.step == step


def test_a_metric_without_a_known_direction_and_one_that_is_not_measured_are_told(build_loop: Build) -> None:
    loop, _ = build_loop("train.max_epochs=1", "train.early_stop.patience=1", "train.early_stop.metric=other")
    with pytest.raises(ValueError, match=r"add train\.early_stop\.mode=max or =min"):
        loop.run()
    loop, _ = build_loop("train.max_epochs=1", "train.early_stop.patience=1", "train.early_stop.metric=f1",
                         "train.early_stop.mode=max")  # fmt: skip
    with pytest.raises(ValueError, match=r"f1: the task measures \['loss', 'other', 'score'\]; name one"):
        loop.run()


def test_a_loop_loaded_from_a_checkpoint_goes_on_where_it_was(build_loop: Build, tmp_path: Path) -> None:
    loop, _ = build_loop("train.max_epochs=2")
    loop.run()
    again, diary = build_loop("train.max_epochs=3")
    again.load(load_checkpoint(Checkpoints(tmp_path).path(8)), is_own=True)
    assert again.run() == Ending("completed", "max_epochs")
    assert diary.evaluations == [12]
    assert again.progress.samples == 24


def test_a_fork_judges_afresh_what_is_best(build_loop: Build, tmp_path: Path) -> None:
    """Red when the original's best score is the fork's bar: its best.pt would never be written."""
    loop, _ = build_loop("train.max_epochs=1", "+task.values=[0.9]")
    loop.run()
    fork, diary = build_loop("train.max_epochs=2", "+task.values=[0.2]")
    fork.load(load_checkpoint(Checkpoints(tmp_path).path(4)), is_own=False)
    fork.run()
    assert diary.evaluations == [8]
    assert fork.progress.metrics["score"] == {"final": 0.2, "best": 0.2}


def test_time_spent_before_a_resume_counts_towards_the_limit(build_loop: Build, tmp_path: Path) -> None:
    """Red when the clock starts anew: a requeued trial would never reach its limit."""
    loop, _ = build_loop("train.max_epochs=1")
    loop.run()
    saved = load_checkpoint(Checkpoints(tmp_path).path(4))
    saved["progress"]["elapsed_s"] = 1000.0
    again, _ = build_loop("train.max_epochs=9", "train.max_time_s=999")
    again.load(saved, is_own=True)
    assert again.run() == Ending("completed", "max_time_s")
    assert again.progress.step == 4
