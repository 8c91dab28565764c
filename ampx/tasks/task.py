"""What a task is: the phases of a step, who optimizes which parameters, and what evaluation measures."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Phase:
    """One forward pass, its loss with metrics as 0-d tensors, and the optimizer that steps on it.

    The loop runs both under autocast; a phase itself neither casts nor opens it.
    """

    optimizer: str
    forward: Callable[[], Any]
    loss: Callable[[Any], tuple[Tensor, dict[str, Tensor]]]


class Task(Protocol):
    """What trains a model on batches.

    It may have `monitor: tuple[str, Literal["max", "min"]]`, the metric that decides which step was best.
    """

    def phases(self, model: nn.Module, batch: Any) -> Iterator[Phase]:
        """A generator, resumed after the step of the phase before (a GAN has two, most tasks one)."""
        ...

    def optimizers(self, model: nn.Module) -> dict[str, Iterable[nn.Parameter]]:
        """The parameters of each optimizer; most tasks have one, `main`."""
        ...

    def evaluate(self, model: nn.Module, batches: Iterable[Any]) -> dict[str, float]:
        """Metrics over `batches`; the caller has set evaluation mode, inference mode and autocast."""
        ...
