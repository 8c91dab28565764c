"""Batches out of memory: one call makes a whole batch from its sample indices, with no per-sample Python."""

from collections.abc import Callable, Iterator
from typing import final

from torch import Tensor

from ampx.data.order import BatchOrder

Batch = Tensor | tuple[Tensor, ...]
Fetch = Callable[[Tensor], Batch]
Augment = Callable[[Batch, int], Batch]


def rows_of(*arrays: Tensor) -> Fetch:
    """Fetches the same rows of every array."""

    def fetch(indices: Tensor) -> tuple[Tensor, ...]:
        return tuple(array.index_select(0, indices) for array in arrays)

    return fetch


def unchanged(batch: Batch, seed: int) -> Batch:  # noqa: ARG001 (the signature is Augment's)
    """Leaves a batch as it is."""
    return batch


@final
class ArraySource:
    """A BatchSource: `fetch` makes a batch out of sample indices, `augment` gets it with its own seed."""

    def __init__(self, order: BatchOrder, fetch: Fetch, augment: Augment = unchanged) -> None:
        self._order = order
        self._fetch = fetch
        self._augment = augment

    def __len__(self) -> int:
        return len(self._order)

    def iterate(self, epoch: int, start: int) -> Iterator[Batch]:
        for seed, indices in self._order.batches(epoch, start):
            yield self._augment(self._fetch(indices), seed)
