"""What the tests of numbers and their speed share."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def one_thread() -> Iterator[None]:
    """So that `time.thread_time` counts all the work, whatever else the machine does meanwhile."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
