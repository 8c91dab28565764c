"""Tests of ampx.data.order."""

from itertools import chain

import pytest
import torch

from ampx.config.data import BatchSettings
from ampx.data.order import BatchOrder, training_order, validation_order


def indices(order: BatchOrder, epoch: int, start: int = 0) -> list[list[int]]:
    return [chunk.tolist() for _, chunk in order.batches(epoch, start)]


def test_an_epoch_takes_every_sample_once_in_an_order_of_its_own() -> None:
    order = BatchOrder(num_samples=10, batch_size=4, shuffle=True, seed=3)
    first, second = indices(order, 0), indices(order, 1)
    assert sorted(chain(*first)) == sorted(chain(*second)) == list(range(10))
    assert first != second
    assert [len(batch) for batch in first] == [4, 4, 2]
    assert len(order) == 3


def test_the_order_follows_from_seed_and_epoch_alone() -> None:
    """Breaking it: a permutation from the global generator instead of (seed, epoch)."""
    order = BatchOrder(num_samples=100, batch_size=10, shuffle=True, seed=3)
    state = torch.get_rng_state()
    first = indices(order, 1)
    assert torch.equal(state, torch.get_rng_state())
    torch.rand(5)
    assert first == indices(order, 1)
    assert first != indices(BatchOrder(num_samples=100, batch_size=10, shuffle=True, seed=4), 1)


def test_starting_later_gives_the_same_batches_and_seeds() -> None:
    order = BatchOrder(num_samples=100, batch_size=10, shuffle=True, seed=3)
    whole, rest = list(order.batches(2, 0))[7:], list(order.batches(2, 7))
    assert [(seed, chunk.tolist()) for seed, chunk in whole] == [
        (seed, chunk.tolist()) for seed, chunk in rest
    ]
    assert list(order.batches(2, 10)) == []


def test_drop_last_leaves_out_the_short_batch() -> None:
    order = BatchOrder(num_samples=10, batch_size=4, drop_last=True)
    assert len(order) == 2
    assert indices(order, 0) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_the_seeds_of_batches_do_not_repeat() -> None:
    """Breaking it: seed + epoch + batch, under which epoch 1's batch 0 is epoch 0's batch 1."""
    seeds = {
        batch_seed
        for seed in (0, 1)
        for epoch in range(20)
        for batch_seed, _ in BatchOrder(num_samples=20, batch_size=1, seed=seed).batches(epoch, 0)
    }
    assert len(seeds) == 2 * 20 * 20
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_a_batch_larger_than_the_training_set_is_refused() -> None:
    settings = BatchSettings(batch_size=64, shuffle=True, drop_last=False)
    with pytest.raises(
        ValueError, match=r"data\.batch_size=64: .* 10 samples; set data\.batch_size=10 or less"
    ):
        training_order(settings, 10, seed=0)


def test_an_empty_set_is_refused() -> None:
    settings = BatchSettings(batch_size=1, shuffle=True, drop_last=False)
    with pytest.raises(ValueError, match="the training set is empty; point the data settings at samples"):
        training_order(settings, 0, seed=0)
    with pytest.raises(ValueError, match="the validation set is empty; point the data settings at samples"):
        validation_order(settings, 0)


def test_validation_takes_every_sample_in_its_place_even_if_they_are_fewer_than_a_batch() -> None:
    settings = BatchSettings(batch_size=4, shuffle=True, drop_last=True)
    assert indices(validation_order(settings, 3), 0) == [[0, 1, 2]]
    assert list(chain(*indices(validation_order(settings, 9), 5))) == list(range(9))
