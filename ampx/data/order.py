"""Which samples make which batch: a function of (seed, epoch, batch index) and of nothing else."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ampx.config.data import BatchSettings
from ampx.data.seeding import mixed_seed


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOrder:
    """How an epoch's samples fall into batches."""

    num_samples: int
    batch_size: int
    shuffle: bool = False
    drop_last: bool = False
    seed: int = 0

    def __len__(self) -> int:
        batches = self.num_samples / self.batch_size
        return math.floor(batches) if self.drop_last else math.ceil(batches)

    def batches(self, epoch: int, start: int) -> Iterator[tuple[int, Tensor]]:
        """Of each batch of `epoch` from `start` on: a seed for what is random in it, and its samples."""
        chunk = self._shuffled(epoch) if self.shuffle else torch.arange
        for batch in range(start, len(self)):
            begin = batch * self.batch_size
            end = min(begin + self.batch_size, self.num_samples)
            yield mixed_seed(self.seed, epoch, batch), chunk(begin, end)

    def _shuffled(self, epoch: int) -> Callable[[int, int], Tensor]:
        generator = torch.Generator().manual_seed(mixed_seed(self.seed, epoch))
        permutation = torch.randperm(self.num_samples, generator=generator)
        return lambda begin, end: permutation[begin:end]


def training_order(settings: BatchSettings, num_samples: int, seed: int) -> BatchOrder:
    """The order that `settings` ask for; a batch must fit into the set."""
    if num_samples == 0:
        raise ValueError("data: the training set is empty; point the data settings at samples")
    if settings.batch_size > num_samples:
        raise ValueError(
            f"data.batch_size={settings.batch_size}: a batch must fit into the training set, "
            f"which has {num_samples} samples; set data.batch_size={num_samples} or less"
        )
    return BatchOrder(
        num_samples=num_samples,
        batch_size=settings.batch_size,
        shuffle=settings.shuffle,
        drop_last=settings.drop_last,
        seed=seed,
    )


def validation_order(settings: BatchSettings, num_samples: int) -> BatchOrder:
    """Every sample once, in its place."""
    if num_samples == 0:
        raise ValueError("data: the validation set is empty; point the data settings at samples")
    return BatchOrder(num_samples=num_samples, batch_size=settings.batch_size)
