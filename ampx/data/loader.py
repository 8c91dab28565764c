"""Batches from a data set that yields one sample at a time, through DataLoader's workers and pinned memory.

Each batch is made under its own seed, so what random transforms do depends on (seed, epoch, batch index),
not on how many workers there are or how far ahead they run.
"""

import random
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, final

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, default_collate

from ampx.data.order import BatchOrder


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
        with _seeded(seed):
            return default_collate([self._dataset[index] for index in indices])


@contextmanager
def _seeded(seed: int) -> Generator[None]:
    """Seeds the generators that a transform may draw from, and puts them back as they were."""
    torch_state, python_state, numpy_state = torch.get_rng_state(), random.getstate(), np.random.get_state()
    torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed the accelerators too
    random.seed(seed)
    np.random.seed(seed % 2**32)
    try:
        yield
    finally:
        torch.set_rng_state(torch_state)
        random.setstate(python_state)
        np.random.set_state(numpy_state)
