"""A model, a data set, a task and an observer of one's own: all that ampx asks for."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ampx.data.splits import Splits
from ampx.spec import DataSpec
from ampx.tasks.task import Phase
from ampx.track.record import StepRecord


class Net(nn.Module):
    """Gets the arguments that were typed beside `_target_`, and nothing else."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.LayerNorm(width), nn.GELU())
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def data(batch_size: int = 64) -> Splits:
    """Any iterables of batches with a length; here lists of tensors."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(512, 1, 8, 8, generator=generator)
    y = (x.flatten(1)[:, :10]).argmax(1)
    batches = list(zip(x.split(batch_size), y.split(batch_size), strict=True))
    return Splits(batches[1:], batches[:1], DataSpec((1, 8, 8), num_classes=10))


class Task:
    """What one batch means: how to get the loss, who owns which parameter, what to measure."""

    monitor = ("accuracy", "max")

    def phases(self, model: nn.Module, batch: Any) -> Iterator[Phase]:
        x, y = batch
        yield Phase("main", lambda: model(x), lambda logits: (F.cross_entropy(logits, y), {}))

    def optimizers(self, model: nn.Module) -> dict[str, Iterable[nn.Parameter]]:
        return {"main": model.parameters()}

    def evaluate(self, model: nn.Module, batches: Iterable[Any]) -> dict[str, float]:
        hits, count = 0, 0
        for x, y in batches:
            hits += int((model(x).argmax(1) == y).sum())
            count += len(y)
        return {"accuracy": hits / count}


class Observer:
    """An observer of step records: prints each skipped step."""

    def on_records(self, records: Sequence[StepRecord]) -> None:
        for record in records:
            if not record.applied:
                print(f"step {record.step} skipped at scale {record.scale}: {record.skip_reason}")
