"""`debug.anomaly`: torch's anomaly mode, which names the forward operator behind a NaN in backward."""

from contextlib import AbstractContextManager, nullcontext

import torch

ARM_AFTER_SKIPS = 5  # a scaler that comes down from its initial scale skips a few steps, and means to

_DISARMED = nullcontext()


class AnomalyHunt:
    """Arms at once where nothing is scaled; under a loss scaler only when skipped steps follow one another.

    An overflow that the scaler is there to catch would otherwise end the run.
    """

    def __init__(self, *, is_scaled: bool) -> None:
        self._needed_skips = ARM_AFTER_SKIPS if is_scaled else 0

    def region(self, consecutive_skips: int) -> AbstractContextManager[None]:
        """Around one attempt, after so many skips in a row."""
        if consecutive_skips < self._needed_skips:
            return _DISARMED
        return torch.autograd.set_detect_anomaly(True)
