"""A user's own observers: a mirror may die, the trial may not."""

import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ampx.build import build
from ampx.config.tracker import ObserverSettings
from ampx.track.record import Observer, StepRecord


class Shielded:
    """Passes on to an observer until it raises; then tells why, once, and goes silent."""

    def __init__(self, observer: Observer, tell: Callable[..., None]) -> None:
        """`tell(kind, **details)` writes an event."""
        self._observer: Observer | None = observer
        self._name = type(observer).__qualname__
        self._tell = tell

    def on_records(self, records: Sequence[StepRecord]) -> None:
        """Step records since the last flush."""
        self._call("on_records", records)

    def on_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        """One evaluation, for observers that take them."""
        self._call("on_evaluation", step, metrics)

    def on_end(self, result: Mapping[str, Any]) -> None:
        """The result, for observers that take it."""
        self._call("on_end", result)

    def _call(self, method: str, *arguments: Any) -> None:
        try:
            if (take := getattr(self._observer, method, None)) is not None:
                take(*arguments)
        except Exception:
            self._observer = None
            self._tell("observer_failed", observer=self._name, method=method, error=traceback.format_exc())


def build_observers(settings: Iterable[ObserverSettings], tell: Callable[..., None]) -> list[Shielded]:
    """The observers of the tracker list, each built from its class path."""
    return [Shielded(_build(each), tell) for each in settings]


def _build(settings: ObserverSettings) -> Observer:
    observer: Any = build(settings.target, settings.arguments, setting="tracker.observers")
    if not callable(getattr(observer, "on_records", None)):
        raise ValueError(
            f"tracker.observers={settings.target}: has no method on_records(records); "
            "give the class one that takes a list of StepRecord"
        )
    return observer
