"""What a person reads: on a terminal and in a file, and that nothing in it is taken for markup."""

import io
from collections.abc import Callable

import pytest
from rich.console import Console

from ampx.config.experiment import ExperimentConfig
from ampx.track.console import ConsoleTracker, config_tree, describe, summary
from ampx.track.record import StepRecord


def record(step: int = 0, **changes: object) -> StepRecord:
    defaults: dict[str, object] = {
        "step": step, "optimizer": "main", "loss": 0.25, "lr": 0.1, "grad_norm": 1.0, "grad_amax": 1.0,
        "scale": 65536.0, "growth_tracker": 0, "found_inf": False, "applied": True, "skip_reason": None,
        "metrics": {"accuracy": 0.5},
    }  # fmt: skip
    return StepRecord(**{**defaults, **changes})  # type: ignore[arg-type]


RESULT = {
    "status": "completed",
    "reason": "max_epochs",
    "wall_s": 12.3,
    "metrics": {"accuracy": {"final": 0.98, "best": 0.99}},
    "steps": {"attempted": 5, "applied": 4, "skipped": {"inf_grad": 1}},
    "throughput": {"samples_per_s": 1000.0, "step_ms_median": 1.5},
}


def test_a_line_shows_loss_metrics_scale_and_skips() -> None:
    assert describe(record(), 2) == "loss 0.25  accuracy 0.5  scale 65536  skips 2"
    assert describe(record(loss=None, scale=None), 0) == "loss not finite  accuracy 0.5  scale off  skips 0"


def test_the_summary_names_outcome_metrics_and_skips() -> None:
    assert summary(RESULT) == [
        "completed (max_epochs) in 12.3 s  accuracy 0.98 (best 0.99)",
        "steps 5 attempted, 4 applied, skipped: 1 inf_grad  1000 samples/s  1.50 ms a step",
    ]


@pytest.mark.parametrize("is_terminal", [True, False])
def test_it_shows_progress_and_the_end_whether_or_not_it_is_a_terminal(is_terminal: bool) -> None:
    out = io.StringIO()
    tracker = ConsoleTracker(Console(file=out, force_terminal=is_terminal, width=120, highlight=False))
    tracker.start(total_steps=10, first_step=0)
    tracker.on_records([record(0), record(1, applied=False)])
    tracker.on_evaluation(2, {"accuracy": 0.75})
    tracker.note("a [red]path[/red] in brackets")
    tracker.on_end(RESULT)
    text = out.getvalue()
    assert "evaluation" in text
    assert "[red]path[/red]" in text
    assert "4 applied" in text
    assert ("skips 1" in text) or is_terminal


def test_the_config_tree_has_a_line_for_each_group(experiment: Callable[..., ExperimentConfig]) -> None:
    lines = config_tree(experiment("dtype=fp16"))
    rows = dict(line.split(maxsplit=1) for line in lines[1:])
    assert rows["dtype"].startswith("fp16  compute_dtype=float16")
    assert "distribution" in rows["none"]
    assert "growth_interval=2000" in rows["scaler"]
