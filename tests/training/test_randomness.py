"""Seeds and states of every generator, together."""

import io
import random

import numpy as np
import torch

from ampx.training.randomness import make_deterministic, random_state, restore_random_state, seed_everything


def draw() -> tuple[float, list[float], float, float, list[float]]:
    return (
        random.random(), np.random.rand(2).tolist(), np.random.randn(), random.gauss(0, 1),
        torch.rand(3).tolist(),
    )  # fmt: skip


def test_a_seed_fixes_every_generator() -> None:
    draws = []
    for seed in (1, 1, 2):
        seed_everything(seed)
        draws.append(draw())
    assert draws[0] == draws[1]
    assert all(first != second for first, second in zip(draws[0], draws[2], strict=True))


def test_the_largest_seed_is_taken() -> None:
    seed_everything(2**32 - 1)


def test_a_state_goes_through_a_checkpoint_and_brings_back_the_same_numbers() -> None:
    """BUGS 18. Red when NumPy's or Python's second normal number, which waits in the state, is dropped."""
    seed_everything(3)
    random.gauss(0, 1)
    np.random.randn()
    file = io.BytesIO()
    torch.save(random_state(), file)
    expected = [draw() for _ in range(3)]
    seed_everything(4)
    file.seek(0)
    restore_random_state(torch.load(file, weights_only=True))
    assert [draw() for _ in range(3)] == expected


def test_deterministic_algorithms_are_asked_for() -> None:
    try:
        make_deterministic()
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.backends.cudnn.benchmark
    finally:
        torch.use_deterministic_algorithms(False)
