"""Named ranges of a step: `data forward loss backward unscale step update`.

Off they cost a shared null context. On they are torch.profiler ranges and, on a GPU, NVTX ranges that
Nsight Systems shows.
"""

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

Spans = Callable[[str], AbstractContextManager[None]]

_NOTHING = nullcontext()


def no_spans(name: str) -> AbstractContextManager[None]:
    """The range that is not recorded."""
    del name
    return _NOTHING


@contextmanager
def recorded_span(name: str) -> Generator[None]:
    """A range in the profiler's trace, and in Nsight's where there is a GPU."""
    with torch.profiler.record_function(name), _nvtx(name):
        yield


def _nvtx(name: str) -> AbstractContextManager[None]:
    return torch.cuda.nvtx.range(name) if torch.cuda.is_available() else _NOTHING
