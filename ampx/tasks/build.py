"""From the `task` settings to a task."""

from typing import Any, cast

from ampx.build import build, field_arguments
from ampx.config.fields import TargetSettings
from ampx.config.task import TaskSettings
from ampx.tasks.task import Task


def build_task(settings: TaskSettings) -> Task:
    """The task, checked to have what training calls."""
    if not isinstance(settings, TargetSettings):
        return cast(Task, build(settings.implementation, field_arguments(settings)))
    task = build(settings.target, settings.arguments, setting="task")
    _check(task, f"task._target_={settings.target}")
    return cast(Task, task)


def _check(task: object, typed: str) -> None:
    methods = ("phases", "optimizers", "evaluate")
    missing = [name for name in methods if not callable(getattr(task, name, None))]
    if missing:
        raise ValueError(
            f"{typed}: has no method {', '.join(missing)}; a task has phases(model, batch), "
            "optimizers(model) and evaluate(model, batches), as ampx.tasks.task.Task says"
        )
    monitor: Any = getattr(task, "monitor", None)
    if monitor is not None and not (isinstance(monitor, tuple) and monitor[1:] in (("max",), ("min",))):
        raise ValueError(f"{typed}: monitor={monitor!r} must be a pair such as ('accuracy', 'max')")
