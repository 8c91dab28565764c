"""How far a trial has come, in plain numbers that a checkpoint holds."""

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Mode = Literal["max", "min"]


@dataclass(slots=True)
class Progress:
    """Counts are attempted steps; `metrics` maps a name to its final and its best value."""

    step: int = 0
    samples: int = 0
    elapsed_s: float = 0.0
    evaluated_at: int | None = None
    stale_evaluations: int = 0
    watched_best: float | None = None
    metrics: dict[str, dict[str, float]] = field(default_factory=dict[str, dict[str, float]])

    def note(self, metrics: dict[str, float], modes: dict[str, Mode]) -> set[str]:
        """Take one evaluation made now; the names whose best value it is."""
        self.evaluated_at = self.step
        improved = {
            name for name, value in metrics.items() if self._is_better(name, value, modes.get(name, "max"))
        }
        for name, value in metrics.items():
            best = value if name in improved else self.metrics[name]["best"]
            self.metrics[name] = {"final": value, "best": best}
        return improved

    def _is_better(self, name: str, value: float, mode: Mode) -> bool:
        if name not in self.metrics:
            return True
        best = self.metrics[name]["best"]
        return best != best or (value > best if mode == "max" else value < best)  # anything beats NaN

    def note_watched(self, value: float, mode: Mode, min_delta: float) -> None:
        """Take the metric that early stopping watches."""
        best = self.watched_best
        if best is None or best != best or (value - best if mode == "max" else best - value) > min_delta:
            self.watched_best, self.stale_evaluations = value, 0
        else:
            self.stale_evaluations += 1

    def forget_evaluations(self) -> None:
        """Judge from here on as if nothing had been evaluated yet."""
        self.metrics, self.watched_best, self.stale_evaluations, self.evaluated_at = {}, None, 0, None

    def state_dict(self) -> dict[str, Any]:
        """Every field as plain Python."""
        return asdict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take every field back."""
        for name, value in state.items():
            setattr(self, name, value)
