"""Effective batches: how epochs are cut, and that a position survives."""

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from ampx.training.feed import Feed

CPU = torch.device("cpu")


def feed(source: Any, **settings: Any) -> Feed:
    defaults: dict[str, Any] = {
        "grad_accumulation": 1, "limit_batches": None, "overfit_batches": None, "device": CPU, "seed": 0,
    }  # fmt: skip
    return Feed(source, **{**defaults, **settings})


def values(batches: list[Any]) -> list[float]:
    return [batch[0].flatten().tolist() if isinstance(batch, (list, tuple)) else batch for batch in batches]


def shuffled_loader(num_workers: int = 0) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.arange(10.0)), batch_size=2, shuffle=True, num_workers=num_workers)


def test_the_tail_of_an_epoch_is_an_effective_batch_of_what_is_left() -> None:
    """BUGS 7: carry the tail into the next epoch and the second batch mixes two epochs."""
    source = feed([1, 2, 3], grad_accumulation=2)
    assert source.steps_per_epoch == 2
    taken = [source.take() for _ in range(3)]
    assert taken == [[1, 2], [3], [1, 2]]
    assert source.epoch == 1


def test_limits_and_overfitting_shorten_an_epoch() -> None:
    assert [feed([1, 2, 3], limit_batches=2).take() for _ in range(1)] == [[1]]
    limited = feed([1, 2, 3], limit_batches=2)
    assert [limited.take()[0] for _ in range(4)] == [1, 2, 1, 2]
    pinned = feed(shuffled_loader(), overfit_batches=2)
    first = [values(pinned.take()) for _ in range(2)]
    assert [values(pinned.take()) for _ in range(2)] == first


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_users_data_loader_resumes_in_the_same_order(num_workers: int) -> None:
    """Draw the order outside the seeded block and the resumed epoch is shuffled anew."""
    whole = feed(shuffled_loader(num_workers))
    expected = [values(whole.take()) for _ in range(12)]
    first = feed(shuffled_loader(num_workers))
    assert [values(first.take()) for _ in range(7)] == expected[:7]
    second = feed(shuffled_loader(num_workers))
    torch.manual_seed(99)
    second.load_state_dict(first.state_dict())
    assert [values(second.take()) for _ in range(5)] == expected[7:]
    assert expected[:5] != expected[5:10], "epochs are shuffled differently"


def test_opening_an_epoch_leaves_the_global_generators_alone() -> None:
    torch.manual_seed(1)
    random.seed(1)
    before = torch.get_rng_state(), random.getstate()
    feed(shuffled_loader()).take()
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == random.getstate()


class Stream:
    """A source without a length that keeps its own position."""

    def __init__(self) -> None:
        self.position = 0

    def __iter__(self) -> Iterator[int]:
        while True:
            self.position += 1
            yield self.position

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


def test_a_stream_with_a_state_resumes_by_itself() -> None:
    first = feed(Stream(), grad_accumulation=2)
    assert [first.take(), first.take()] == [[1, 2], [3, 4]]
    second = feed(Stream(), grad_accumulation=2)
    second.load_state_dict(first.state_dict())
    assert second.take() == [5, 6]


def test_a_source_without_length_or_state_trains_but_is_not_resumed() -> None:
    class Endless:
        def __iter__(self) -> Iterator[int]:
            return iter(range(100))

    source = feed(Endless())
    assert source.take() == [0]
    with pytest.raises(ValueError, match="give it __len__"):
        source.load_state_dict({"epoch": 0, "taken": 1})


def test_data_that_yield_nothing_or_less_than_announced_are_told_of() -> None:
    with pytest.raises(ValueError, match="yields no batch"):
        feed(type("Empty", (), {"__iter__": lambda self: iter([])})()).take()

    class Liar:
        def __len__(self) -> int:
            return 3

        def __iter__(self) -> Iterator[int]:
            return iter([1])

    source = feed(Liar())
    source.take()
    with pytest.raises(ValueError, match="announced 3 batches, but epoch 0 ended after 1"):
        source.take()
