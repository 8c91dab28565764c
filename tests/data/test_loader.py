"""Tests of ampx.data.loader: batches may depend on nothing but (seed, epoch, batch index)."""

import random
from typing import final

import numpy as np
import pytest
import torch
from torch import Tensor

from ampx.data.loader import LoaderSource
from ampx.data.order import BatchOrder


@final
class Noisy:
    """Samples that draw from every generator a transform may use."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.tensor([torch.rand(()).item(), random.random(), np.random.rand(), index]), index


def source(num_workers: int = 0, seed: int = 1) -> LoaderSource:
    order = BatchOrder(num_samples=10, batch_size=3, shuffle=True, seed=seed)
    return LoaderSource(Noisy(), order, num_workers=num_workers)


def batches(of: LoaderSource, epoch: int, start: int = 0) -> list[Tensor]:
    return [samples for samples, _ in of.iterate(epoch, start)]


def equal(first: list[Tensor], second: list[Tensor]) -> bool:
    return len(first) == len(second) and all(map(torch.equal, first, second))


def test_workers_do_not_change_what_random_transforms_draw() -> None:
    """Breaking it: leaving out the seeding of each batch, of any one of the three generators."""
    assert equal(batches(source(0), 4), batches(source(2), 4))


def test_a_later_start_gives_the_remaining_batches() -> None:
    """Breaking it: seeding by the position in this iteration instead of the batch's number."""
    for num_workers in (0, 2):
        assert equal(batches(source(), 4)[2:], batches(source(num_workers), 4, start=2))


def test_epochs_and_seeds_draw_differently() -> None:
    first = batches(source(), 0)
    assert not equal(first, batches(source(), 1))
    assert not equal(first, batches(source(seed=2), 0))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_the_generators_of_the_main_process_stay_as_they_were(num_workers: int) -> None:
    """Breaking it: a DataLoader without a generator of its own draws its base seed from torch's."""
    torch.manual_seed(0), random.seed(0), np.random.seed(0)
    expected = torch.rand(()).item(), random.random(), np.random.rand()
    torch.manual_seed(0), random.seed(0), np.random.seed(0)
    for _ in source(num_workers).iterate(0, 0):
        pass
    assert (torch.rand(()).item(), random.random(), np.random.rand()) == expected


def test_labels_come_out_as_int64_and_the_last_batch_is_short() -> None:
    labels = [labels for _, labels in source().iterate(0, 0)]
    assert [len(batch) for batch in labels] == [3, 3, 3, 1]
    assert {batch.dtype for batch in labels} == {torch.int64}
    assert sorted(torch.cat(labels).tolist()) == list(range(10))
    assert len(source()) == 4
