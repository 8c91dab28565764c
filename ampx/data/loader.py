"""Batches from a data set that yields one sample at a time, through DataLoader's workers and pinned memory.

Each batch is made under its own seed, so what random transforms do depends on (seed, epoch, batch index),
not on how many workers there are or how far ahead they run.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, final

import torch
from torch.utils.data import DataLoader, Dataset, default_collate

from ampx.data.order import BatchOrder
from ampx.data.seeding import seeded


class SampleSet(Protocol):
    """A data set that is read sample by sample, as torchvision's are."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


@final
class LoaderSource:
    """A BatchSource that reads `dataset` sample by sample and collates."""

    def __init__(
        self, dataset: SampleSet, order: BatchOrder, *, num_workers: int = 0, pin_memory: bool = False
    ) -> None:
        self._dataset = dataset
        self._order = order
        self._num_workers = num_workers
        self._pin_memory = pin_memory and torch.accelerator.is_available()

    def __len__(self) -> int:
        return len(self._order)

    def iterate(self, epoch: int, start: int) -> Iterator[Any]:
        batches = [(seed, indices.tolist()) for seed, indices in self._order.batches(epoch, start)]
        loader: DataLoader[Any] = DataLoader(
            _SeededBatches(self._dataset, batches),
            batch_size=None,
            num_workers=self._num_workers,
            pin_memory=self._pin_memory,
            generator=torch.Generator(),  # else DataLoader draws from the main process's RNG
        )
        yield from loader


class _SeededBatches(Dataset[Any]):
    """Item `i` is the whole of batch `i`, made in whichever process asks for it."""

    def __init__(self, dataset: SampleSet, batches: Sequence[tuple[int, list[int]]]) -> None:
        self._dataset = dataset
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, position: int) -> Any:
        seed, indices = self._batches[position]
        with seeded(seed):
            return default_collate([self._dataset[index] for index in indices])
