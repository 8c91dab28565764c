"""How random data draw their numbers: a seed from what they are, and generators that come back unmoved."""

import hashlib
import random
from collections.abc import Generator
from contextlib import contextmanager

import numpy as np
import torch


def mixed_seed(*numbers: int) -> int:
    """One seed from several numbers, such as (seed, epoch, batch index)."""
    # Unlike a sum, the hash tells (0, 1) from (1, 0); torch takes seeds below 2**63.
    digest = hashlib.blake2b(repr(numbers).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


@contextmanager
def seeded(seed: int) -> Generator[None]:
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
