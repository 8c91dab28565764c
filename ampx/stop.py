"""The signals that ask a trial to stop, and what each means."""

import signal
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

ONE_PRESS_S = 1.0  # a shell and a wrapper such as `timeout` may both pass on one Ctrl-C


class StopSignals:
    """SIGTERM and SIGUSR2 ask the loop to save and stop; so does the first Ctrl-C, the second kills."""

    def __init__(self) -> None:
        self.is_requested = False
        self.is_interrupted = False
        self._interrupted_at = 0.0

    @contextmanager
    def installed(self) -> Generator[None]:
        """Handle the signals inside, as before outside."""
        numbers = [signal.SIGTERM, signal.SIGINT, *([signal.SIGUSR2] if hasattr(signal, "SIGUSR2") else [])]
        before = {number: signal.signal(number, self._handle) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            if self.is_interrupted:
                self._interrupt_again()
                return
            self.is_interrupted = True
            self._interrupted_at = time.monotonic()
            print("\nstopping after this step; press Ctrl-C again to stop without saving", file=sys.stderr)
        self.is_requested = True

    def _interrupt_again(self) -> None:
        if time.monotonic() - self._interrupted_at > ONE_PRESS_S:
            raise KeyboardInterrupt
