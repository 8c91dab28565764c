"""What every data set gives: a training and a validation source of batches, and the sizes of its samples."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from ampx.spec import DataSpec


@runtime_checkable
class BatchSource(Protocol):
    """Batches that depend on (seed, epoch, batch index) alone, so that a resumed run sees the same."""

    def __len__(self) -> int:
        """Batches in an epoch."""
        ...

    def iterate(self, epoch: int, start: int) -> Iterator[Any]:
        """The batches of `epoch` from index `start` on; what a batch is, the task and the data agree on."""
        ...


@dataclass(frozen=True, slots=True)
class Splits:
    """Training and validation batches: each a BatchSource, or a user's own iterable of batches."""

    train: BatchSource | Iterable[Any]
    val: BatchSource | Iterable[Any]
    spec: DataSpec
