"""Tests of ampx.tasks.build: every option of the group, and a user's own task."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from pydantic import TypeAdapter
from torch import nn

from ampx.config.task import TaskSettings
from ampx.tasks.build import build_task

CONF = Path(__file__).parents[2] / "conf" / "task"


class Complete:
    def phases(self, model: Any, batch: Any) -> Any: ...
    def optimizers(self, model: Any) -> Any: ...
    def evaluate(self, model: Any, batches: Any) -> Any: ...


class Incomplete:
    def phases(self, model: Any, batch: Any) -> Any: ...


class BadMonitor(Complete):
    monitor = "accuracy"


def settings(option: str, **changes: Any) -> TaskSettings:
    config = OmegaConf.merge(OmegaConf.load(CONF / f"{option}.yaml"), changes)
    return TypeAdapter(TaskSettings).validate_python(OmegaConf.to_container(config))


@pytest.fixture(autouse=True)
def my_pkg(monkeypatch: pytest.MonkeyPatch) -> None:
    """This very file, importable as a user's module would be."""
    monkeypatch.setitem(sys.modules, "my_pkg", sys.modules[__name__])


def test_every_option_builds_a_task_that_optimizes_all_parameters() -> None:
    for file in sorted(CONF.glob("*.yaml")):
        if file.stem == "custom":
            continue
        task = build_task(settings(file.stem))
        model = nn.Linear(3, 2)
        assert list(task.optimizers(model)["main"]) == list(model.parameters())


def test_the_metric_that_decides_what_is_best_is_one_that_evaluation_reports() -> None:
    tokens = torch.zeros(2, 3, dtype=torch.int64)
    cases = {
        "classification": (nn.Identity(), (torch.eye(3), torch.arange(3))),
        "language_modeling": (nn.Embedding(4, 4), tokens),
    }
    for option, (model, batch) in cases.items():
        task = build_task(settings(option))
        metric, mode = task.monitor  # type: ignore[attr-defined]
        assert metric in task.evaluate(model, [batch])
        assert mode in ("max", "min")


def test_a_user_task_needs_three_methods() -> None:
    assert isinstance(build_task(settings("custom", _target_="my_pkg.Complete")), Complete)
    with pytest.raises(
        ValueError, match=r"task\._target_=my_pkg\.Incomplete: has no method optimizers, evaluate; a"
    ):
        build_task(settings("custom", _target_="my_pkg.Incomplete"))


def test_a_user_task_may_only_monitor_a_pair_of_metric_and_direction() -> None:
    with pytest.raises(ValueError, match=r"my_pkg\.BadMonitor: monitor='accuracy' must be a pair such as"):
        build_task(settings("custom", _target_="my_pkg.BadMonitor"))
