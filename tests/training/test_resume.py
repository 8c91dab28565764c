"""A trial stopped at any step and started again ends exactly where an uninterrupted one does."""

import os
import random
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torchvision.utils import save_image

from ampx.track.record import StepRecord
from ampx.training.checkpoint import Checkpoints, load_checkpoint
from ampx.trial import Trial
from ampx.worker import run_trial

STEPS = 14
COMMON = (f"train.max_steps={STEPS}", "train.log_every=1", "train.limit_batches=5", "data.batch_size=16")


class StopAt:
    """An observer that sends the worker a SIGTERM after one step, as a cluster would."""

    at_step = -1

    def on_records(self, records: Sequence[StepRecord]) -> None:
        if any(record.step == StopAt.at_step for record in records):
            os.kill(os.getpid(), signal.SIGTERM)


def run_whole(trial: Trial) -> tuple[dict[str, Any], list[Any]]:
    """The last checkpoint and the step records of a trial that runs to its end."""
    assert run_trial(trial).state == "completed"
    return last_checkpoint(trial), trial.read_jsonl("steps.jsonl")


def run_interrupted(trial: Trial, at_step: int) -> tuple[dict[str, Any], list[Any]]:
    """The same, of a trial that is stopped behind `at_step` and started again."""
    StopAt.at_step = at_step
    assert run_trial(trial).state == "preempted"
    assert Checkpoints(trial.checkpoints).steps()[-1] == at_step + 1
    StopAt.at_step = -1
    assert run_trial(trial).state == "completed"
    return last_checkpoint(trial), trial.read_jsonl("steps.jsonl")


def last_checkpoint(trial: Trial) -> dict[str, Any]:
    checkpoints = Checkpoints(trial.checkpoints)
    return load_checkpoint(checkpoints.path(checkpoints.steps()[-1]))


def assert_identical(left: Any, right: Any, path: str = "checkpoint") -> None:
    """Every tensor bit for bit, every number exactly; wall times aside."""
    if isinstance(left, Tensor):
        assert left.dtype == right.dtype, path
        assert torch.equal(left, right), path
    elif isinstance(left, dict):
        assert left.keys() == right.keys(), path
        for key in left.keys() - {"elapsed_s"}:
            assert_identical(left[key], right[key], f"{path}.{key}")
    elif isinstance(left, (list, tuple)):
        assert len(left) == len(right), path
        for index, pair in enumerate(zip(left, right, strict=True)):
            assert_identical(*pair, f"{path}[{index}]")
    else:
        assert left == right or (left != left and right != right), path


@pytest.mark.parametrize(
    "overrides",
    [
        ["dtype=fp32", "model=mlp"],
        ["dtype=bf16", "train.ema_decay=0.9", "train.grad_accumulation=2"],
        ["dtype=fp16", "scaler=dynamic", "scaler.growth_interval=3", "scaler.init_scale=2**30"],
        ["dtype=fp16", "train.gate=device", "scaler.growth_interval=3", "model=mlp", "train.ema_decay=0.9"],
        ["dtype=fp16", "scaler=static", "model=mlp"],
        ["dtype=fp16", "scaler=hysteresis", "scaler.growth_interval=3", "scaler.init_scale=2**28",
         "model=mlp"],
        ["dtype=fp16", "scaler=tolerance", "scaler.init_scale=2**28", "model=mlp"],
        ["dtype=fp16", "scaler=logmax", "model=mlp"],
        ["dtype=bf16", "scaler=conservative", "scaler.enabled=true", "model=mlp"],
        ["dtype=bf16_pure", "optimizer.rounding=stochastic", "model=mlp"],
        ["dtype=bf16_pure", "optimizer.rounding=kahan", "model=mlp"],
        ["dtype=fp16_pure", "model=mlp", "train.gate=host"],
        ["dtype=fp16", "model=gpt", "model.dropout=0.1", "data=text", "task=language_modeling",
         "data.context=16", "model.width=32", "model.depth=1", "model.heads=2"],
        ["dtype=bf16", "optimizer=sgd", "schedule=linear", "model=mlp"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_stopped_trial_ends_bit_for_bit_like_an_uninterrupted_one(
    overrides: list[str], make_trial: Callable[..., Trial]
) -> None:
    """INVARIANTS 14, BUGS 18: drop any entry of TrainState.state_dict and this fails."""
    observer = f"tracker.observers=[{__name__}.StopAt]"
    whole = run_whole(make_trial(*COMMON, *overrides, observer, name="whole"))
    at_step = random.Random(" ".join(overrides)).randrange(1, STEPS - 2)
    assert_identical(
        whole, run_interrupted(make_trial(*COMMON, *overrides, observer, name="stopped"), at_step)
    )


@pytest.fixture(scope="module")
def image_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes of random pictures in the layout of torchvision's ImageFolder."""
    root = tmp_path_factory.mktemp("images")
    generator = torch.Generator().manual_seed(0)
    for split, count in (("train", 24), ("val", 8)):
        for label in ("cat", "dog"):
            folder = root / split / label
            folder.mkdir(parents=True)
            for index in range(count):
                save_image(torch.rand(3, 16, 16, generator=generator), folder / f"{index}.png")
    return root


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_position_in_a_data_loader_survives_with_any_number_of_workers(
    num_workers: int, image_folder: Path, make_trial: Callable[..., Trial]
) -> None:
    """Random crops and flips must continue too: seed workers by (epoch, position) only, and this holds."""
    overrides = [
        "dtype=bf16", "data=imagefolder", f"data.root={image_folder}", "data.image_size=16",
        f"data.num_workers={num_workers}", f"tracker.observers=[{__name__}.StopAt]",
    ]  # fmt: skip
    whole = run_whole(make_trial(*COMMON, *overrides, "data.batch_size=8", name="whole"))
    stopped = run_interrupted(make_trial(*COMMON, *overrides, "data.batch_size=8", name="stopped"), at_step=6)
    assert_identical(whole, stopped)
